"""A recipe whose target's engine of TensorRT-LLM has a head of EAGLE inside, from `check` to a served text.

`trtllm-build` and NVIDIA's bindings are stand-ins, transformers is real.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.fakes.bindings import stand_in
from tests.fakes.eagle_heads import write_eagle_for
from tests.unit.pipeline.build.test_heads import Bench
from tests.unit.pipeline.build.test_heads_inside import (
    STEPS,
    bench_with,
    check_best,
    completed,
    config,
    planned,
)
from trtspec.backends.table import load as load_recipe
from trtspec.backends.tensorrt_llm.heads import choices
from trtspec.base.errors import ModelError, RecipeError
from trtspec.deployment.build import DeployedBuild
from trtspec.pipeline.inspection.folder import inspect
from trtspec.pipeline.plan.memory import budget, engine_memory
from trtspec.pipeline.plan.outlook import alternatives
from trtspec.serving.completion import NO_END, CompletionRequest
from trtspec.serving.errors import RequestError
from trtspec.serving.executors.tensorrt_llm.runtime_draft import as_parameter


def write(folder: Path, *lines: str) -> Path:
    """A recipe of these lines, and the usual ones for the sections that they leave out."""
    values = {
        "name": "inside",
        "target": "{model: ./target}",
        "draft": "{model: ./head}",
        "speculation": "{method: eagle}",
        "engine": "{max_batch_size: 2, max_seq_len: 96}",
        "hardware": "{gpu: h200}",
    }
    values |= dict(line.split(": ", 1) for line in lines)
    (folder / "recipe.yaml").write_text("".join(f"{key}: {value}\n" for key, value in values.items()))
    return folder / "recipe.yaml"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory, saved_llama: Callable[..., Path]) -> Path:
    """A folder with a target and its head; it is not to be changed."""
    folder = tmp_path_factory.mktemp("models")
    sizes = {"hidden_size": 64, "num_hidden_layers": 4}
    shutil.copytree(saved_llama(6, torch.float16, "5GB", sizes), folder / "target")
    write_eagle_for(folder / "target", folder / "head")
    return folder


@pytest.fixture
def recipe(models: Path, tmp_path: Path) -> Path:
    shutil.copytree(models, tmp_path, dirs_exist_ok=True)
    return write(tmp_path)


@pytest.fixture(scope="module")
def built(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """The recipe, built on a server with an H200 that has NVIDIA's image; it is not to be changed."""
    bench = bench_with(models, tmp_path_factory.mktemp("built"))
    write(bench.folder)
    assert bench.ran() == STEPS
    return bench


def test_no_fp8_is_offered_for_an_engine_with_a_head(recipe: Path) -> None:
    found = alternatives(planned(recipe))
    assert found
    assert not [key for one in found for key in one.changes if "quantization" in key]


def test_an_eagle_head_and_its_target_are_built_into_one_engine(built: Bench) -> None:
    """`trtllm-build` adds 63 tokens of the tree and 4 of its depth to 96."""
    out = built.folder / "out"
    engine = json.loads((out / "target/engine/config.json").read_text())
    build, pretrained = engine["build_config"], engine["pretrained_config"]
    assert (build["speculative_decoding_mode"], build["max_draft_len"], build["max_seq_len"]) == (32, 63, 163)
    assert (pretrained["architecture"], pretrained["num_eagle_layers"]) == ("EagleForCausalLM", 4)
    manifest = json.loads((out / "manifest.json").read_text())
    command = manifest["commands"]["build target"]
    assert command[command.index("--speculative_decoding_mode") + 1] == "eagle"
    assert "model.safetensors" in manifest["models"]["draft"]["files"]
    assert inspect(str(out / "target/engine")).findings == ()
    assert inspect(str(out / "target/checkpoint")).findings == ()
    inputs, parameters = config(out)
    assert parameters["eagle_choices"] == as_parameter(choices(4))
    assert not {"draft_engine_dir", "draft_policy", "draft_method", "num_draft_tokens"} & {*parameters}
    assert "num_draft_tokens" not in inputs
    assert DeployedBuild(out, load_recipe(built.folder / "recipe.yaml")).max_model_len == 96


@pytest.mark.parametrize(
    ("changes", "refused"), [({}, ""), ({"embedding_bias": ((7, 1.0),)}, "embedding_bias_ids")]
)
def test_an_engine_with_an_eagle_head_says_the_targets_greedy_text(
    built: Bench, changes: dict[str, object], refused: str
) -> None:
    prompt = [7, 30, 80]
    asked = CompletionRequest(prompt_token_ids=prompt, max_tokens=24, end_id=NO_END, **changes)  # type: ignore[arg-type]
    with stand_in():
        if refused:
            with pytest.raises(RequestError, match=f"^{refused} is "):
                completed(built, asked)
            return
        text = completed(built, asked)
    assert len(text) == 24
    check_best(built, prompt, text)


def test_the_head_takes_memory_as_often_as_the_tree_is_deep(recipe: Path) -> None:
    found, plain = planned(recipe), "speculation: {method: ngram, max_draft_len: 63}"
    text = write(recipe.parent, plain).read_text().replace("draft: {model: ./head}\n", "")
    recipe.write_text(text)
    with_head, without = engine_memory(found.target), engine_memory(planned(recipe).target)
    weights = json.loads((recipe.with_name("head") / "config.json").read_text())
    hidden, inner, heads = 64, weights["intermediate_size"], weights["num_key_value_heads"]
    shared = heads * weights["head_dim"]
    layer = 2 * hidden * hidden + 2 * shared * hidden + 3 * inner * hidden + hidden
    assert (
        with_head.weights - without.weights
        == 4 * (layer + 2 * hidden * hidden + hidden + 2 * 264 * hidden) * 2
    )
    assert with_head.kv_per_token - without.kv_per_token == 2 * shared * 2
    memory = budget(found)
    assert memory
    assert memory.tokens_per_request == 96 + 63 + 4


def test_a_head_that_the_ranks_cannot_share_is_refused(recipe: Path) -> None:
    folder = recipe.with_name("head")
    values, tensors = (
        json.loads((folder / "config.json").read_text()),
        load_file(folder / "model.safetensors"),
    )
    for name in ("gate_proj", "up_proj"):
        tensors[f"layers.0.mlp.{name}.weight"] = tensors[f"layers.0.mlp.{name}.weight"][:-1].clone()
    down = "layers.0.mlp.down_proj.weight"
    tensors[down] = tensors[down][:, :-1].contiguous()
    save_file(tensors, folder / "model.safetensors")
    values["intermediate_size"] -= 1
    (folder / "config.json").write_text(json.dumps(values))
    lines = "target: {model: ./target, parallel: {tensor: 2}}", "hardware: {gpu: h200, count: 2}"
    problem = r"target.parallel.tensor: of the draft inside, intermediate_size \d+ cannot be divided among 2"
    with pytest.raises(RecipeError, match=problem):
        planned(write(recipe.parent, *lines))


REFUSED = {
    "adaptive": (["speculation: {method: eagle, policy: adaptive}"], "policy: an engine with EAGLE's head"),
    "K": (["speculation: {method: eagle, num_draft_tokens: 4}"], "tokens: an engine with EAGLE's head"),
    "share": (["speculation: {method: eagle, share: 0.5}"], "share: an engine with EAGLE's head"),
    "mode": (["speculation: {method: eagle, mode: draft_tokens_external}"], "its mode is eagle"),
    "timeout": (["serving: {draft_timeout_microseconds: 9000}"], "the server waits for no draft"),
    "tree": (["speculation: {method: eagle, max_draft_len: 64}"], "which has 63 nodes at most"),
    "pipeline": (
        ["target: {model: ./target, parallel: {pipeline: 2}}", "hardware: {gpu: h200, count: 2}"],
        "with eagle inside has no pipeline ranks",
    ),
    "FP8": (
        ["target: {model: ./target, quantization: {weights: fp8, calibration: {dataset: a.jsonl}}}"],
        "engines have EAGLE in float16 and bfloat16",
    ),
    "fusion": (
        [
            "target: {model: ./target, parallel: {tensor: 2}, build: {reduce_fusion: true}}",
            "hardware: {gpu: h200, count: 2}",
        ],
        "reduce_fusion: trtllm-build switches it off for LlamaForCausalLM with this draft",
    ),
    "no head": (["draft: {model: ./target}"], "is no head"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_recipe_that_an_eagle_engine_cannot_follow_is_refused_before_any_step(
    recipe: Path, name: str
) -> None:
    lines, problem = REFUSED[name]
    with pytest.raises((RecipeError, ModelError), match=problem):
        planned(write(recipe.parent, *lines))
