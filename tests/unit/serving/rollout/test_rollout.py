"""Who has drafts at which share, and what a file may say."""

from __future__ import annotations

import json
import logging
import math
from array import array
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtspec.serving.errors import RolloutError
from trtspec.serving.rollout.rollout import Rollout
from trtspec.serving.rollout.state import (
    PLAIN,
    SHADOW,
    SPECULATE,
    RolloutFile,
    RolloutReading,
    RolloutState,
    parse,
    position_of,
)

NOTHING = memoryview(b"")
shares = st.floats(0, 1)


def prompt(*token_ids: int) -> memoryview:
    return memoryview(array("i", token_ids))


@given(st.text(), st.text(min_size=1), st.tuples(shares, shares))
def test_who_is_in_stays_in_at_every_larger_share(tenant: str, user: str, two: tuple[float, float]) -> None:
    place = position_of(tenant, user, NOTHING)
    assert 0 <= place < 1
    smaller, larger = sorted(two)
    if RolloutState(share=smaller).arm(place) == SPECULATE:
        assert RolloutState(share=larger).arm(place) == SPECULATE
    assert RolloutState(share=0.0).arm(place) == PLAIN
    assert RolloutState("shadow", 1.0).arm(place) == SHADOW


@given(st.lists(st.integers(0, 2**31 - 1)), st.lists(st.integers(0, 2**31 - 1)))
def test_a_user_has_one_place_and_a_prompt_another(first: list[int], second: list[int]) -> None:
    assert position_of("one", "ann", prompt(*first)) == position_of("one", "ann", prompt(*second))
    assert position_of("one", "ann", NOTHING) != position_of("two", "ann", NOTHING)
    assert (position_of("", "", prompt(*first)) == position_of("", "", prompt(*second))) == (first == second)


@pytest.mark.parametrize("share", [0.01, 0.05, 0.25, 0.5])
@pytest.mark.parametrize("by", ["user", "prompt"])
def test_the_share_is_the_one_that_was_asked_for(share: float, by: str) -> None:
    """Of 20,000 users who are counted through, as many as chance allows: five standard deviations."""
    number, state = 20_000, RolloutState(share=share)
    places = (
        position_of("", f"user-{n}", NOTHING) if by == "user" else position_of("", "", prompt(1, 2, n))
        for n in range(number)
    )
    found = sum(state.arm(place) == SPECULATE for place in places)
    assert abs(found - share * number) < 5 * math.sqrt(number * share * (1 - share))


@pytest.mark.parametrize("mode", ["speculate", "shadow"])
@pytest.mark.parametrize("share", [0, 0.25, 1])
def test_a_file_says_a_state_and_may_say_more(mode: Any, share: float) -> None:
    said = {"version": 1, "mode": mode, "share": share, "since": "yesterday"}
    assert parse(json.dumps(said)) == RolloutState(mode, share)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "not a JSON object"),
        ("{}", "version is None"),
        ('{"version": 2, "mode": "speculate", "share": 1}', "version is 2"),
        ('{"version": 1, "mode": "all", "share": 1}', "mode is 'all'"),
        ('{"version": 1, "mode": [], "share": 1}', "mode is"),
        ('{"version": 1, "mode": "shadow"}', "share is None"),
        ('{"version": 1, "mode": "shadow", "share": true}', "share is True"),
        ('{"version": 1, "mode": "shadow", "share": "1"}', "share is '1'"),
        ('{"version": 1, "mode": "shadow", "share": 1.01}', "share is 1.01"),
        ('{"version": 1, "mode": "shadow", "share": -0.1}', "share is -0.1"),
        ('{"version": 1, "mode": "shadow", "share": NaN}', "share is nan"),
        ('{"version": 1, "mode": "shadow", "share": 1e999}', "share is inf"),
    ],
)
def test_a_malformed_rollout_is_refused_with_the_reason(text: str, problem: str) -> None:
    with pytest.raises(RolloutError, match=problem.replace("[", r"\[")):
        parse(text)


@given(st.text() | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps))
def test_nothing_else_is_ever_raised(text: str) -> None:
    with pytest.raises(RolloutError):
        parse(text)


HALF = '{"version": 1, "mode": "speculate", "share": 0.5}'
SHADOW_FILE = '{"version": 1, "mode": "shadow", "share": 0.5}'


def put(path: Path, text: str) -> None:
    """As every writer must: whole, by a rename."""
    made = path.with_name(".new")
    made.write_text(text)
    made.rename(path)


def test_each_change_is_seen_once(tmp_path: Path) -> None:
    path = tmp_path / "rollout.json"
    file = RolloutFile(path)
    assert [file.look(), file.look()] == [RolloutReading(), None]
    put(path, HALF)
    assert [file.look(), file.look()] == [RolloutReading(RolloutState(share=0.5)), None]
    put(path, SHADOW_FILE)
    assert [file.look(), file.look()] == [RolloutReading(RolloutState("shadow", 0.5)), None]
    path.unlink()
    assert [file.look(), file.look()] == [RolloutReading(), None]


def test_a_config_map_is_swapped_under_its_path(tmp_path: Path) -> None:
    """`..data` leads to the folder of each version, as in kubelet's `pkg/volume/util/atomic_writer.go`."""
    for name, text in (("..1", HALF), ("..2", SHADOW_FILE)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "rollout.json").write_text(text)
    data, path = tmp_path / "..data", tmp_path / "rollout.json"
    data.symlink_to("..1")
    path.symlink_to("..data/rollout.json")
    file = RolloutFile(path)
    assert file.look() == RolloutReading(RolloutState(share=0.5))
    (tmp_path / "..new").symlink_to("..2")
    (tmp_path / "..new").rename(data)
    assert [file.look(), file.look()] == [RolloutReading(RolloutState("shadow", 0.5)), None]


def test_an_unreadable_rollout_file_is_reported_as_a_problem_without_an_exception(tmp_path: Path) -> None:
    path = tmp_path / "rollout.json"
    path.mkdir()
    reading = RolloutFile(path).look()
    assert reading is not None
    assert "cannot be read: Is a directory" in reading.problem
    assert RolloutFile(path / "below" / "file").look() == RolloutReading()
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    reading = RolloutFile(loop).look()
    assert reading is not None
    assert "symbolic links" in reading.problem


def test_a_broken_file_changes_nothing_and_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, rollout = tmp_path / "rollout.json", Rollout()
    file, stats = RolloutFile(path), rollout.stats

    def look() -> None:
        if reading := file.look():
            rollout.take(reading)

    look()
    assert (rollout.is_on, rollout.state) == (False, RolloutState())
    put(path, HALF)
    look()
    assert (rollout.is_on, stats.speculation_share, stats.shadow_share) == (True, 0.5, 0.0)
    put(path, HALF[:-10])
    with caplog.at_level(logging.ERROR):
        for _ in range(5):
            look()
    assert (len(caplog.records), stats.is_malformed) == (1, True)
    assert "is not JSON" in caplog.text
    assert rollout.state == RolloutState(share=0.5)
    put(path, SHADOW_FILE)
    look()
    assert (stats.is_malformed, stats.speculation_share, stats.shadow_share) == (False, 0.0, 0.5)
    path.unlink()
    look()
    assert (rollout.is_on, rollout.state) == (False, RolloutState())


def test_without_a_file_the_recipes_share_counts() -> None:
    rollout = Rollout(0.25)
    assert (rollout.is_on, rollout.state) == (True, RolloutState(share=0.25))
    rollout.take(RolloutReading(RolloutState(share=1.0)))
    rollout.take(RolloutReading())
    assert rollout.state == RolloutState(share=0.25)
