"""What was measured is found again, and what was half written is not."""

from __future__ import annotations

from pathlib import Path

from tests.unit.train.tune.made import costs
from trtspec.train.tune.cache import TuneCache


def test_choices_are_found_again_but_for_the_one_that_broke_off(tmp_path: Path) -> None:
    kept = TuneCache(tmp_path / "work")
    choices = kept.choices("draft", (7,))
    choices.put("first", [1, 2])
    choices.put("second", [3, -1])
    (file,) = (tmp_path / "work").iterdir()
    file.write_bytes(file.read_bytes()[:-3])
    again = kept.choices("draft", (7,))
    assert (again.get("first"), again.get("second")) == ([1, 2], None)
    again.put("second", [4])
    last = kept.choices("draft", (7,))
    assert (last.get("first"), last.get("second")) == ([1, 2], [4])
    assert kept.choices("other", (7,)).get("first") is None
    assert kept.choices("draft", (8,)).get("first") is None


def test_costs_are_those_of_what_they_were_measured_of(tmp_path: Path) -> None:
    kept, measured = TuneCache(tmp_path / "work"), costs(0.2, error=0.01)
    kept.put_costs(measured, "here", 1, ["a"])
    assert kept.costs("here", 1, ["a"]) == measured
    assert kept.costs("here", 2, ["a"]) is None
