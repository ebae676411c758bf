"""The adaptive policy, which chooses K by recent acceptance and by the times of rounds. No I/O.

It uses the K with the largest expected goodput in tokens per second (TurboSpec, arXiv 2406.14066). The tokens
follow from recent acceptance in this sequence and in all; the seconds are measured at the present load. The
tokens are those of all sequences. Longer rounds only delay those without a draft. Now and then it tries
another K than the best one at one load, so that estimates stay current.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import truediv
from typing import Literal, NamedTuple

from trtspec.serving.adaptive.estimates import (
    ANY_KIND,
    AcceptanceCounter,
    RecentAcceptance,
    RoundCostModel,
    expected_tokens,
)
from trtspec.serving.rounds import DraftLengths, VerificationCounts, bounded

FIRST = 4
"""The K before any measurement."""
ROUNDS = 3
"""The number of rounds of each completion in a probe, at most twice as many. The first is not measured."""
BURST_OF_PROBE = 12
"""The number of tokens that each completion decodes in a probe of K = 0."""
SHARE = 0.004
"""The share of the time that probes may lose."""
GAP = 6
"""The number of rounds with the K in use between two probes; at least two of each completion."""
HOPE = 2.0
"""The relative bonus in a K's goodput for each unit of its relative standard deviation."""
DOUBT = 6.0
"""The relative increase of `SHARE` for each unit of a K's relative standard deviation."""
ALL = 0.9
"""If a larger share of the sequences has drafts, all count as having drafts."""
MOST_OF_ALL = 0.1
"""The share of the time that probes may take: at a high load completions disturb one another as K changes."""
LEAST_S, MOST_S = 0.5, 30.0
"""The seconds between two probes, at least and at most."""


class LoadOutlook(NamedTuple):
    """The estimates for one load."""

    best: int
    """The best K."""
    tokens: Callable[[], Sequence[float]]
    """Returns the expected number of tokens of a round for each K."""
    seconds: Sequence[float]
    """The measured seconds of a round for each K; empty without measurements."""
    doubt: Callable[[], Sequence[float]]
    """Returns the relative standard deviation of `seconds` for each K."""
    share: float = 1.0
    """The share of the sequences that have drafts."""

    def takes(self, length: int) -> float:
        """Returns the expected seconds of a probe of this K. Each sequence with drafts takes part in it."""
        return (ROUNDS if length else BURST_OF_PROBE) * self.seconds[length] / self.share

    def lost(self, length: int, seconds: float) -> float:
        """Returns the seconds that a probe of this K, which took `seconds`, lost against the best K.

        If all sequences have drafts, all of its time counts, which may be more than its rounds: a draft
        engine first computes the tokens of a burst. If few have drafts, the probe waits for them without a
        loss, so only its rounds count.
        """
        tokens = self.tokens()
        steps = (self.takes(length) if self.share > ALL else seconds) / self.seconds[length]
        return seconds - steps * tokens[length] * self.seconds[self.best] / tokens[self.best]


class ProbePolicy:
    """Chooses which K to try, if any: at first the K `first` and 0, then now and then another than the best.

    All completions take part in a probe, since the time of a round depends on the K of all.
    """

    def __init__(self, first: int) -> None:
        self._first = first
        self._untried: list[int] = []
        self._length, self._left, self._extra, self._unmeasured, self._gap = 0, 0, 0, 0, 0
        self._due = 0.0
        self._began: float | None = None
        self._turn = 0

    def take(self, load: int, may_begin: bool, now: float, outlook: LoadOutlook) -> int | None:
        """Returns the K of a probe for one round or burst of a completion; None for no probe.

        A probe lasts until enough rounds were measured. Without `may_begin` none begins. `now` must not count
        idle seconds, which would be saved up for probes.
        """
        if not self._left:
            if self._began is not None and self._length < len(outlook.seconds):
                self._delay_next(now - self._began, now, outlook)
            if self._gap:
                self._gap -= 1
                return None
            if not may_begin or not (self._untried or self._plan(now, outlook)):
                return None
            self._length = self._untried.pop(0)
            self._left = load * (ROUNDS if self._length else 1)
            self._extra = self._left
            self._unmeasured, self._began = max(load, ROUNDS - 1), now
            self._gap = max(GAP, 2 * load)
        self._left -= 1
        return self._length

    def is_waiting(self, now: float) -> bool:
        """Says whether a probe is to begin as soon as the bursts of all have ended."""
        return not (self._left or self._gap) and (bool(self._untried) or now >= self._due)

    def wait(self, length: int) -> bool:
        """Adds a round to a probe of this K for one beside drafts that are behind; False if it has enough."""
        if not self._left or length != self._length or not self._extra:
            return False
        self._left += 1
        self._extra -= 1
        return True

    def tried(self, length: int) -> None:
        """Notes that a round or burst of this K was measured. One of each completion is enough."""
        if self._left and length == self._length:
            self._unmeasured -= 1
            self._left *= self._unmeasured > 0

    def _delay_next(self, took: float, now: float, outlook: LoadOutlook) -> None:
        """Delays the next probe in proportion to the time that this one has lost."""
        lost = outlook.lost(self._length, took)
        pause = lost / _share(outlook.doubt()[self._length])
        self._due, self._began = max(self._due, now + min(pause, MOST_S)), None

    def _plan(self, now: float, outlook: LoadOutlook) -> bool:
        """Plans the next probes, and says whether there are any.

        The first ones include the K in use, which the others are compared with.
        """
        if now < self._due:
            return False
        if not outlook.seconds:
            best = outlook.best
            self._untried, self._due = [best, 0 if best else self._first], now + LEAST_S
        else:
            doubt = outlook.doubt()
            self._untried = [self._other(outlook, doubt)]
            self._due = now + _pause(self._untried[0], outlook, doubt)
        return True

    def _other(self, outlook: LoadOutlook, doubt: Sequence[float]) -> int:
        """Returns in turn the most promising other K, one token more than the best, 0, and one token less.

        If the best K is 0, it returns only the first. An uncertain K is more promising, so that a bad first
        trial is not the last.
        """
        best, tokens = outlook.best, outlook.tokens()

        def hoped(length: int) -> float:
            return tokens[length] / outlook.seconds[length] * (1 + HOPE * doubt[length])

        longest = len(tokens) - 1
        others = [length for length in range(1, longest + 1) if length != best]
        promising = max(others, key=hoped, default=0)
        if best == 0:
            return promising
        self._turn += 1
        return (promising, best + 1 if best < longest else promising, 0, best - 1)[self._turn % 4]


def _pause(length: int, outlook: LoadOutlook, doubt: Sequence[float]) -> float:
    """Returns the seconds from this probe to the next, by its expected time and loss."""
    seconds = outlook.takes(length)
    lost = outlook.lost(length, seconds)
    return min(max(lost / _share(doubt[length]), seconds / MOST_OF_ALL, LEAST_S), MOST_S)


def _share(doubt: float) -> float:
    """Returns the share of the time that probes of a K with this uncertainty may lose."""
    return SHARE * (1 + DOUBT * doubt)


Policy = Literal["adaptive", "fixed"]
"""The rule that chooses K for requests that name none."""


BURST, BURST_OF_MANY = 32, 64
"""The tokens that the target decodes alone before a draft is considered again: a burst is a new request."""
MARGIN = 1.02
"""The factor by which another K's goodput must exceed that of the K in use."""
STAYS = 4
"""The number of rounds of a K before goodputs are compared again; at least one of each completion."""
FIRST_OF_MANY = 2
"""The first K if six or more completions run: steps are longer, and a draft gains less."""
OWN_KEEP, OVERALL_KEEP = 0.95, 0.99
"""The weight of the observations before a verification, for one sequence and for all."""


def size_of(load: int) -> int:
    """Returns the size class of a load: 1, 2, 3 to 5, 6 to 11, 12 to 23 and so on.

    A server with 64 slots often runs 63 completions, so bounds are not at powers of two.
    """
    return (load * 4 // 3).bit_length()


MANY = size_of(6)


class OriginStats:
    """The statistics of the drafts of one origin, over all completions."""

    def __init__(self, longest: int) -> None:
        self.longest = longest
        self._kind, self._acceptances = ANY_KIND, {ANY_KIND: RecentAcceptance(longest)}
        self._probes: dict[int, ProbePolicy] = {}
        self._used: dict[int, int] = {}
        self._stays: dict[int, int] = {}
        self._pays = True

    def acceptance(self, kind: int, load: int, now: float) -> RecentAcceptance:
        """Returns the acceptance of sequences of this kind, or of all kinds if others run too.

        Where sequences of another kind begin, the K of the last ones is not kept.
        """
        present = kind if load == 1 else ANY_KIND
        if present != self._kind:
            self._acceptances[self._kind].rest(now)
            self._acceptances.setdefault(present, RecentAcceptance(self.longest)).resume(now)
            self._kind = present
            self._stays.clear()
        return self._acceptances[present]

    def probes(self, size: int) -> ProbePolicy:
        if size not in self._probes:
            self._probes[size] = ProbePolicy(self._first(size))
        return self._probes[size]

    def best(self, load: int, tokens: Callable[[], list[float]], seconds: list[float]) -> int:
        """Returns the K with the largest goodput, or the K in use if its goodput is within `MARGIN`.

        It changes only after all completions have had it once: rounds of several K are slower than of one.
        """
        size = size_of(load)
        if left := self._stays.get(size, 0):
            self._stays[size] = left - 1
            return self._used[size]
        self._stays[size] = max(load, STAYS) - 1
        goodput = list(map(truediv, tokens(), seconds))
        best = goodput.index(max(goodput))
        # At another load of this size the schedule may have had a larger K.
        used = min(self._used.get(size, best), len(goodput) - 1)
        self._used[size] = best if goodput[best] > MARGIN * goodput[used] else used
        self._pays = self._used[size] > 0
        return self._used[size]

    def first(self, size: int) -> int:
        """Returns the first K at a load without measurements: 0 if 0 was the best K at the last load."""
        return self._first(size) if self._pays else 0

    def _first(self, size: int) -> int:
        return min(FIRST_OF_MANY if size >= MANY else FIRST, self.longest)


class AdaptivePolicy:
    """Chooses K from the statistics of all completions; `longest` is the target's `max_draft_len`.

    A load is the number of running completions; `size_of` is its class. `schedule` bounds K by it.
    """

    def __init__(self, longest: int, schedule: Mapping[int, int]) -> None:
        self.longest, self._schedule = longest, schedule
        self._costs: dict[int, RoundCostModel] = {}
        self._origins: dict[str, OriginStats] = {}
        self.batch = RunningBatch()

    def most(self, load: int) -> int:
        """Returns the largest K at this load."""
        return bounded(self.longest, self._schedule, load) if self._schedule else self.longest

    def lengths(self, kind: int = 0) -> AdaptiveLengths:
        """Returns the chooser of one completion's K; `kind` is what `kind_of` says of its sampling."""
        return AdaptiveLengths(self, kind)

    def origin(self, name: str) -> OriginStats:
        if name not in self._origins:
            self._origins[name] = OriginStats(self.longest)
        return self._origins[name]

    def costs(self, load: int) -> RoundCostModel:
        """Returns the cost model of this load. It starts empty, since times at other loads mislead."""
        size = size_of(load)
        if size not in self._costs:
            self._costs[size] = RoundCostModel(self.longest, load)
        return self._costs[size]


class AdaptiveLengths(DraftLengths):
    """Chooses the lengths of one completion's drafts; `now` is in seconds of any one clock."""

    def __init__(self, policy: AdaptivePolicy, kind: int) -> None:
        self._policy, self._batch, self._kind = policy, policy.batch, kind
        self._own: dict[str, AcceptanceCounter] = {}
        self._length, self._before = 0, 0
        self._is_first, self._size = True, 0
        self._is_chosen = False
        self._costs: RoundCostModel | None = None
        self._probes: ProbePolicy | None = None
        self._begin, self._last, self._num_alone = 0.0, 0.0, 0
        self.burst = BURST

    def choose(self, origin: str, longest: int, load: int, now: float) -> int:
        """Returns K of the next round, at most `longest`; 0 for `burst` tokens of the target alone."""
        self._size = size = size_of(load)
        known = self._policy.origin(origin)
        self._costs = costs = self._policy.costs(load)
        self._probes = trials = known.probes(size)
        own, most = self._acceptance(origin), self._policy.most(load)
        share, of_all = self._batch.share(load), known.acceptance(self._kind, load, now)
        tokens = partial(expected_tokens, own, of_all, most, load, share)
        seconds = costs.seconds(origin)
        if most < self._policy.longest:
            seconds = seconds[: most + 1]
        length = min(known.best(load, tokens, seconds) if seconds else known.first(size), most)
        costs.use(origin, length)
        # The first round is not measured, and while bursts run K cannot change for all.
        may_begin = not self._is_first and not self._batch.is_led
        outlook = LoadOutlook(length, tokens, seconds, partial(costs.doubt, origin), share)
        worked = self._batch.worked(now)
        probe = trials.take(load, may_begin, worked, outlook) if most else None
        usual = BURST_OF_MANY if size >= MANY else BURST
        number, length = (usual, length) if probe is None else (BURST_OF_PROBE, min(probe, most))
        if not length:
            # After its prompt a completion joins the bursts of the others, which went on meanwhile.
            is_late = self._is_first and load > 1
            is_last = trials.is_waiting(worked)
            self.burst = 1 if is_late else self._batch.burst(self, number, is_last=is_last)
        self._length, self._before = min(length, longest), self._length
        self._is_chosen = True
        return self._length

    def begin(self, length: int, now: float) -> None:
        """Notes the begin of the chosen round or burst, or of a burst without a draft."""
        self._begin, self._num_alone = now, 0
        self._batch.enter(now)
        if self._is_chosen:
            self._batch.begin(length, now, is_behind=self._is_behind)

    def verified(self, origin: str, counts: VerificationCounts, load: int, now: float) -> None:
        """Notes a round, before its `end`.

        Its time is measured on two conditions. The round before had the same K, since after a burst the draft
        has more tokens to compute. All others have had this K meanwhile, since they share the engines' steps;
        a probe waits for those whose drafts compute these tokens.
        """
        known = self._policy.origin(origin)
        if counts.num_verified:
            self._acceptance(origin).record(counts.num_verified, counts.num_accepted, OWN_KEEP)
            # At a high load there are more verifications, so each counts less.
            of_all, keep = known.acceptance(self._kind, load, now), OVERALL_KEEP ** (1 / load)
            of_all.add(counts.num_verified, counts.num_accepted, keep, now)
        self._batch.stepped(1, True, load)
        is_alike = self._length == self._before and self._batch.has_had(self._length, self._begin)
        if is_alike and self._probes and not self._batch.has_settled(self._begin):
            is_alike = not self._probes.wait(self._length)
        if self._costs and is_alike and self._size == size_of(load):
            self._costs.record(origin, self._length, now - self._begin)
            self._tried()

    def received(self, num_tokens: int, now: float) -> None:
        """Notes tokens of a burst. Those count that came while all others were in bursts too."""
        self._batch.received(self, num_tokens)
        if self._batch.has_had(0, self._begin):
            self._last, self._num_alone = now, self._num_alone + num_tokens
        else:
            self._begin, self._num_alone = now, 0

    def decoded(self, num_tokens: int, load: int) -> None:
        """Notes a whole burst of the target alone, before its `end`."""
        if self._costs and not self._is_first and self._num_alone and self._size == size_of(load):
            self._costs.record_alone((self._last - self._begin) / self._num_alone)
            self._tried()
        if not self._is_chosen:  # After a choice of 0 it is unknown whether there were drafts.
            # The noted tokens may include an end token, which is not in the sequence.
            self._batch.stepped(max(num_tokens - self._num_alone, 0), False, load)
        for acceptance in self._own.values():
            acceptance.fade(OWN_KEEP ** (num_tokens / 4))

    def end(self, length: int, now: float) -> None:
        """Notes the end of the round or burst, complete or not."""
        self._batch.leave(now)
        if self._is_chosen:
            self._batch.end(self, length, now, is_behind=self._is_behind)
        self._is_first = self._is_chosen = False

    @property
    def _is_behind(self) -> bool:
        """True if the draft first has to compute the tokens of a burst."""
        return self._length > 0 and not self._before and not self._is_first

    def _tried(self) -> None:
        if self._probes:
            self._probes.tried(self._length)

    def _acceptance(self, origin: str) -> AcceptanceCounter:
        if origin not in self._own:
            self._own[origin] = AcceptanceCounter(self._policy.longest)
        return self._own[origin]


ALIKE = 0.25
"""The largest difference between the mean K of all and the K of a round whose time is measured."""
BEHIND = 0.1
"""The largest share of the completions whose drafts are behind while a probe is measured."""
KEEP = 0.95
"""The weight of the previous step in the share of sequences that have drafts, for a step of all."""


class RunningBatch:
    """Tracks the running rounds and bursts.

    An engine's steps serve all completions at once, so the time of a round depends on its K only while all
    have that K. `begin` and `end` are for rounds whose K was chosen. Times are in seconds of any one clock.
    """

    def __init__(self) -> None:
        self._running, self._drafted = 0, 0
        self._offered = 1.0
        self._present, self._idle_since, self._idle_s = 0, 0.0, 0.0
        self._common: int | None = 0
        self._since = 0.0
        self._behind, self._are_behind, self._settled = 0, False, 0.0
        self._leader: object = None
        self._left = 0

    def enter(self, now: float) -> None:
        """Notes the begin of any round or burst."""
        if not self._present:
            self._idle_s += now - self._idle_since
        self._present += 1

    def leave(self, now: float) -> None:
        """Notes the end of any round or burst."""
        self._present -= 1
        self._idle_since = now

    def worked(self, now: float) -> float:
        """Returns the seconds in which any round or burst ran."""
        return (now if self._present else self._idle_since) - self._idle_s

    def begin(self, length: int, now: float, *, is_behind: bool) -> None:
        """Notes the begin of a round with the chosen K `length`, or of a burst with 0.

        `is_behind` says that the draft first has to compute the tokens of a burst.
        """
        self._count(1, length, is_behind, now)

    def end(self, who: object, length: int, now: float, *, is_behind: bool) -> None:
        """Notes the end of that round or burst of the completion `who`."""
        self._count(-1, -length, -is_behind, now)
        if who is self._leader:
            self._leader, self._left = None, 0

    @property
    def mean_length(self) -> float:
        """The mean K of all running rounds and bursts."""
        return self._drafted / max(self._running, 1)

    def share(self, load: int) -> float:
        """Returns the share of `load` completions that have drafts in recent steps; the caller has one."""
        return (1 + (load - 1) * self._offered) / load

    def stepped(self, number: int, is_offered: bool, load: int) -> None:
        """Notes `number` steps of one of `load` completions, and whether it had a draft to choose K for."""
        keep = KEEP ** (number / load)
        self._offered = self._offered * keep + is_offered * (1 - keep)

    def has_had(self, length: int, since: float) -> bool:
        """Says whether nearly all completions have had this K since then."""
        return self._common == length and self._since <= since

    def has_settled(self, since: float) -> bool:
        """Says whether nearly all drafts have been up to date since then."""
        return self._settled <= since and not self._are_behind

    def burst(self, who: object, number: int, *, is_last: bool) -> int:
        """Returns the length of a burst of the completion `who` that begins now, at most `number` tokens.

        All bursts end together, so that K changes for all at once: rounds beside bursts are slower than
        either alone. The completion that began first leads: its remaining tokens are those of all, since a
        step gives one token to each. If few are left, a completion begins a burst for others to join, unless
        these are the `is_last` bursts before another K: where completions begin all the time, bursts would
        never end.
        """
        if self._left <= (0 if is_last else number / 4):
            self._leader, self._left = who, number
        return min(self._left, number)

    @property
    def is_led(self) -> bool:
        """True while bursts have tokens left, so that K must not change now."""
        return self._left > 0

    def received(self, who: object, number: int) -> None:
        """Notes new tokens of the burst of `who`."""
        if who is self._leader:
            self._left -= number

    def _count(self, running: int, drafted: int, behind: int, now: float) -> None:
        self._running += running
        self._drafted += drafted
        self._behind += behind
        are_behind = self._behind > BEHIND * self._running
        if self._are_behind and not are_behind:
            self._settled = now
        self._are_behind = are_behind
        mean = self.mean_length
        length = round(mean)
        common = length if abs(mean - length) <= ALIKE else None
        if common != self._common:
            self._common, self._since = common, now
