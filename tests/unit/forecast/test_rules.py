from __future__ import annotations

from dataclasses import replace

import pytest

from trtspec.forecast.rules import (
    Expected,
    Judgement,
    MeasuredRun,
    PairFacts,
    RuleAdvice,
    advise,
    mean_acceptance,
)
from trtspec.forecast.speedup import tokens_per_round

FACTS = PairFacts(
    target_parameters=70 * 10**9,
    draft_parameters=3 * 10**9,
    draft_bytes=6 * 10**9,
    length=6,
    max_batch_size=16,
    requests=20,
    expected=Expected(0.1, (4, 7), 0.15, 50.0, "bandwidth"),
)
MEASURED = MeasuredRun(
    answer_tokens=200,
    gpu_use=0.3,
    acceptance=(0.8, 0.75, 0.7, 0.65),
    accepted=0.6,
    tokens_per_second=48.0,
    decision="on",
    words="1.9x at 1 stream",
)


def rule(advice: RuleAdvice, begins: str) -> Judgement:
    (found,) = [one for one in (*advice.rules, *advice.checklist) if one.rule.startswith(begins)]
    return found


def test_rules_that_only_a_run_can_judge_stay_unmeasured_without_one() -> None:
    before, after = advise(FACTS, None), advise(FACTS, MEASURED)
    unmeasured = [one.rule for one in before.rules if one.verdict == "unmeasured"]
    assert len(unmeasured) == 4
    assert all("trtspec bench" in rule(before, name).then for name in unmeasured)
    assert not [one for one in after.rules if one.verdict == "unmeasured"]
    assert before.words.startswith(
        "worth a measurement: gains for one stream from acceptance 0.15 on; 4 rules"
    )
    assert after.words == "1.9x at 1 stream"


def test_room_that_is_not_known_is_not_short() -> None:
    advice = advise(replace(FACTS, requests=None, rolls_out=False), None)
    assert rule(advice, "memory").verdict == "unmeasured"
    assert rule(advice, "tuning").number == "K up to 6"
    assert advice.words.startswith("worth a measurement")
    assert "--plain" in rule(advice, "rollout").then


def test_a_roll_out_is_told_once_it_has_begun() -> None:
    before, after = (rule(advise(replace(FACTS, rollout=at), None), "rollout") for at in (None, "25 %"))
    assert (before.verdict, before.number) == ("unmeasured", "")
    assert (after.verdict, after.number) == ("yes", "at step 25 %")


@pytest.mark.parametrize(
    ("parameters", "verdict", "number"),
    [(7 * 10**9, "yes", "1/10"), (3 * 10**9, "yes", "1/23"), (8 * 10**9, "no", "1/9"), (10**9, "no", "1/70")],
)
def test_a_tenth_to_a_fiftieth(parameters: int, verdict: str, number: str) -> None:
    found = rule(advise(replace(FACTS, draft_parameters=parameters), None), "draft of 1/10")
    assert (found.verdict, found.number) == (verdict, number)
    assert bool(found.then) == (verdict == "no")


def test_without_a_draft_model_nothing_is_said_of_its_size() -> None:
    facts = replace(FACTS, draft_parameters=None, draft_bytes=None)
    assert not [one for one in advise(facts, None).rules if one.rule.startswith("draft ")]
    assert rule(advise(facts, None), "drafts: acceptance").number == "looked up in the text"


def test_k_of_four_to_eight() -> None:
    assert rule(advise(FACTS, None), "K of").verdict == "yes"
    long = rule(advise(replace(FACTS, length=10), None), "K of")
    assert (long.verdict, long.number) == ("no", "up to 10, each 0.10 of a step")
    assert "best 4 to 7" in long.then
    short = rule(advise(replace(FACTS, length=2), None), "K of")
    assert (short.verdict, short.then.rpartition("; ")[2]) == ("no", "max_draft_len 7 allows it")


def test_memory_pressure_means_batching() -> None:
    advice = advise(replace(FACTS, requests=12), None)
    assert rule(advice, "memory").verdict == "no"
    assert advice.words == "batch instead: the KV cache holds 12 of 16 requests"
    unfit = advise(replace(FACTS, requests=0, problem="too large"), MEASURED)
    assert unfit.words == "does not fit: too large"


@pytest.mark.parametrize(
    ("use", "verdict", "then"),
    [(0.49, "yes", ""), (0.5, "no", "break-even decides"), (0.8, "no", "decides"), (0.81, "no", "batch")],
)
def test_gpu_use(use: float, verdict: str, then: str) -> None:
    found = rule(advise(FACTS, replace(MEASURED, gpu_use=use)), "GPU busy")
    assert found.verdict == verdict
    assert then in found.then


def test_a_busy_gpu_means_batching_until_break_even_is_measured() -> None:
    busy = replace(MEASURED, gpu_use=0.9, decision="unmeasured", words="")
    assert advise(FACTS, busy).words.startswith("batch instead: the GPU is busy for 90%")
    assert advise(FACTS, replace(MEASURED, gpu_use=0.9)).words == MEASURED.words


def test_an_idle_gpu_and_long_answers_mean_on() -> None:
    seen = replace(MEASURED, decision="unmeasured", words="")
    assert advise(FACTS, seen).words == "on, by the rules: the GPU is busy for 30%, answers have 200 tokens"
    assert not advise(FACTS, replace(seen, answer_tokens=50)).words.startswith("on")
    assert not advise(FACTS, replace(seen, gpu_use=0.6)).words.startswith("on")


def test_answers_of_over_a_hundred_tokens() -> None:
    short, long = (advise(FACTS, replace(MEASURED, answer_tokens=tokens)) for tokens in (100, 101))
    assert (rule(short, "answers").verdict, rule(long, "answers").verdict) == ("no", "yes")


def test_acceptance_in_a_domain() -> None:
    low, poor = (
        rule(advise(FACTS, replace(MEASURED, acceptance=(share,) * 4)), "acceptance")
        for share in (0.55, 0.45)
    )
    assert (low.verdict, poor.verdict) == ("no", "no")
    assert low.number == "55% a position, 60% of all drafted"
    assert "overhead can eat the gain" in poor.then


def test_one_probability_for_all_positions() -> None:
    mixed = (0.9, 0.7, 0.5, 0.3)
    same = mean_acceptance(mixed)
    assert tokens_per_round([same] * 4) == pytest.approx(tokens_per_round(mixed), abs=1e-4)


def test_a_measured_loss_is_off_whatever_the_rules_say() -> None:
    off = advise(FACTS, replace(MEASURED, decision="off", words="0.8x everywhere"))
    assert rule(off, "faster with").verdict == "no"
    assert off.words == "0.8x everywhere"


def test_drafts_that_can_never_gain_are_off() -> None:
    never = replace(FACTS, expected=Expected(1.2, (0, 0), None, 50.0, "bandwidth"))
    assert advise(never, None).words == "off: even drafts that are always right would gain nothing"


def test_an_engine_that_drafts_by_itself_has_a_tree_and_no_k() -> None:
    facts = replace(FACTS, draft_parameters=None, draft_bytes=None, expected=None, inside=63)
    advice = advise(facts, None)
    assert not [one for one in (*advice.rules, *advice.checklist) if "acceptance" in one.rule]
    assert not [one for one in advice.rules if one.rule.startswith("K ")]
    tuning, rollout = rule(advice, "tuning"), rule(advice, "rollout")
    assert (tuning.number, tuning.verdict) == (
        "63 drafted tokens a step, 20 requests at full length",
        "unmeasured",
    )
    assert "a canary beside the old build" in rollout.then
