"""The constants of the roofline are what two published tables say, and nothing else."""

from __future__ import annotations

from statistics import median

import numpy as np
import pytest

from trtspec.forecast.roofline import PUBLISHED
from trtspec.recipe.gpus import GPUS

GPT_FAST = (
    # layers, ranks, tokens/s, GB/s that each rank reads
    (32, 1, 104.90, 1397.31),
    (32, 2, 168.84, 1181.99),
    (32, 4, 254.02, 955.83),
    (32, 8, 328.43, 704.10),
    (80, 2, 21.32, 1481.87),
    (80, 4, 38.01, 1340.76),
    (80, 8, 62.50, 1135.29),
)
"""gpt-fast's README: Llama 2 7B and 70B in bfloat16 on A100-80GB, batch 1."""

DEEP_GEMM = (1058, 990, 590, 1358, 1304, 1025)
"""TFLOPS of DeepGEMM's first README: FP8 products of 4,096 rows on an H800."""


def test_reading_layers_and_ranks() -> None:
    peak = GPUS["a100"].bandwidth_gb_s
    seconds = np.array([1 / speed for *_, speed, _ in GPT_FAST])
    parts = np.array(
        [(read / speed / peak, layers, 2 * layers * (ranks > 1)) for layers, ranks, speed, read in GPT_FAST]
    )
    found = np.linalg.lstsq(parts / seconds[:, None], np.ones(len(seconds)), rcond=None)[0]
    assert 1 / found[0] == pytest.approx(PUBLISHED.bandwidth, abs=0.005)
    assert found[1] == pytest.approx(PUBLISHED.layer_s, abs=0.5e-6)
    assert found[2] == pytest.approx(PUBLISHED.all_reduce_s, abs=0.05e-6)
    assert np.abs(parts @ found / seconds - 1).max() < 0.033


def test_multiplying() -> None:
    peak = GPUS["h100"].tflops_8
    assert peak is not None
    assert median(DEEP_GEMM) / peak == pytest.approx(PUBLISHED.flops, abs=0.005)
