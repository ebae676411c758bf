"""The plan of the demo pair, with and without what a bench has found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.command_line import trtspec
from tests.fakes.bench_result import result
from trtspec.deployment.rollout.bounds import FEWEST_WITHOUT_ERRORS, LEAST_REQUESTS
from trtspec.deployment.rollout.steps import STEPS
from trtspec.measure.bench.result import write

RECIPE = Path(__file__).parents[4] / "recipes/tiny/recipe.yaml"


def plan(*options: object, status: int = 0) -> dict[str, Any]:
    done = trtspec("rollout", "plan", RECIPE, "--json", *options)
    assert done.returncode == status, done.stderr
    said: dict[str, Any] = json.loads(done.stdout)
    return said


def test_each_stage_has_its_bounds_and_enough_requests_for_both_arms() -> None:
    stages = plan()["stages"]
    assert [stage["step"] for stage in stages] == [step.name for step in STEPS[1:]]
    for stage, step in zip(stages, STEPS[1:], strict=True):
        share = step.state.share
        assert stage["requests"] * share >= FEWEST_WITHOUT_ERRORS
        assert share == 1 or stage["requests"] * (1 - share) >= LEAST_REQUESTS
        assert {"requests", "acceptance", "errors"} <= set(stage["bounds"])
        compared = {"time per token", "first output"} <= set(stage["bounds"])
        assert compared == (step.name in ("5 %", "25 %", "50 %"))


def test_what_a_bench_has_found_is_settled(tmp_path: Path) -> None:
    rule = "faster with drafts than without"
    assert rule in [each["rule"] for each in plan()["unmeasured"]]
    write(result(), tmp_path / "good")
    found = plan("--measured", tmp_path / "good")
    assert found["words"] == result().verdict.words
    assert rule not in [each["rule"] for each in (*found["unmeasured"], *found["against"])]


def test_where_drafts_do_not_pay_there_is_nothing_to_roll_out(tmp_path: Path) -> None:
    write(result({1: 0.8, 8: 0.7}, "0.8x at 1 stream: switch it off"), tmp_path / "bad")
    found = plan("--measured", tmp_path / "bad", status=1)
    assert "faster with drafts than without" in [each["rule"] for each in found["against"]]


def test_its_steps_fit_a_terminal() -> None:
    done = trtspec("rollout", "plan", RECIPE)
    steps = done.stdout.partition("\nstep")[2]
    assert "shadow  50%, scored  536" in steps
    assert max(map(len, steps.splitlines())) <= 80
