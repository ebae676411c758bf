"""The length of each draft, from what was accepted and what rounds take at the present load; no I/O.

The K with the largest expected goodput, tokens per second, is used (TurboSpec, arXiv 2406.14066): the tokens
follow from how often the draft was right lately, in this text and in all, and the seconds are measured.
"""

from __future__ import annotations

from functools import partial

from trtspec.serving.adaptive import probes
from trtspec.serving.adaptive.acceptance import Acceptance, expected_tokens
from trtspec.serving.adaptive.costs import Costs
from trtspec.serving.adaptive.probes import Probes
from trtspec.serving.verification import VerificationCounts

BURST = 32
"""How many tokens the target decodes alone before a draft is considered again."""
MARGIN = 1.02
"""How many times the goodput of the present K another one must promise."""
OWN_KEEP, OVERALL_KEEP = 0.95, 0.99
HALF_LIFE_S = 2.0
"""The seconds after which an acceptance counts half: texts drift."""


def size_of(load: int) -> int:
    """Returns the same number for loads that are alike: 1, 2, 3 to 5, 6 to 11, 12 to 23 and so on.

    A server that has 64 places is now and then short of one, so bounds are not at powers of two.
    """
    return (load * 4 // 3).bit_length()


class Origin:
    """What all completions have shown of the drafts of one origin."""

    def __init__(self, longest: int) -> None:
        self.longest = longest
        self.acceptance, self._since = Acceptance(longest, OVERALL_KEEP), 0.0
        self._probes: dict[int, Probes] = {}
        self._used: dict[int, int] = {}
        self._latest = self._first = min(probes.FIRST, longest)

    def probes(self, size: int) -> Probes:
        if size not in self._probes:
            self._probes[size] = Probes(self._first)
        return self._probes[size]

    def better(self, size: int, tokens: list[float], seconds: list[float]) -> int:
        """Returns the K with the largest goodput, or the one that was used last where that is hardly less."""
        goodput = [number / time for number, time in zip(tokens, seconds, strict=True)]
        best = max(range(len(goodput)), key=goodput.__getitem__)
        if goodput[best] > MARGIN * goodput[self._used.setdefault(size, best)]:
            self._used[size] = best
        self._latest = self._used[size]
        return self._latest

    def first(self) -> int:
        """Returns the K to begin with at a load of which nothing is known: none where none paid last."""
        return self._first if self._latest else 0

    def record(self, counts: VerificationCounts, now: float) -> None:
        self.acceptance.fade(0.5 ** ((now - self._since) / HALF_LIFE_S))
        self.acceptance.record(counts.num_verified, counts.num_accepted)
        self._since = now


class AdaptivePolicy:
    """What all completions have shown; `longest` is the target's `max_draft_len`.

    Loads, the numbers of completions that run, are told apart by `size_of`.
    """

    def __init__(self, longest: int) -> None:
        self.longest = longest
        self._costs: dict[int, Costs] = {}
        self._origins: dict[str, Origin] = {}
        self._running, self._drafted = 0, 0
        self._burst_ends = 0.0

    def pace(self) -> AdaptivePace:
        """Returns what chooses for one completion."""
        return AdaptivePace(self)

    def origin(self, name: str) -> Origin:
        if name not in self._origins:
            self._origins[name] = Origin(self.longest)
        return self._origins[name]

    def costs(self, load: int) -> Costs:
        """Returns what rounds take at this load; nothing is taken over from another, which misleads."""
        size = size_of(load)
        if size not in self._costs:
            self._costs[size] = Costs(self.longest, load)
        return self._costs[size]

    def begin(self, length: int) -> None:
        """Notes that a round with a draft of `length` tokens, or a burst with 0, has begun."""
        self._running += 1
        self._drafted += length

    def end(self, length: int) -> None:
        """Notes that it has ended, in whatever way."""
        self._running -= 1
        self._drafted -= length

    def burst(self, number: int, now: float, token_s: float) -> int:
        """Returns how many tokens, about `number`, a burst that begins now is to have.

        Bursts of all end together, where K may change: rounds beside bursts take longer than either.
        """
        if not self._running or self._burst_ends - now < token_s * number / 4:
            self._burst_ends = now + token_s * number
        return min(max(round((self._burst_ends - now) / token_s), 1), number)

    @property
    def mean_length(self) -> float:
        """The mean K of what runs, which says more of a round's time than its own where many run."""
        return self._drafted / max(self._running, 1)


class AdaptivePace:
    """Chooses the lengths of one completion's drafts; `now` is in seconds of any one clock."""

    def __init__(self, policy: AdaptivePolicy) -> None:
        self._policy = policy
        self._own: dict[str, Acceptance] = {}
        self._length, self._before = 0, 0
        self._is_first, self._size = True, 0
        self.burst = BURST

    def choose(self, origin: str, longest: int, load: int, now: float) -> int:
        """Returns K of the next round, at most `longest`; 0 for `burst` tokens of the target alone."""
        policy, size = self._policy, size_of(load)
        self._size = size
        known, costs = policy.origin(origin), policy.costs(load)
        tokens = expected_tokens(self._acceptance(origin), known.acceptance, policy.longest, load)
        seconds = costs.seconds(origin)
        length = known.better(size, tokens, seconds) if seconds else known.first()
        costs.use(origin, length)
        self.burst = BURST
        if not self._is_first:
            probe = known.probes(size).take(load, now, length, tokens, seconds, partial(costs.doubt, origin))
            if probe is not None:
                self.burst, length = probes.BURST, probe
        if not length and seconds:
            self.burst = policy.burst(self.burst, now, seconds[0])
        self._length, self._before = min(length, longest), self._length
        return self._length

    def begin(self, length: int) -> None:
        self._policy.begin(length)

    def end(self, length: int) -> None:
        self._policy.end(length)

    def verified(
        self, origin: str, counts: VerificationCounts, load: int, seconds: float, now: float
    ) -> None:
        """Notes a round, before its `end`.

        Its time counts if the one before had the same K, since after a burst the draft has more to read, and
        if so have those that run beside it, which share the engines' steps.
        """
        known = self._policy.origin(origin)
        if counts.num_verified:
            self._acceptance(origin).record(counts.num_verified, counts.num_accepted)
            known.record(counts, now)
        if self._length == self._before and self._is_shared(load):
            self._policy.costs(load).record(origin, self._length, seconds)
        self._is_first = False

    def decoded(self, num_tokens: int, load: int, seconds: float) -> None:
        """Notes a burst of the target alone, before its `end`; its time counts if others are alone too."""
        self._length = 0
        if not self._is_first and num_tokens and self._is_shared(load):
            self._policy.costs(load).record_alone(seconds / num_tokens)
        for acceptance in self._own.values():
            acceptance.fade(OWN_KEEP ** (num_tokens / 4))
        self._is_first = False

    def _is_shared(self, load: int) -> bool:
        """Says whether what runs has this K on the average, and whether the load has stayed."""
        return self._size == size_of(load) and abs(self._policy.mean_length - self._length) < 0.5

    def _acceptance(self, origin: str) -> Acceptance:
        if origin not in self._own:
            self._own[origin] = Acceptance(self._policy.longest, OWN_KEEP)
        return self._own[origin]
