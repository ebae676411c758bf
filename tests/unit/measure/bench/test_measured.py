from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.measure.bench.results import result
from trtspec.forecast.rules import MeasuredRun
from trtspec.measure.bench.result import measured_run


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
