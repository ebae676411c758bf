"""What a step of a published model reads and computes, by hand from its config."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes.published import QWEN3_30B_A3B, write_weights
from trtspec.backends.table import backend_named
from trtspec.base.roles import Role
from trtspec.checkpoint.convert_options import ConvertOptions
from trtspec.forecast.roofline import Network
from trtspec.models.published import CONFIGS
from trtspec.models.source import read_source
from trtspec.pipeline.build.plan import make_plan
from trtspec.pipeline.engine.engine_options import BuildOptions
from trtspec.pipeline.plan.facts import ModelFacts
from trtspec.pipeline.plan.resolved import EnginePlan, Resolved
from trtspec.pipeline.plan.speed import chip, network, source, unforeseeable
from trtspec.recipe.gpus import GPUS

RECIPES = Path(__file__).parents[4] / "recipes"
VOCABULARY, HIDDEN, INNER, LAYERS = 128256, 8192, 28672, 80


def resolved(recipe: Path) -> Resolved:
    return make_plan(recipe).resolved


def test_llama_70b_in_fp8(hub_cache: Path) -> None:
    attention = HIDDEN * (HIDDEN + 2 * 8 * 128) + HIDDEN * HIDDEN
    linear = LAYERS * (attention + 3 * HIDDEN * INNER)
    head, norms = VOCABULARY * HIDDEN, (2 * LAYERS + 1) * HIDDEN
    found = network(resolved(RECIPES / "llama-3.3-70b-h200.yaml").target)
    assert found == Network(
        weight_bytes=linear + 2 * head + 2 * norms,
        kv_bytes=2 * LAYERS * 8 * 128,
        flops_8=2 * linear,
        flops_16=2 * head,
        attention_flops=4 * LAYERS * 64 * 128,
        layers=LAYERS,
        row_bytes=2 * HIDDEN,
    )
    config = CONFIGS["nvidia/Llama-3.3-70B-Instruct-FP8"]
    assert (config["hidden_size"], config["intermediate_size"]) == (HIDDEN, INNER)


def test_ranks_share_one_model(hub_cache: Path, tmp_path: Path) -> None:
    one = network(resolved(RECIPES / "llama-3.3-70b-h200.yaml").target)
    two = network(resolved(RECIPES / "llama-3.3-70b-2xh100.yaml").target)
    assert (two.tensor, two.flops_8, two.kv_bytes) == (2, one.flops_8, one.kv_bytes)
    assert two.weight_bytes - one.weight_bytes == 2 * (2 * LAYERS + 1) * HIDDEN  # norms are on both


def test_one_row_of_a_mixture_reads_what_is_active(tmp_path: Path) -> None:
    """Qwen3 30B-A3B has 30,532,122,624 parameters; 8 of 128 experts, and all else, are 3,353,032,704."""
    write_weights(tmp_path, QWEN3_30B_A3B)
    source, sizes = read_source(tmp_path), BuildOptions(1, 99, 100, 100)
    options = ConvertOptions("bfloat16")
    found = network(
        EnginePlan(ModelFacts("model", None, source), None, options, sizes, backend_named("tensorrt_llm"))
    )
    assert (source.parameters, source.active_parameters) == (30_532_122_624, 3_353_032_704)
    table, routers, norms = 151936 * 2048, 48 * 128 * 2048, 48 * (2 * 2048 + 2 * 128) + 2048
    assert found.weight_bytes == 2 * (30_532_122_624 - table + routers)
    assert found.weight_bytes_of(1) == pytest.approx(2 * (3_353_032_704 - table + routers))
    # Routers are not counted as work, nor are norms and the table of embeddings.
    assert found.flops_16 == pytest.approx(2 * (3_353_032_704 - table - routers - norms))
    assert found.weight_bytes_of(5) == pytest.approx(3.02 * found.weight_bytes_of(1), rel=0.01)


def test_a_tied_head_is_read_and_its_table_is_not(hub_cache: Path) -> None:
    draft = network(resolved(RECIPES / "llama-3.3-70b-h200.yaml").engines[Role.DRAFT])
    published = 1_235_814_400  # parameters of Llama 3.2 1B by its card
    assert draft.weight_bytes == 2 * published
    assert draft.flops_8 == 0


@pytest.mark.parametrize(
    ("gpu", "tflops", "gb_s"), [("h200", 1979, 4800), ("h100", 1979, 3350), ("b200", 4500, 8000)]
)
def test_gpus_are_as_on_their_data_sheets(gpu: str, tflops: float, gb_s: int) -> None:
    assert (GPUS[gpu].tflops_8, GPUS[gpu].bandwidth_gb_s) == (tflops, gb_s)
    for found in GPUS.values():
        assert (found.tflops_8 is not None) == found.fp8
        assert not found.tflops_8 or found.tflops_8 == pytest.approx(2 * found.tflops_16, rel=0.02)


def test_a_draft_on_the_processor_has_no_speed_forecast(hub_cache: Path, tmp_path: Path) -> None:
    text = (RECIPES / "llama-3.3-70b-h200.yaml").read_text()
    assert unforeseeable(resolved(RECIPES / "llama-3.3-70b-h200.yaml")) is None
    on_cpu = tmp_path / "cpu.yaml"
    on_cpu.write_text(text.replace("\ndraft:\n", "\ndraft:\n  device: cpu\n"))
    reason = unforeseeable(resolved(on_cpu))
    assert reason is not None
    assert "a draft on the CPU" in reason


def test_each_gpu_says_where_its_constants_are_from() -> None:
    assert (
        source(GPUS["h200"])
        == "rates: NVIDIA's data sheet of H200; shares: kernels that NVIDIA measured on it"
    )
    assert source(GPUS["gh200"]).endswith("measured on h100 and h200")
    assert chip(GPUS["gh200"]).error(1) == 2 * chip(GPUS["h200"]).error(1)
    assert all(source(gpu) for gpu in GPUS.values())
