"""`trtllm-build` for the engines of typical recipes, to the letter and for every release.

UPDATE_GOLDEN=1 writes them anew. A new one is first accepted by the release's own parser, as far as the
stand-in has it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.fakes.trtllm_build import parser
from trtspec.backends.table import load
from trtspec.backends.tensorrt_llm.engine_step import build_argv
from trtspec.base.roles import Role
from trtspec.models.source import Scheme, read_source
from trtspec.pipeline.build.plan import resolve
from trtspec.pipeline.machine.host import Host
from trtspec.pipeline.plan.facts import ModelFacts, PlanFacts
from trtspec.recipe.releases import RELEASES

FP8 = "quantization: {weights: fp8, kv_cache: fp8}"
RECIPES = {
    "bf16-1xh100": """
target: {model: ./target}
draft: {model: ./draft}
hardware: {gpu: h100}
""",
    "fp8-1xh200": f"""
target: {{model: ./target, {FP8}}}
draft: {{model: ./draft, {FP8}}}
speculation: {{max_draft_len: 10}}
engine: {{max_batch_size: 32, max_seq_len: 16384}}
hardware: {{gpu: h200}}
""",
    "fp8-8xh200": f"""
target: {{model: ./target, {FP8}, parallel: {{tensor: 8}}}}
draft: {{model: ./draft, {FP8}}}
hardware: {{gpu: h200, count: 8}}
""",
    "fp8-weights-2xl40s": """
target: {model: ./target, quantization: {weights: fp8}, parallel: {tensor: 2}}
draft: {model: ./draft, dtype: float16}
hardware: {gpu: l40s, count: 2}
""",
    "by-hand": """
target:
  model: ./target
  build: {gemm_plugin: disable, opt_num_tokens: 144, gather_generation_logits: true, log_level: verbose}
draft: {model: ./draft, build: {multiple_profiles: false, nccl_plugin: false, fast_build: true}}
engine: {max_batch_size: 4, max_input_len: 3200, max_seq_len: 4800, max_num_tokens: 4096}
hardware: {gpu: h100}
""",
}


@pytest.fixture
def facts(llama_folder: Callable[..., Path]) -> Callable[[str], PlanFacts]:
    """A pair of Llamas; those that the recipe has in FP8 are FP8 already."""

    def make(text: str) -> PlanFacts:
        models = []
        lines = [line for line in text.splitlines() if "model: " in line]
        for role, line in zip(("target", "draft"), lines, strict=True):
            sizes = {"num_attention_heads": 8, "hidden_size": 128, "intermediate_size": 256}
            source = read_source(llama_folder(role, **sizes, max_position_embeddings=131072))
            scheme = Scheme("modelopt", "kv_cache" in line) if "fp8" in line else None
            models.append(ModelFacts(role, None, replace(source, scheme=scheme)))
        return PlanFacts(dict(zip(Role, models, strict=True)), Host({}))

    return make


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("name", RECIPES)
def test_command_lines_of_trtllm_build_match_the_golden_files_for_every_release(
    tmp_path: Path, facts: Callable[[str], PlanFacts], name: str, release: str
) -> None:
    text = RECIPES[name]
    text = text.replace("engine: {", f"engine: {{release: {release}, ")
    text += "" if "engine:" in text else f"engine: {{release: {release}}}\n"
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(f"name: {name}\n{text}")
    resolved = resolve(load(recipe), facts(RECIPES[name]), {}, {})
    assert resolved.release is not None
    assert resolved.release.version == release
    lines = []
    for role, engine in resolved.engines.items():
        argv = build_argv(f"{role}/checkpoint", f"{role}/engine", engine.options)
        parser(release).parse_args(argv[1:])  # or SystemExit
        options = " ".join(argv).split(" --")
        lines += [options[0], *(f"    --{option}" for option in options[1:])]
    output = "\n".join(lines) + "\n"

    golden = Path(__file__).with_name("commands") / f"trtllm-build_{name}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(output)
    assert output == golden.read_text()
