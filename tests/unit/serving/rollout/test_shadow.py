"""Shadow drafts against the rounds of real speculation, and the text against the target's own."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import zip_longest

import pytest
import tokenizers

from tests.fakes.expected import Cases, assert_is, expect
from tests.fakes.languages import TARGET, by_prompt, drafting_for
from tests.fakes.scripted_executor import ScriptedExecutor
from tests.fakes.suffix import SUFFIX
from tests.fakes.virtual_time import run_virtually
from tests.support.draft_failures import draft_failures
from trtspec.serving.admission import ServingBounds
from trtspec.serving.assembly import assemble
from trtspec.serving.completion import CompletionRequest, Delta
from trtspec.serving.coordinator import Coordinator
from trtspec.serving.drafters.source import Drafting
from trtspec.serving.errors import TimedOut
from trtspec.serving.executor import SamplingConfig
from trtspec.serving.rollout.rollout import Rollout
from trtspec.serving.rollout.state import RolloutReading, RolloutState
from trtspec.serving.stats import SpeculationCounts, Stats
from trtspec.serving.tokenizer import Tokenizer

LOOKUP = {"prompt_lookup_min": 1, "prompt_lookup_max": 4, "earlier_answers": 4000}
METHODS = (None, Drafting("ngram", LOOKUP), Drafting("hybrid", LOOKUP), SUFFIX)
SHADOW = RolloutReading(RolloutState("shadow", 1.0))
STEP_S = 0.01
END = 75


def served(
    tokenizer: Tokenizer,
    cases: Cases,
    reading: RolloutReading,
    method: Drafting | None = None,
    agreement: float = 0.8,
    draft_s: float = STEP_S / 1000,
) -> tuple[Coordinator, list[Delta]]:
    """Serves the requests one after the other."""
    requests, languages = cases

    async def main() -> tuple[Coordinator, list[Delta]]:
        target = ScriptedExecutor(TARGET, by_prompt(languages), STEP_S)
        draft = None if method is METHODS[1] else drafting_for(target, agreement, delay=draft_s)
        rollout = Rollout()
        coordinator = assemble(target, draft, tokenizer, num_draft_tokens=5, drafting=method, rollout=rollout)
        rollout.take(reading)
        deltas = [await coordinator.complete(request) for request in requests]
        await asyncio.sleep(0)
        assert target.in_flight == 0
        assert draft is None or draft.in_flight == 0
        return coordinator, deltas

    return run_virtually(main())


def without_k(cases: Cases) -> Cases:
    """The same requests without a K of their own, half of them sampled.

    Behind a stop string, or an end that the engines do not know, nobody knows what would have been accepted.
    """
    requests, languages = cases
    free = [
        replace(
            request,
            num_draft_tokens=None,
            stop=(),
            end_id=END,
            tenant="one",
            sampling=SamplingConfig(temperature=1.0, seed=n) if n % 2 else request.sampling,
        )
        for n, request in enumerate(requests)
    ]
    return free, languages


def counted(stats: Stats) -> SpeculationCounts:
    """The sum over the origins."""
    each = stats.by_origin.values()
    positions = zip_longest(*(counts.accepted_per_position for counts in each), fillvalue=0)
    return SpeculationCounts(
        sum(counts.num_spec_steps for counts in each),
        sum(counts.num_draft_tokens for counts in each),
        sum(counts.num_accepted_draft_tokens for counts in each),
        list(map(sum, positions)),
    )


@pytest.mark.parametrize("method", METHODS, ids=["draft_model", "ngram", "hybrid", "suffix"])
@pytest.mark.parametrize(
    "agreement", [0.8, *(pytest.param(agreement, marks=pytest.mark.sweep) for agreement in (0.0, 1.0))]
)
def test_shadow_drafts_are_counted_as_real_speculation_would_count_them(
    tokenizer: Tokenizer, cases: Cases, method: Drafting | None, agreement: float
) -> None:
    """A draft that takes a thousandth of a step is never too late, so each round has its like."""
    free = without_k(cases)
    real, said = served(tokenizer, free, RolloutReading(), method, agreement)
    shadow, beside = served(tokenizer, free, SHADOW, method, agreement)
    assert [delta.token_ids for delta in beside] == [delta.token_ids for delta in said]
    assert counted(real.stats).num_spec_steps > 50
    assert shadow.stats.rollout.shadow == counted(real.stats)
    # What production counts is as if nothing had been drafted.
    assert counted(shadow.stats) == SpeculationCounts()
    assert {why for why, number in shadow.stats.fallbacks.items() if number} <= {"rollout", "min_tokens"}
    assert real.stats.rollout.shadow == SpeculationCounts()


def test_the_text_is_the_targets_own(
    tokenizer: Tokenizer, byte_level: tokenizers.Tokenizer, cases: Cases
) -> None:
    """Stop strings included, with a draft that is slower than the target."""
    requests, languages = cases
    free = [replace(request, num_draft_tokens=None) for request in requests], languages
    coordinator, deltas = served(tokenizer, free, SHADOW, draft_s=3 * STEP_S)
    for request, delta in zip(free[0], deltas, strict=True):
        assert_is(delta, expect(request, by_prompt(languages), tokenizer, byte_level.decode))
        assert delta.completion is not None
        assert delta.completion.undrafted_for == ("rollout",)
    assert coordinator.stats.rollout.shadow.num_spec_steps > 0


def test_no_draft_is_waited_for(tokenizer: Tokenizer, cases: Cases) -> None:
    """Whatever the draft takes, or fails to do, each text takes as long as plain decoding."""
    requests, languages = without_k(cases)

    async def main(draft_s: float, reading: RolloutReading) -> tuple[float, Coordinator]:
        target = ScriptedExecutor(TARGET, by_prompt(languages), STEP_S)
        fails = (lambda _: "down") if draft_s == 0 else (lambda _: None)
        draft = drafting_for(target, 0.8, delay=draft_s, fails=fails)
        rollout = Rollout()
        coordinator = assemble(target, draft, tokenizer, rollout=rollout)
        rollout.take(reading)
        begin = asyncio.get_running_loop().time()
        for request in requests:
            await coordinator.complete(request)
        return asyncio.get_running_loop().time() - begin, coordinator

    plain = RolloutReading(RolloutState("speculate", 0.0))
    alone, _ = run_virtually(main(STEP_S, plain))
    for draft_s in (0.0, STEP_S, 7 * STEP_S, 1000.0):
        took, coordinator = run_virtually(main(draft_s, SHADOW))
        assert took == pytest.approx(alone)
        if draft_s == 0:
            assert coordinator.stats.rollout.shadow_fallbacks["draft_failed"] > 0
            assert draft_failures(coordinator.stats) == 0


def test_a_request_that_names_its_k_is_left_alone(tokenizer: Tokenizer, cases: Cases) -> None:
    requests, languages = cases
    named = [replace(request, num_draft_tokens=3) for request in requests], languages
    for reading in (SHADOW, RolloutReading(RolloutState("speculate", 0.0))):
        coordinator, _ = served(tokenizer, named, reading)
        assert counted(coordinator.stats).num_spec_steps > 50
        assert coordinator.stats.rollout.shadow.num_spec_steps == 0
        assert sum(arm.requests for arm in coordinator.stats.rollout.arms.values()) == 0


def test_the_arms_have_times_of_their_own(tokenizer: Tokenizer) -> None:
    """A target of 10 ms a step, and drafts of which all 5 tokens are accepted: six tokens take one step."""
    language = {1: lambda sequence: 64 + len(sequence) % 7}

    async def main() -> Coordinator:
        target = ScriptedExecutor(TARGET, by_prompt(language), STEP_S)
        draft = drafting_for(target, 1.0, delay=STEP_S / 1000)
        rollout = Rollout()
        coordinator = assemble(target, draft, tokenizer, num_draft_tokens=5, rollout=rollout)
        rollout.take(RolloutReading(RolloutState(share=0.5)))
        for user in map(str, range(40)):
            await coordinator.complete(
                CompletionRequest(prompt_token_ids=[1], max_tokens=61, user=user, end_id=-1)
            )
        return coordinator

    arms = run_virtually(main()).stats.rollout.arms
    assert arms["plain"].requests + arms["speculate"].requests == 40
    assert min(arms["plain"].requests, arms["speculate"].requests) > 8
    for name, seconds in (("plain", STEP_S), ("speculate", STEP_S / 6)):
        spread = arms[name].time_per_output_token
        assert (
            spread.cumulative()[-1] == arms[name].requests == arms[name].time_to_first_token.cumulative()[-1]
        )
        assert spread.sum / arms[name].requests == pytest.approx(seconds, rel=0.12)
        assert spread.squares == pytest.approx(spread.sum**2 / arms[name].requests, rel=0.01)


def test_a_request_that_times_out_in_the_queue_is_an_error_of_its_arm(tokenizer: Tokenizer) -> None:
    async def main() -> Rollout:
        target = ScriptedExecutor(TARGET, lambda sequence: 64, STEP_S)
        rollout, bounds = Rollout(), ServingBounds(max_places=1)
        coordinator = assemble(target, drafting_for(target, 1.0), tokenizer, bounds=bounds, rollout=rollout)
        rollout.take(RolloutReading(RolloutState(share=0.0)))
        slow = CompletionRequest(prompt_token_ids=[1], max_tokens=100, end_id=-1)
        running = asyncio.ensure_future(coordinator.complete(slow))
        await asyncio.sleep(STEP_S)
        with pytest.raises(TimedOut, match="in the queue"):
            await coordinator.complete(replace(slow, timeout_s=20 * STEP_S))
        await running
        return rollout

    plain = run_virtually(main()).stats.arms["plain"]
    assert (plain.requests, plain.failures) == (2, 1)
