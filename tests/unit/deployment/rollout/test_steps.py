"""The steps of a roll-out, its plan, and the file that says which step holds."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.bench_result import result
from tests.support.command_line import trtspec
from trtspec.base.errors import UnavailableError
from trtspec.deployment.rollout import steps
from trtspec.deployment.rollout.bounds import FEWEST_WITHOUT_ERRORS, LEAST_REQUESTS
from trtspec.deployment.rollout.steps import ALL, OFF, STEPS, RolloutRecord, read_record, write_record
from trtspec.measure.bench.result import write
from trtspec.serving.rollout.state import RolloutFile, RolloutReading, RolloutState

states = st.builds(RolloutState, st.sampled_from(["speculate", "shadow"]), st.floats(0, 1))


def test_each_leads_to_the_next_and_back() -> None:
    names = [step.name for step in STEPS]
    assert names == ["off", "shadow", "5 %", "25 %", "50 %", "all"]
    for low, high in pairwise(STEPS):
        assert steps.after(low.state) is high
        assert steps.before(high.state) is low
    assert (steps.before(OFF.state), steps.after(ALL.state)) == (None, None)
    assert [steps.name_of(step.state) for step in STEPS] == names


@given(states)
def test_anywhere_else_is_between_two_of_them(state: RolloutState) -> None:
    """Going on never gives drafts to fewer, going back never to more."""
    after, before = steps.after(state), steps.before(state)
    share = state.share_of("speculate")
    assert after is None or after.state.share_of("speculate") >= share
    assert before is None or before.state.share_of("speculate") <= share
    assert before != after
    assert (after is None) == (share == 1)
    assert (before is None) == (state.share == 0)


def test_a_share_that_is_no_step_has_a_name() -> None:
    assert steps.name_of(RolloutState("speculate", 0.1)) == "10 %"
    assert steps.name_of(RolloutState("shadow", 0.125)) == "shadow 12.5 %"
    assert steps.after(RolloutState("speculate", 0.1)) is STEPS[3]
    assert steps.before(RolloutState("speculate", 0.1)) is STEPS[2]


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


def test_a_bench_result_settles_the_rule_on_speed_in_the_plan(tmp_path: Path) -> None:
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


OLD = RolloutRecord(RolloutState("shadow", 0.5), "2026-01-01T00:00:00Z", {"a": 1.5, "b{plain}": 2.0})
NEW = RolloutRecord(
    RolloutState(share=0.25), "2026-01-02T00:00:00Z", {f"name-{n}": float(n) for n in range(300)}
)
WRITER = """
import sys
from pathlib import Path
from tests.unit.deployment.rollout.test_steps import NEW, OLD
from trtspec.deployment.rollout.steps import write_record
print("begun", flush=True)
while True:
    for state in (NEW, OLD):
        write_record(Path(sys.argv[1]), state)
"""


def test_a_written_rollout_record_is_read_back_by_both_sides(tmp_path: Path) -> None:
    path = tmp_path / "rollout.json"
    assert read_record(path) is None
    for each in (OLD, NEW, replace(OLD, counted=None)):
        write_record(path, each)
        assert read_record(path) == each
        assert RolloutFile(path).look() == RolloutReading(each.state)


def test_a_file_of_somebody_else_has_no_past(tmp_path: Path) -> None:
    """As a ConfigMap would be written by hand."""
    path = tmp_path / "rollout.json"
    path.write_text('{"version": 1, "mode": "speculate", "share": 0.1, "since": 5, "counted": ["x"]}')
    assert read_record(path) == RolloutRecord(RolloutState(share=0.1))


def test_a_broken_one_is_an_error_that_names_it(tmp_path: Path) -> None:
    path = tmp_path / "rollout.json"
    path.write_text("{")
    with pytest.raises(UnavailableError, match="is not JSON") as raised:
        read_record(path)
    assert raised.value.subject == str(path)
    assert "rollout off" in (raised.value.repair or "")


def test_a_writer_that_is_killed_leaves_the_old_or_the_new(tmp_path: Path) -> None:
    """Killed at any moment of many writes; meanwhile the file is never anything else."""
    path, dice = tmp_path / "rollout.json", random.Random(2)
    write_record(path, OLD)
    for _ in range(6):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE)
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"begun\n"
        seen, until = set[bool](), time.monotonic() + dice.uniform(0.01, 0.1)
        while time.monotonic() < until or len(seen) < 2:
            found = read_record(path)
            assert found in (OLD, NEW)
            seen.add(found == NEW)
        os.kill(writer.pid, signal.SIGKILL)
        writer.communicate()
        assert read_record(path) in (OLD, NEW)
        # What it left half-made is in nobody's way.
        write_record(path, OLD)
        assert read_record(path) == OLD


def test_two_who_move_wait_for_each_other(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from trtspec.deployment.rollout.steps import locked\n"
        "with locked(Path(sys.argv[1])): print('has it', flush=True); sys.stdin.readline()\n"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdout is not None
    holder.stdout.readline()
    other = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert other.stdout is not None
    with pytest.raises(subprocess.TimeoutExpired):
        other.wait(1.0)
    holder.kill()  # The kernel frees what it held.
    holder.communicate()
    assert other.stdout.readline() == b"has it\n"
    other.communicate(b"\n")
    assert other.returncode == 0
