"""A recipe whose engine of TensorRT-LLM drafts by lookahead, from `check` to a served text.

`trtllm-build` and NVIDIA's bindings are stand-ins, transformers is real.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from tests.fakes.bindings import stand_in
from tests.unit.pipeline.build.test_heads import Bench
from tests.unit.pipeline.build.test_heads_inside import bench_with, check_best, completed, config, planned
from trtspec.base.errors import ModelError, RecipeError
from trtspec.cli.app import app
from trtspec.pipeline.build.plan import make_plan
from trtspec.pipeline.inspection.folder import inspect
from trtspec.pipeline.plan.memory import budget, engine_memory
from trtspec.serving.completion import NO_END, CompletionRequest
from trtspec.serving.errors import RequestError
from trtspec.serving.executor import SamplingConfig

STEPS = [
    "check model", "copy tokenizer", "convert target", "verify target", "build target",
    "write repository", "write manifest",
]  # fmt: skip
LOOKAHEAD = "{kind: lookahead, window_size: 7, ngram_size: 5, verification_set_size: 3}"


def write(folder: Path, method: str = LOOKAHEAD, *lines: str) -> Path:
    usual = {
        "name": "ahead",
        "target": "{model: ./target}",
        "speculation": f"{{method: {method}}}",
        "engine": "{max_batch_size: 2, max_seq_len: 96}",
        "hardware": "{gpu: h200}",
    }
    values = usual | dict(line.split(": ", 1) for line in lines)
    text = "".join(f"{key}: {value}\n" for key, value in values.items())
    (folder / "recipe.yaml").write_text(text)
    return folder / "recipe.yaml"


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory, saved_llama: Callable[..., Path]) -> Path:
    """A folder of a target; it is not to be changed."""
    folder = tmp_path_factory.mktemp("models") / "target"
    sizes = {"hidden_size": 64, "num_hidden_layers": 4}
    shutil.copytree(saved_llama(6, torch.float16, "5GB", sizes), folder)
    return folder


@pytest.fixture
def recipe(target: Path, tmp_path: Path) -> Path:
    shutil.copytree(target, tmp_path / "target")
    return write(tmp_path)


@pytest.fixture(scope="module")
def built(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """The recipe, built on a server with an H200 that has NVIDIA's image; it is not to be changed."""
    bench = bench_with(target.parent, tmp_path_factory.mktemp("built"))
    write(bench.folder)
    assert bench.ran() == STEPS
    return bench


def test_lookahead_is_built_into_the_targets_engine(built: Bench) -> None:
    """(7, 5, 3) is 3 tokens of the window's first line, and 4 of each of 6 other places and 3 n-grams."""
    out = built.folder / "out"
    engine = json.loads((out / "target/engine/config.json").read_text())
    build, pretrained = engine["build_config"], engine["pretrained_config"]
    assert (build["speculative_decoding_mode"], build["max_draft_len"], build["max_seq_len"]) == (8, 39, 135)
    assert pretrained["architecture"] == "LlamaForCausalLM"
    manifest = json.loads((out / "manifest.json").read_text())
    command = manifest["commands"]["build target"]
    assert command[command.index("--speculative_decoding_mode") + 1] == "lookahead_decoding"
    assert command[command.index("--max_draft_len") + 1] == "39"
    assert list(manifest["models"]) == ["target"]
    report = inspect(str(out / "target/engine"))
    assert report.findings == ()
    assert report.facts["speculative_decoding_mode"] == 8
    inputs, parameters = config(out)
    sizes = {key: value for key, value in parameters.items() if key.startswith("lookahead")}
    assert sizes == {
        "lookahead_window_size": "7",
        "lookahead_ngram_size": "5",
        "lookahead_verification_set_size": "3",
    }
    assert not {"draft_engine_dir", "draft_policy", "draft_method", "num_draft_tokens"} & {*parameters}
    assert "num_draft_tokens" not in inputs


@pytest.mark.parametrize(
    ("changes", "refused"),
    [
        ({}, ""),
        ({"sampling": SamplingConfig(temperature=0.7)}, "temperature"),
        ({"bad_words": ("a",)}, "bad_words"),
    ],
)
def test_an_engine_with_lookahead_says_the_targets_greedy_text(
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


def test_the_checkpoint_is_that_of_any_method(recipe: Path) -> None:
    def digests(method: str) -> dict[str, str | None]:
        found = make_plan(write(recipe.parent, method), to_run=True)
        return {step.name: found.digest(step) for step in found.steps}

    usual, other, plain = digests(LOOKAHEAD), digests("lookahead"), digests("ngram")
    assert usual["convert target"] == other["convert target"] == plain["convert target"]
    assert len({usual["build target"], other["build target"], plain["build target"]}) == 3


def test_memory_is_that_of_as_many_verified_tokens(recipe: Path) -> None:
    found = planned(write(recipe.parent, "lookahead"))
    assert found.target.options.max_draft_len == 15
    lines = "speculation: {method: ngram, max_draft_len: 15}"
    assert engine_memory(found.target) == engine_memory(planned(write(recipe.parent, "ngram", lines)).target)
    memory = budget(found)
    assert memory
    assert memory.tokens_per_request == 96 + 15


def test_a_dry_run_says_it(recipe: Path) -> None:
    said = CliRunner().invoke(app, ["build", str(recipe), "--dry-run"]).output
    assert "the engine that drafts by lookahead, and verifies 39 tokens in each step" in said
    assert "the target as a TensorRT-LLM checkpoint in float16" in said
    assert "--speculative_decoding_mode lookahead_decoding --max_draft_len 39" in said


REFUSED = {
    "adaptive": ("speculation: {method: lookahead, policy: adaptive}", "policy: an engine with lookahead"),
    "K": ("speculation: {method: lookahead, num_draft_tokens: 4}", "tokens: an engine with lookahead drafts"),
    "share": ("speculation: {method: lookahead, share: 0.5}", "share: an engine with lookahead"),
    "mode": ("speculation: {method: lookahead, mode: draft_tokens_external}", "mode is lookahead_decoding"),
    "length": ("speculation: {method: lookahead, max_draft_len: 8}", "follows from window_size, .*: 15"),
    "draft": ("draft: {model: ./target}", "proposes nothing: speculation.method is lookahead"),
    "timeout": ("serving: {draft_timeout_microseconds: 9000}", "the server waits for no draft"),
    "window": ("speculation: {method: {kind: lookahead, window_size: 1}}", "window_size"),
    "n-gram": ("speculation: {method: {kind: lookahead, ngram_size: 1}}", "ngram_size"),
    "set": ("speculation: {method: {kind: lookahead, verification_set_size: 0}}", "verification_set_size"),
    "torch": ("engine: {backend: torch}", "torch does not run lookahead"),
    "vllm": ("engine: {backend: vllm}", "vllm does not run lookahead: vLLM has no lookahead decoding"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_recipe_that_a_lookahead_engine_cannot_follow_is_refused_before_any_step(
    recipe: Path, name: str
) -> None:
    line, problem = REFUSED[name]
    with pytest.raises(RecipeError, match=problem):
        planned(write(recipe.parent, LOOKAHEAD, line))


def test_pipeline_ranks_are_refused(recipe: Path) -> None:
    lines = "target: {model: ./target, parallel: {pipeline: 2}}", "hardware: {gpu: h200, count: 2}"
    with pytest.raises(RecipeError, match="with lookahead inside has no pipeline ranks"):
        planned(write(recipe.parent, LOOKAHEAD, *lines))


def test_lookahead_refuses_texts_longer_than_the_attention_window(recipe: Path) -> None:
    path = recipe.with_name("target") / "config.json"
    kind = {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 128}
    path.write_text(json.dumps(json.loads(path.read_text()) | kind))
    with pytest.raises(
        RecipeError, match=r"engine.max_seq_len: tokens attend to the last 128, .* overwrite some of these"
    ):
        planned(recipe)


def test_windows_that_differ_by_layer_are_refused(recipe: Path) -> None:
    path = recipe.with_name("target") / "config.json"
    kind = {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": 64,
        "query_pre_attn_scalar": 16,
        "rope_local_base_freq": 10000.0,
    }
    path.write_text(json.dumps(json.loads(path.read_text()) | kind))
    with pytest.raises(ModelError, match="no lookahead for gemma3_text: its layers differ in windows"):
        planned(recipe)
