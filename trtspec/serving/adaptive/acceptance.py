"""Estimates the acceptance rate of draft tokens by position, from past verifications. No I/O, no clock."""

from __future__ import annotations

from trtspec.serving.executor import SamplingConfig

FIRST_RATE = 0.7
"""The rate of a position without observations at it or before it."""
OWN_PRIOR = 6.0
"""The weight of the rate of all sequences in a sequence's own rate, in observations."""
OVERALL_PRIOR = 2.0
"""The weight of the rate of the previous position in a position's rate, in observations."""
HALF_LIFE_S = 2.0
"""The seconds after which an acceptance counts half, since sequences drift."""
FADING_S = 0.05
"""The seconds between two updates of these weights."""
HOTTEST = 2.0
"""The temperature from which on all sequences are of one kind."""
ANY_KIND = -1
"""The kind of sequences of several kinds that run at once."""


def kind_of(sampling: SamplingConfig) -> int:
    """Returns the kind of sequences with similar acceptance: 0 is greedy, then one for each half degree.

    A draft guesses less of a sequence, the higher its temperature is.
    """
    if sampling.is_greedy:
        return 0
    return 1 + round(2 * min(1.0 if sampling.temperature is None else sampling.temperature, HOTTEST))


class AcceptanceCounter:
    """Counts how often the token at each position was accepted if all before it were."""

    __slots__ = ("accepted", "reached")

    def __init__(self, longest: int) -> None:
        self.reached, self.accepted = [0.0] * longest, [0.0] * longest

    def record(self, num_verified: int, num_accepted: int, keep: float) -> None:
        """Adds one verification, which accepted `num_accepted` of `num_verified` tokens.

        Earlier observations of a position then count `keep` times as much.
        """
        reached, accepted = self.reached, self.accepted
        for position in range(min(num_accepted + 1, num_verified)):
            reached[position] = reached[position] * keep + 1
            accepted[position] = accepted[position] * keep + (position < num_accepted)

    def fade(self, share: float) -> None:
        """Makes all earlier observations count `share` times as much."""
        self.reached = [count * share for count in self.reached]
        self.accepted = [count * share for count in self.accepted]


class RecentAcceptance(AcceptanceCounter):
    """An `AcceptanceCounter` that forgets, while it is in use."""

    __slots__ = ("_since",)

    def __init__(self, longest: int) -> None:
        super().__init__(longest)
        self._since = 0.0

    def resume(self, now: float) -> None:
        """Notes the begin of its use."""
        self._since += now

    def rest(self, now: float) -> None:
        """Notes the end of its use."""
        self._since -= now

    def add(self, num_verified: int, num_accepted: int, keep: float, now: float) -> None:
        """Records one verification, after it has forgotten some of the earlier ones."""
        if now - self._since > FADING_S:
            self.fade(0.5 ** ((now - self._since) / HALF_LIFE_S))
            self._since = now
        self.record(num_verified, num_accepted, keep)


def expected_tokens(
    own: AcceptanceCounter, overall: AcceptanceCounter, longest: int, load: int, share: float = 1.0
) -> list[float]:
    """Returns the expected tokens of a round of K = 0, 1, … `longest`, the target's own included.

    They are the mean of all sequences, of which a `share` has drafts and the others get one token each. With
    drafts the number is 1 + a_1 + a_1 a_2 + …, where a_i is the rate of position i (Leviathan et al., arXiv
    2211.17192, section 3.1, without its assumption that all rates are equal). The more sequences run, the
    less their own rates count: drafts of one length share their steps, and the overall rates are known
    better.
    """
    expected, survives, rate, prior = [1.0], share, FIRST_RATE, OWN_PRIOR * load
    for position in range(longest):
        rate = (overall.accepted[position] + OVERALL_PRIOR * rate) / (
            overall.reached[position] + OVERALL_PRIOR
        )
        survives *= (own.accepted[position] + prior * rate) / (own.reached[position] + prior)
        expected.append(expected[-1] + survives)
    return expected
