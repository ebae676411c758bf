"""The model of a step against what can be reckoned by hand."""

from __future__ import annotations

from dataclasses import replace
from math import hypot

import pytest

from trtspec.forecast.roofline import BatchLoad, Chip, HardwareShare, Network, round_costs, step

ALL = HardwareShare(
    bandwidth=1.0,
    flops=1.0,
    link=1.0,
    layer_s=0.0,
    all_reduce_s=(0.0, 1.0),
    moved=0.0,
    errors=(0.1, 0.3),
    measured_on=(),
)
CHIP = Chip(bandwidth=1000.0, link=100.0, flops_16=50_000.0, flops_8=100_000.0, share=ALL)
TARGET = Network(
    weight_bytes=500.0,
    kv_bytes=1.0,
    flops_8=900.0,
    flops_16=50.0,
    attention_flops=0.5,
    layers=2,
    row_bytes=10.0,
)


def test_one_text_waits_for_the_memory() -> None:
    found = step(TARGET, CHIP, BatchLoad(sequences=1, context=100))
    assert (found.weights_s, found.keys_s) == (0.5, 0.1)
    assert found.multiplying_s == pytest.approx(900 / 100_000 + 50 / 50_000)
    assert found.seconds == pytest.approx(hypot(0.5, found.multiplying_s) + 0.1)
    assert found.bottleneck == "bandwidth"


def test_a_step_reads_the_experts_that_its_rows_choose() -> None:
    """Of 8 experts each row has 2: one row reads a quarter of them, and many read all."""
    experts = replace(TARGET, expert_bytes=400.0, chosen=2 / 8)

    def read(sequences: int, rows: int) -> float:
        return step(experts, CHIP, BatchLoad(sequences, context=0), rows).weights_s * 1000

    assert read(sequences=1, rows=1) == pytest.approx(100 + 400 * 2 / 8)
    assert read(sequences=1, rows=2) == pytest.approx(100 + 400 * (1 - (6 / 8) ** 2))
    assert (
        read(sequences=2, rows=3)
        == read(sequences=1, rows=6)
        == pytest.approx(100 + 400 * (1 - (6 / 8) ** 6))
    )
    assert read(sequences=64, rows=4) == pytest.approx(500)


def test_many_rows_wait_for_the_multiplication_and_round_the_corner_for_both() -> None:
    found = step(TARGET, CHIP, BatchLoad(sequences=16, context=0), rows=9)
    multiplying = 16 * 9 * (900 / 100_000 + 50 / 50_000)
    assert found.seconds == pytest.approx(hypot(0.5, multiplying))
    assert found.bottleneck == "flops"
    corner = step(TARGET, CHIP, BatchLoad(sequences=50, context=0)).seconds
    assert corner == pytest.approx(0.5 * 2**0.5)


def test_a_step_includes_the_fixed_time_of_each_layer_and_what_its_rows_move() -> None:
    share = replace(ALL, bandwidth=0.5, flops=0.5, layer_s=0.01, moved=7)
    one = step(TARGET, replace(CHIP, share=share), BatchLoad(sequences=1, context=0))
    assert one.rest_s == pytest.approx(2 * (0.01 + 7 * 10 / 1000))
    assert one.seconds == pytest.approx(hypot(1.0, 2 * 0.01) + one.rest_s)


@pytest.mark.parametrize(("rows", "seconds"), [(1, 0.002 + 3 * 10 / 50), (100, 0.9 + 2 * 3 / 4 * 1000 / 50)])
def test_ranks_exchange_few_rows_at_once_and_many_in_two_parts(rows: int, seconds: float) -> None:
    share = replace(ALL, link=0.5, all_reduce_s=(0.002, 0.9))
    ranks = replace(TARGET, tensor=4)
    found = step(ranks, replace(CHIP, share=share), BatchLoad(sequences=rows, context=0))
    assert found.rest_s == pytest.approx(2 * 2 * seconds)


def test_pipeline_ranks_work_one_after_another() -> None:
    stages = replace(TARGET, pipeline=2)
    alone, several = BatchLoad(sequences=1, context=100), BatchLoad(sequences=4, context=100)
    assert step(stages, CHIP, alone) == step(TARGET, CHIP, alone)
    assert step(stages, CHIP, several) == step(TARGET, CHIP, BatchLoad(sequences=2, context=100))


def test_a_round_in_plain_steps() -> None:
    draft, load = replace(TARGET, weight_bytes=50.0, layers=1), BatchLoad(sequences=1, context=0)
    plain = step(TARGET, CHIP, load).seconds
    costs = round_costs(TARGET, draft, CHIP, load, 4, overhead_s=plain / 10)
    assert costs.draft == pytest.approx(step(draft, CHIP, load).seconds / plain)
    assert costs.overhead == pytest.approx(0.1)
    assert costs.verified < 0.002  # five rows nearly hide behind the weights
    assert round_costs(TARGET, None, CHIP, load, 4, 0.0).of(4) == pytest.approx(1, abs=0.01)
    busy = BatchLoad(sequences=64, context=0)
    costs = round_costs(TARGET, draft, CHIP, busy, 4, 0.0)
    assert costs.of(4) == pytest.approx(
        (4 * step(draft, CHIP, busy).seconds + step(TARGET, CHIP, busy, 5).seconds)
        / step(TARGET, CHIP, busy).seconds
    )
    assert costs.verified > 0.5


def test_a_gpu_without_measured_kernels_is_twice_as_doubtful() -> None:
    assert [CHIP.error(ranks) for ranks in (1, 2, 8)] == [0.1, 0.3, 0.3]
    assert replace(CHIP, is_measured=False).error(2) == 0.6
