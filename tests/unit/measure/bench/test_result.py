"""Results as JSON, and what they count."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.measure.bench.results import result
from trtspec.base.errors import MeasureError
from trtspec.forecast.rules import MeasuredRun
from trtspec.measure.bench.result import (
    RESULT,
    DraftAcceptance,
    OfferedLoad,
    measured_run,
    read,
    to_json,
    write,
)


def test_the_lowest_load_is_what_is_told() -> None:
    found = measured_run(result())
    assert found.answer_tokens == 128
    assert found.tokens_per_second == 300
    assert found.acceptance == pytest.approx((0.8, 0.75, 500 / 600, 0.8))
    assert found.accepted == pytest.approx(0.575)
    assert found.gpu_use is None
    assert (found.decision, found.words) == ("up_to", result().verdict.words)


def test_a_server_that_cannot_be_asked_without_drafts() -> None:
    whole = result()
    levels = tuple(replace(level, arms=replace(level.arms, plain=None)) for level in whole.levels)
    found = measured_run(replace(whole, levels=levels))
    assert found.tokens_per_second is None
    assert found.answer_tokens == 128


def test_nothing_was_measured() -> None:
    assert measured_run(replace(result(), levels=())) == MeasuredRun()


def test_a_written_bench_result_is_read_back_whole_or_partial(tmp_path: Path) -> None:
    whole = result()
    assert write(whole, tmp_path / "run") == tmp_path / "run" / RESULT
    assert read(tmp_path / "run") == whole
    partial = replace(whole, levels=(), is_partial=True)
    write(partial, tmp_path / "run")
    assert read(tmp_path / "run" / RESULT) == partial


def test_keys_of_a_later_trtspec_are_passed_over(tmp_path: Path) -> None:
    value = json.loads(to_json(result()))
    value["colour"] = value["levels"][0]["load"]["colour"] = "blue"
    (tmp_path / RESULT).write_text(json.dumps(value))
    assert read(tmp_path) == result()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "is not a result"),
        ("[]", "is not a result"),
        ('{"schema_version": 2}', "has schema version 2, but this trtspec reads 1"),
        ('{"schema_version": 1}', "is an incomplete result: server"),
        (None, "cannot be read: No such file"),
    ],
)
def test_a_file_that_is_no_bench_result_is_an_error(tmp_path: Path, text: str | None, problem: str) -> None:
    file = tmp_path / "a.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(MeasureError, match=problem):
        read(file)


def test_acceptance_by_position_is_that_of_dice() -> None:
    """Drafts of four tokens, each of which is accepted where those before were, at these chances."""
    chances, dice, counts = (0.9, 0.6, 0.8, 0.3), random.Random(1), [0, 0, 0, 0]
    for _ in range(50_000):
        for position, chance in enumerate(chances):
            if dice.random() >= chance:
                break
            counts[position] += 1
    found = DraftAcceptance(50_000, 200_000, sum(counts), tuple(counts))
    assert found.by_position == pytest.approx(chances, rel=0.03)
    assert found.tokens_per_verification == pytest.approx(1 + 0.9 + 0.54 + 0.432 + 0.1296, rel=0.01)
    assert found.shortened == 0


def test_nothing_drafted_divides_nothing() -> None:
    none = DraftAcceptance(0, 0, 0, ())
    assert (none.rate, none.tokens_per_verification, none.by_position, none.shortened) == (0, 0, (), 0)


def test_a_load_says_what_it_is() -> None:
    assert [
        str(OfferedLoad("streams", 1)),
        str(OfferedLoad("streams", 16)),
        str(OfferedLoad("rate", 2.5)),
    ] == [
        "1 stream",
        "16 streams",
        "2.5 requests/s",
    ]
