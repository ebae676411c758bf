"""The adaptive policy against a simulated pair, whose costs and acceptance are known exactly."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import partial

import pytest

from trtspec.serving.adaptive.estimates import WINDOW, RoundCostModel, kind_of
from trtspec.serving.adaptive.policy import (
    BURST,
    BURST_OF_PROBE,
    STAYS,
    AdaptivePolicy,
    LoadOutlook,
    OriginStats,
    RunningBatch,
    size_of,
)
from trtspec.serving.executor import SamplingConfig
from trtspec.serving.rounds import VerificationCounts

LONGEST, TOKENS, PREFILL_S, NOISE = 8, 128, 0.02, 0.1
BAR, CROWDED_BAR = 0.97, 0.93
QUIET = (1e9, 1e-9, 1.0)


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


class Machine:
    """A machine on which something else runs now and then; all takes `slowness` times as long then."""

    def __init__(self, seed: int, quiet_s: float, busy_s: float, slowness: float) -> None:
        self._mean_s, self._slowness, self._dice = (quiet_s, busy_s), slowness, random.Random(seed)
        self._is_busy, self._left_s = True, 0.0

    def seconds(self, work_s: float) -> float:
        seconds = 0.0
        while True:
            factor = self._slowness if self._is_busy else 1.0
            if work_s * factor <= self._left_s:
                self._left_s -= work_s * factor
                return seconds + work_s * factor
            seconds, work_s = seconds + self._left_s, work_s - self._left_s / factor
            self._is_busy = not self._is_busy
            self._left_s = self._dice.expovariate(1 / self._mean_s[self._is_busy])


def adaptive(
    policy: AdaptivePolicy,
    pair: Pair,
    acceptance: float,
    now: float,
    machine: Machine,
    dice: random.Random,
    kind: int = 0,
    seconds: float = 60,
) -> float:
    """Tokens per second of work during so long of one completion after the other, without their prefill."""
    tokens, work, until = 0, 0.0, now + seconds
    while now < until:
        chooser, done, is_first = policy.lengths(kind), 0, True
        while done < TOKENS:
            longest = min(LONGEST, TOKENS - done - 1)
            length = chooser.choose("engine", longest, 1, now) if longest else 0
            chooser.begin(length, now)
            if length:
                accepted = next((i for i in range(length) if dice.random() >= acceptance), length)
                new, needed = accepted + 1, pair.round_s(length) * dice.uniform(1 - NOISE, 1 + NOISE)
            else:
                new = min(chooser.burst, TOKENS - done)
                needed = pair.trip_s + new * pair.token_s * dice.uniform(1 - NOISE / 4, 1 + NOISE / 4)
            now, work = now + machine.seconds(needed + PREFILL_S * is_first), work + needed
            if length:
                chooser.verified("engine", VerificationCounts(length, accepted), 1, now)
            else:
                chooser.received(new, now)
                chooser.decoded(new, 1)
            chooser.end(length, now)
            done, is_first = done + new, False
        tokens += done
    return tokens / work


@pytest.mark.parametrize(
    ("pair", "acceptances"),
    [
        pytest.param(
            Pair(0.0006),
            (0.75, 0.45, 0.1, 0.75),
            id="good, fair, bad and good again",
            marks=pytest.mark.sweep,
        ),
        pytest.param(Pair(0.0003), (0.9, 0.3, 0.95), id="a cheap draft"),
        pytest.param(Pair(0.0036), (0.9, 0.1), id="a draft as slow as the target"),
        pytest.param(Pair(0.012), (0.9, 0.1), id="a draft slower than the target"),
    ],
)
def test_each_phase_has_nearly_the_goodput_of_its_best_fixed_length(
    pair: Pair, acceptances: tuple[float, ...]
) -> None:
    """Phases of a minute, with the time to adapt; the target alone is one of the fixed lengths."""
    check(pair, acceptances, QUIET, BAR, 3)


@pytest.mark.parametrize(
    "crowd", [pytest.param(crowd, marks=pytest.mark.sweep) for crowd in ((0.1, 0.1, 2.0), (0.5, 0.3, 3.0))]
)
def test_a_machine_that_is_busy_now_and_then_misleads_it_little(crowd: tuple[float, float, float]) -> None:
    """What else runs lasts as long as a few rounds, or as many, and meets lengths unequally."""
    for acceptances in (0.85, 0.65, 0.85), (0.9, 0.3, 0.95):
        check(Pair(0.0006), acceptances, crowd, CROWDED_BAR, 6)


def check(
    pair: Pair,
    acceptances: tuple[float, ...],
    crowd: tuple[float, float, float],
    bar: float,
    times: int,
) -> None:
    """Holds the mean of so many runs to the bar, phase by phase."""
    shares = [runs(pair, acceptances, Machine(seed, *crowd), random.Random(seed)) for seed in range(times)]
    for acceptance, *found in zip(acceptances, *shares, strict=True):
        assert sum(found) / len(found) >= bar, (acceptance, found)


def runs(pair: Pair, acceptances: tuple[float, ...], machine: Machine, dice: random.Random) -> list[float]:
    """What the adaptive policy has of the best fixed length in each phase, one after the other."""
    policy, now, shares = AdaptivePolicy(LONGEST, {}), 0.0, []
    for acceptance in acceptances:
        best = max(fixed(pair, acceptance, length) for length in range(LONGEST + 1))
        shares.append(adaptive(policy, pair, acceptance, now, machine, dice) / best)
        now += 100
    return shares


@pytest.mark.parametrize(
    ("pair", "acceptance", "most"),
    [
        (Pair(0.0006), 0.9, 2),
        (Pair(0.0006), 0.9, 1),
        # A draft pays here, but only one longer than is allowed.
        (Pair(0.0001, verification_s=0.0085, row_s=0.0001), 0.95, 1),
    ],
)
def test_the_adaptive_policy_finds_the_best_draft_length_that_the_schedule_allows(
    pair: Pair, acceptance: float, most: int
) -> None:
    assert max(range(LONGEST + 1), key=partial(fixed, pair, acceptance)) > most
    best = max(fixed(pair, acceptance, length) for length in range(most + 1))
    found = [
        adaptive(
            AdaptivePolicy(LONGEST, {1: most}),
            pair,
            acceptance,
            0.0,
            Machine(seed, *QUIET),
            random.Random(seed),
        )
        for seed in range(3)
    ]
    assert sum(found) / len(found) >= BAR * best


def test_texts_by_turns_greedy_and_hot_have_the_length_of_their_kind() -> None:
    """What a kind has shown is known when its next text begins, whatever came between them."""
    pair, kinds = Pair(0.0006), {0: 0.75, kind_of(SamplingConfig(temperature=2.0)): 0.1}
    policy, machine, dice = AdaptivePolicy(LONGEST, {}), Machine(0, *QUIET), random.Random(0)
    took = dict.fromkeys(kinds, 0.0)
    for turn in range(100):
        for kind, acceptance in kinds.items():
            now = 10.0 * (2 * turn + bool(kind))
            took[kind] += 0.01 / adaptive(policy, pair, acceptance, now, machine, dice, kind, 0.001)
    for kind, acceptance in kinds.items():
        best = max(fixed(pair, acceptance, length) for length in range(LONGEST + 1))
        assert 1 / took[kind] >= BAR * best


def test_a_text_may_differ_from_the_others() -> None:
    """The own acceptance outweighs that of all after some rounds: right texts among wrong ones get drafts."""
    policy = AdaptivePolicy(LONGEST, {})
    right, wrong = policy.lengths(), policy.lengths()
    try_all(policy.costs(2))
    for chooser, accepted in (right, 4), (wrong, 0):
        chooser.begin(4, 0.992)
        for _ in range(20):
            chooser.verified("engine", VerificationCounts(4, accepted), 2, 1.0)
        chooser.end(4, 1.0)
    lengths = [
        [chooser.choose("engine", LONGEST, 2, 1.0) for _ in range(60)][-1] for chooser in (right, wrong)
    ]
    assert lengths[0] >= 4
    assert lengths[1] == 0


@pytest.mark.parametrize("schedule", [{}, {1: 8, 4: 2, 9: 0}, {1: 1, 4: 7}], ids=["none", "falls", "rises"])
def test_the_adaptive_policy_never_exceeds_the_room_or_the_schedule(schedule: dict[int, int]) -> None:
    """Loads of 3 to 5, and of 6 to 11, are one size for the estimates, and not for the schedule."""
    policy, dice = AdaptivePolicy(LONGEST, schedule), random.Random(2)
    chooser, now = policy.lengths(), 0.0
    for _ in range(8000):
        longest, load = dice.randint(1, LONGEST), dice.choice((1, 2, 3, 4, 5, 8, 9, 64))
        length = chooser.choose("engine", longest, load, now)
        assert 0 <= length <= longest
        assert length <= [LONGEST, *(most for least, most in schedule.items() if least <= load)][-1]
        chooser.begin(length, now)
        now += dice.random() / 50
        if length:
            verified = dice.randint(0, length)
            counts = VerificationCounts(verified, dice.randint(0, verified))
            chooser.verified("engine", counts, load, now)
        else:
            chooser.received(chooser.burst, now)
            chooser.decoded(chooser.burst, load)
        chooser.end(length, now)
    assert policy.batch.mean_length == 0


def test_tokens_beside_drafts_of_others_say_nothing_of_the_target_alone() -> None:
    """Of a burst those count that came while all were alone."""
    policy = AdaptivePolicy(LONGEST, {})
    costs = policy.costs(2)
    alone, drafting = policy.lengths(), policy.lengths()
    for chooser in (alone, drafting):  # The first of a text tells nothing.
        chooser.choose("engine", LONGEST, 2, 0.0)
        chooser.begin(0, 0.0)
        chooser.received(1, 1.0)
        chooser.decoded(1, 2)
        chooser.end(0, 1.0)
    assert costs.doubt("engine") == RoundCostModel(LONGEST, 2).doubt("engine")
    for chooser in (alone, drafting):
        chooser.choose("engine", LONGEST, 2, 2.0)
    costs.use("engine", 0)
    drafting.begin(8, 2.0)
    alone.begin(0, 2.0)
    alone.received(1, 5.0)
    drafting.end(8, 5.5)
    alone.received(1, 6.0)  # This one began beside the draft.
    for now in (6.125, 6.250, 6.375):
        alone.received(1, now)
    alone.decoded(5, 2)
    alone.end(0, 6.4)
    costs.record("engine", 8, 3.0)
    for _ in range(2 * WINDOW):
        costs.record_alone(0.125)
    assert costs.seconds("engine")[0] == pytest.approx(0.125)


def test_texts_without_a_draft_do_not_hide_what_rounds_take() -> None:
    """Drafts in vain beside a text that has none are given up, which takes knowing what they cost."""
    policy = AdaptivePolicy(LONGEST, {})
    drafting, silent, now = policy.lengths(), policy.lengths(), 0.0
    tokens_alone, rounds = 0, 0
    for _ in range(500):
        length = drafting.choose("lookup", LONGEST, 2, now)
        drafting.begin(length, now)
        for _ in range(1 if length else drafting.burst):
            silent.begin(0, now)
            now += 0.010 + 0.002 * length
            silent.received(1, now)
            silent.decoded(1, 2)
            silent.end(0, now)
            if not length:
                drafting.received(1, now)
        if length:
            drafting.verified("lookup", VerificationCounts(length, 0), 2, now)
        else:
            drafting.decoded(drafting.burst, 2)
        drafting.end(length, now)
        tokens_alone, rounds = tokens_alone + drafting.burst * (not length), rounds + (length > 0)

    alone, *drafted = policy.costs(2).seconds("lookup")
    assert drafted[3] / alone == pytest.approx(1.8, rel=0.1)
    assert rounds < 0.05 * tokens_alone


@pytest.mark.parametrize(("offered", "load"), [(1, 1), (2, 1), (1, 8)])
def test_drafts_that_are_shorter_than_what_was_chosen_are_learned_too(offered: int, load: int) -> None:
    """None of them is ever right, and a round takes three times a token."""
    policy, now, rounds, tokens = AdaptivePolicy(LONGEST, {}), 1.0, 0, 0
    choosers = [policy.lengths() for _ in range(load)]
    for _ in range(6000 // load):
        lengths = [chooser.choose("lookup", offered, load, now) for chooser in choosers]
        for chooser, length in zip(choosers, lengths, strict=True):
            chooser.begin(length, now)
        alone = [chooser for chooser, length in zip(choosers, lengths, strict=True) if not length]
        now += 0.03 if len(alone) < load else 0.0
        for _ in range(min((chooser.burst for chooser in alone), default=0)):
            now += 0.01
            for chooser in alone:
                chooser.received(1, now)
        for chooser, length in zip(choosers, lengths, strict=True):
            if length:
                chooser.verified("lookup", VerificationCounts(length, 0), load, now)
            else:
                chooser.decoded(chooser.burst, load)
            chooser.end(length, now)
        rounds, tokens = rounds + load - len(alone), tokens + sum(chooser.burst for chooser in alone)
    assert rounds < 0.1 * tokens


def test_an_end_token_that_is_none_of_the_text_is_no_step_back() -> None:
    policy, now = AdaptivePolicy(LONGEST, {}), 1.0
    for _ in range(200):
        chooser = policy.lengths()
        chooser.begin(0, now)
        for _ in range(11):
            now += 0.01
            chooser.received(1, now)
        chooser.decoded(10, 1)
        chooser.end(0, now)
    assert policy.batch.share(8) <= 1


def test_a_probe_that_waited_for_drafts_has_lost_nothing_by_that() -> None:
    """With every text in it, what it took beyond its rounds is lost; the draft read much first."""

    def lost(share: float) -> float:
        tokens, seconds = [1.0, 1.5], [0.010, 0.015]
        return LoadOutlook(0, lambda: tokens, seconds, lambda: [0.1, 0.1], share).lost(1, 1.0)

    assert lost(share=0.1) == pytest.approx(0.0)
    assert lost(share=1.0) == pytest.approx(1.0 - 3 * 0.015)


def test_a_probe_of_the_target_alone_is_as_short_as_its_time_is_counted() -> None:
    """Every draft token is accepted, so no other round has K = 0."""
    policy, now = AdaptivePolicy(LONGEST, {}), 1.0
    chooser, bursts = policy.lengths(), []
    for _ in range(200):
        length = chooser.choose("engine", LONGEST, 1, now)
        chooser.begin(length, now)
        now += 0.015
        if length:
            chooser.verified("engine", VerificationCounts(length, length), 1, now)
        else:
            bursts.append(chooser.burst)
            now += 0.010 * chooser.burst
            chooser.received(chooser.burst, now)
            chooser.decoded(chooser.burst, 1)
        chooser.end(length, now)
    assert {*bursts} == {BURST_OF_PROBE}


def test_behind_its_prompt_a_completion_joins_the_bursts_of_the_others() -> None:
    policy = AdaptivePolicy(LONGEST, {})
    costs = policy.costs(2)
    costs.use("engine", 0)
    for _ in range(2 * WINDOW):
        costs.record_alone(0.010)
        costs.record("engine", 4, 1.0)
    chooser = policy.lengths()
    assert chooser.choose("engine", LONGEST, 2, 0.0) == 0
    assert chooser.burst == 1


@pytest.mark.parametrize(("load", "rounds"), [(1, STAYS), (64, 64)])
def test_a_length_stays_until_all_have_had_it(load: int, rounds: int) -> None:
    """However much what is expected of it changes meanwhile."""
    origin = OriginStats(LONGEST)
    seconds = [1.0] * (LONGEST + 1)
    for best in (5, 2):
        for promising in (best, *[7, 1] * rounds)[:rounds]:
            tokens = [1.0 + (length == promising) for length in range(LONGEST + 1)]
            assert origin.best(load, partial(list, tokens), seconds) == best


def test_a_server_that_is_short_of_one_completion_is_as_busy_as_a_full_one() -> None:
    for places in (2, 4, 8, 16, 32, 64, 128, 256):
        assert size_of(places) != size_of(2 * places)
        if places > 4:
            assert size_of(places - 1) == size_of(places) == size_of(places + 1)
    assert len({size_of(load) for load in (1, 2, 3)}) == 3


def test_a_round_in_which_the_load_changed_tells_nothing() -> None:
    policy = AdaptivePolicy(LONGEST, {})
    chooser = policy.lengths()
    for load in (1, 64):
        chooser.choose("engine", LONGEST, 1, 0.0)
        chooser.begin(4, 0.0)
        chooser.verified("engine", VerificationCounts(4, 2), load, 0.002)
        chooser.end(4, 0.002)
    assert policy.costs(64).doubt("engine") == RoundCostModel(LONGEST, 64).doubt("engine")


def test_where_no_draft_pays_another_load_begins_without_one() -> None:
    policy = AdaptivePolicy(LONGEST, {})
    costs = policy.costs(1)
    assert policy.lengths().choose("engine", LONGEST, 64, 0.0) > 0
    costs.use("engine", 4)
    for _ in range(8):
        for _ in range(2 * WINDOW):
            costs.record("engine", 4, 0.100)
        costs.record_alone(0.001)
    assert policy.lengths().choose("engine", LONGEST, 1, 0.0) == 0
    assert policy.lengths().choose("engine", LONGEST, 64, 0.0) == 0


def try_all(costs: RoundCostModel) -> None:
    """Tries each K beside K = 4 a few times."""
    costs.use("engine", 4)
    for length in [0, *range(1, LONGEST + 1)] * 4:
        for _ in range(2 * WINDOW):
            costs.record("engine", 4, 0.008)
        if length:
            costs.record("engine", length, 0.004 + 0.001 * length)
        else:
            costs.record_alone(0.004)
    for _ in range(2 * WINDOW):
        costs.record("engine", 4, 0.008)


def test_the_share_of_texts_with_a_draft_is_that_of_their_steps() -> None:
    batch = RunningBatch()
    assert batch.share(16) == 1
    for _ in range(1000):
        batch.stepped(1, True, 16)
        batch.stepped(3, False, 16)
    assert batch.share(16) == pytest.approx((1 + 15 * 0.25) / 16, abs=0.02)
    assert batch.share(1) == 1


def test_bursts_of_all_end_together() -> None:
    """So that K changes for all at the same token, and rounds are seldom beside bursts."""
    batch = RunningBatch()
    leader, second, third, late = object(), object(), object(), object()
    assert not batch.is_led
    assert batch.burst(leader, BURST, is_last=False) == BURST
    for _ in range(8):
        batch.received(leader, 1)
    assert batch.burst(second, BURST, is_last=False) == BURST - 8
    batch.received(second, 1)  # Whoever follows is as far as the leader.
    assert batch.burst(third, BURST, is_last=False) == BURST - 8
    batch.received(leader, 20)
    # So few are not worth a request, unless another K is to be tried when they end.
    assert batch.burst(late, BURST, is_last=True) == BURST - 28
    assert batch.burst(late, BURST, is_last=False) == BURST
    batch.end(leader, 0, 1.0, is_behind=False)
    assert batch.is_led
    batch.end(late, 0, 1.0, is_behind=False)
    assert not batch.is_led


def test_a_probe_waits_for_drafts_that_read_what_the_target_said_alone() -> None:
    batch = RunningBatch()
    completions = [object() for _ in range(10)]
    for _ in completions:
        batch.begin(2, 1.0, is_behind=True)
    for who in completions[:8]:
        batch.end(who, 2, 2.0, is_behind=True)
        batch.begin(2, 2.0, is_behind=False)
    assert batch.has_had(2, 2.0)
    assert not batch.has_settled(2.0)
    batch.end(completions[8], 2, 3.0, is_behind=True)
    batch.begin(2, 3.0, is_behind=False)
    assert not batch.has_settled(2.0)
    assert batch.has_settled(3.0)
