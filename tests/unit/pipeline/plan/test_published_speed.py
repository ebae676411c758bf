"""The forecast against what NVIDIA has published of pairs on H200, batch 1, drafts of 10 tokens.

"Boost Llama 3.3 70B Inference Throughput 3x with NVIDIA TensorRT-LLM Speculative Decoding" (2024-12-17) and
"TensorRT-LLM Speculative Decoding Boosts Inference Throughput by up to 3.6x" (2024-12-02); models and caches
in FP8, drafts on as many ranks as their target. Neither says how often drafts were accepted: 0.8 at each
position is assumed for all, the second highest of those that a plan shows. The constants of the forecast
are not fitted to it. `tests/perf/README.md` has the table, misses included.

Two more were published of a target alone, served by NIM 1.8.0 with TensorRT-LLM on two H100, one request at a
time: NVIDIA's "NIM for LLM Benchmarking Guide" 1.0.0, "Performance", Llama 3.3 70B in FP8, ms a token.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.fakes.published import COMMIT
from trtspec.backends.table import backend_named
from trtspec.checkpoint.convert_options import ConvertOptions, Mapping
from trtspec.forecast.outlook import ForecastPair
from trtspec.forecast.roofline import BatchLoad, Network, step
from trtspec.forecast.speedup import speedup
from trtspec.models.source import read_source
from trtspec.pipeline.engine.engine_options import BuildOptions
from trtspec.pipeline.plan.facts import ModelFacts
from trtspec.pipeline.plan.resolved import EnginePlan
from trtspec.pipeline.plan.speed import ROUND_S, chip, network
from trtspec.recipe.gpus import GPUS

LENGTH, ACCEPTANCE, LOAD = 10, 0.8, BatchLoad(sequences=1, context=1024)
TARGETS = {
    "70B": ("nvidia/Llama-3.3-70B-Instruct-FP8", 1),
    "405B": ("nvidia/Llama-3.1-405B-Instruct-FP8", 4),
}
DRAFTS = {
    "1B": "meta-llama/Llama-3.2-1B-Instruct",
    "3B": "meta-llama/Llama-3.2-3B-Instruct",
}


@dataclass(frozen=True)
class Result:
    """Tokens a second of the target alone and with the draft, as published and as forecast."""

    target: str
    draft: str
    published: tuple[float, float]
    forecast: tuple[float, float]


RESULTS = (
    Result("70B", "1B", (51.14, 181.74), (47.9, 146.3)),
    # These two are quoted from memory in secondary sources; the post's title confirms the 3.6x.
    Result("405B", "3B", (33.46, 120.75), (32.25, 98.1)),
)


def of(hub_cache: Path, name: str, tensor: int) -> Network:
    source = read_source(hub_cache / f"models--{name.replace('/', '--')}/snapshots" / COMMIT)
    options = BuildOptions(
        max_batch_size=1, max_input_len=2047, max_seq_len=2048, max_num_tokens=8192, max_draft_len=LENGTH
    )
    checkpoint = ConvertOptions("bfloat16", Mapping(tensor, 1), fp8=True, fp8_kv_cache=True)
    return network(
        EnginePlan(ModelFacts(name, None, source), None, checkpoint, options, backend_named("tensorrt_llm"))
    )


def pair(hub_cache: Path, target: str, draft: str) -> ForecastPair:
    name, tensor = TARGETS[target]
    networks = of(hub_cache, name, tensor), of(hub_cache, DRAFTS[draft], tensor)
    return ForecastPair(*networks, chip(GPUS["h200"]), ROUND_S["in_process"], LENGTH)


@pytest.mark.parametrize("result", RESULTS, ids=lambda result: f"{result.target} with {result.draft}")
def test_the_speed_forecast_agrees_with_the_published_results_of_nvidia(
    result: Result, hub_cache: Path
) -> None:
    found = pair(hub_cache, result.target, result.draft)
    plain = found.plain_tokens_per_second(LOAD)
    gain = speedup([ACCEPTANCE] * LENGTH, found.costs(LOAD, LENGTH))
    assert (plain, plain * gain) == pytest.approx(result.forecast, rel=0.005)
    assert plain == pytest.approx(result.published[0], rel=0.15)


@pytest.mark.parametrize(
    ("prompt", "answer", "published_ms", "forecast_ms"),
    [(5000, 500, 18.58, 16.30), (500, 2000, 18.91, 16.19)],
)
def test_a_step_of_tensorrt_llm(
    hub_cache: Path, prompt: int, answer: int, published_ms: float, forecast_ms: float
) -> None:
    """Held out: neither the constants nor the comparison above have seen them."""
    network = of(hub_cache, TARGETS["70B"][0], 2)
    load = BatchLoad(sequences=1, context=prompt + answer // 2)
    found_ms = step(network, chip(GPUS["h100"]), load).seconds * 1e3
    assert found_ms == pytest.approx(forecast_ms, rel=0.005)
    assert found_ms == pytest.approx(published_ms, rel=0.15)


def test_acceptance_that_would_explain_it(hub_cache: Path) -> None:
    """Between 0.8 and 0.87 at each position, under this model; the assumed 0.8 is too low for both."""
    for result in RESULTS:
        costs = pair(hub_cache, result.target, result.draft).costs(LOAD, LENGTH)
        gain = result.published[1] / result.published[0]
        assert speedup([0.8] * LENGTH, costs) < gain < speedup([0.87] * LENGTH, costs)
