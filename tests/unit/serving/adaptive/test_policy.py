"""The adaptive policy against a simulated pair, whose costs and acceptance are known exactly."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest

from trtspec.serving.adaptive.policy import AdaptivePolicy
from trtspec.serving.adaptive.round_times import Mean
from trtspec.serving.verification import VerificationCounts

LONGEST, TOKENS, PREFILL_S, NOISE = 8, 128, 0.02, 0.1
BAR = 0.97


@dataclass(frozen=True)
class Pair:
    """Seconds of a draft step, of a verification and of each row of it, of a round trip and of a token."""

    draft_s: float
    verification_s: float = 0.0028
    row_s: float = 0.0003
    trip_s: float = 0.0003
    token_s: float = 0.0036

    def round_s(self, length: int) -> float:
        return self.trip_s + self.verification_s + length * (self.draft_s + self.row_s)


def fixed(pair: Pair, acceptance: float, length: int) -> float:
    """Tokens per second of whole texts with one K, without noise and prefill."""
    if length == 0:
        return 1 / pair.token_s
    tokens = sum(acceptance**position for position in range(length + 1))
    return tokens / pair.round_s(length)


def adaptive(
    policy: AdaptivePolicy, pair: Pair, acceptance: float, now: float, until: float, dice: random.Random
) -> float:
    """Tokens per second of one completion after the other; the time of prefill is left out."""
    tokens, prefill, begun = 0, 0.0, now
    while now - prefill < until:
        pace, done, is_first = policy.pace(), 0, True
        while done < TOKENS:
            longest = min(LONGEST, TOKENS - done - 1)
            length = pace.choose("engine", longest, 1, now) if longest else 0
            begin = now
            pace.begin(length)
            if length:
                accepted = next((i for i in range(length) if dice.random() >= acceptance), length)
                new, seconds = accepted + 1, pair.round_s(length) * dice.uniform(1 - NOISE, 1 + NOISE)
            else:
                new = min(pace.burst, TOKENS - done)
                seconds = pair.trip_s + new * pair.token_s * dice.uniform(1 - NOISE / 4, 1 + NOISE / 4)
            now += seconds + PREFILL_S * is_first
            prefill += PREFILL_S * is_first
            if length:
                pace.verified("engine", VerificationCounts(length, accepted), 1, now - begin, now)
            else:
                pace.decoded(new, 1, now - begin)
            pace.end(length)
            done, is_first = done + new, False
        tokens += done
    return tokens / (now - prefill - begun)


@pytest.mark.parametrize(
    ("pair", "acceptances"),
    [
        pytest.param(Pair(0.0006), (0.75, 0.45, 0.1, 0.75), id="good, fair, bad and good again"),
        pytest.param(Pair(0.0003), (0.9, 0.3, 0.95), id="a cheap draft"),
        pytest.param(Pair(0.0036), (0.9, 0.1), id="a draft as slow as the target"),
        pytest.param(Pair(0.012), (0.9, 0.1), id="a draft slower than the target"),
    ],
)
def test_each_phase_has_nearly_the_goodput_of_its_best_fixed_length(
    pair: Pair, acceptances: tuple[float, ...]
) -> None:
    """Phases of a minute, with the time to adapt; the target alone is one of the fixed lengths."""
    policy, now, dice = AdaptivePolicy(LONGEST), 0.0, random.Random(1)
    for acceptance in acceptances:
        best = max(fixed(pair, acceptance, length) for length in range(LONGEST + 1))
        found = adaptive(policy, pair, acceptance, now, now + 60, dice)
        assert found >= BAR * best, (acceptance, found / best)
        now += 100


def test_a_text_may_differ_from_the_others() -> None:
    """The own acceptance outweighs that of all after some rounds: right texts among wrong ones get drafts."""
    policy = AdaptivePolicy(LONGEST)
    right, wrong = policy.pace(), policy.pace()
    policy.plain[2] = mean(0.004)
    for length in range(1, LONGEST + 1):
        for _ in range(3):
            policy.origin("engine").times(2).record(length, 0.004 + 0.001 * length)
    for pace, accepted in (right, 4), (wrong, 0):
        pace.begin(4)
        for _ in range(20):
            pace.verified("engine", VerificationCounts(4, accepted), 2, 0.008, 1.0)
        pace.end(4)
    lengths = [[pace.choose("engine", LONGEST, 2, 1.0) for _ in range(60)][-1] for pace in (right, wrong)]
    assert lengths[0] >= 4
    assert lengths[1] == 0


def test_it_never_asks_for_more_than_there_is_room_for() -> None:
    policy, dice = AdaptivePolicy(LONGEST), random.Random(2)
    pace, now = policy.pace(), 0.0
    for _ in range(2000):
        longest, load = dice.randint(1, LONGEST), dice.choice((1, 2, 5, 64))
        length = pace.choose("engine", longest, load, now)
        assert 0 <= length <= longest
        now += 0.01
        pace.begin(length)
        if length:
            verified = dice.randint(0, length)
            counts = VerificationCounts(verified, dice.randint(0, verified))
            pace.verified("engine", counts, load, dice.random(), now)
        else:
            pace.decoded(pace.burst, load, dice.random())
        pace.end(length)
    assert policy.mean_length == 0


def test_what_runs_while_others_draft_says_nothing_of_the_target_alone() -> None:
    policy = AdaptivePolicy(LONGEST)
    alone, drafting = policy.pace(), policy.pace()
    for pace in (alone, drafting):
        pace.begin(0)
        pace.decoded(8, 2, 1.0)
        pace.end(0)
    assert not policy.plain
    drafting.begin(8)
    alone.begin(0)
    alone.decoded(8, 2, 1.0)
    assert not policy.plain
    drafting.end(8)
    alone.decoded(8, 2, 1.0)
    alone.end(0)
    assert policy.plain[2].seconds == 1.0 / 8


def mean(seconds: float) -> Mean:
    found = Mean()
    found.record(seconds)
    return found
