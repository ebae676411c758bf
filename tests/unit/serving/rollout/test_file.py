"""The file as it changes under a server: replaced, swapped as a ConfigMap, broken, gone."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from trtspec.serving.rollout.rollout import Rollout
from trtspec.serving.rollout.state import RolloutFile, RolloutReading, RolloutState

HALF = '{"version": 1, "mode": "speculate", "share": 0.5}'
SHADOW = '{"version": 1, "mode": "shadow", "share": 0.5}'


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
    put(path, SHADOW)
    assert [file.look(), file.look()] == [RolloutReading(RolloutState("shadow", 0.5)), None]
    path.unlink()
    assert [file.look(), file.look()] == [RolloutReading(), None]


def test_a_config_map_is_swapped_under_its_path(tmp_path: Path) -> None:
    """`..data` leads to the folder of each version, as in kubelet's `pkg/volume/util/atomic_writer.go`."""
    for name, text in (("..1", HALF), ("..2", SHADOW)):
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


def test_what_cannot_be_read_is_a_problem_and_no_exception(tmp_path: Path) -> None:
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
    put(path, SHADOW)
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
