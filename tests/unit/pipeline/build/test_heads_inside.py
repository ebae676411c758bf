"""A recipe whose target's engine of TensorRT-LLM has Medusa's heads inside, from `check` to a served text.

`trtllm-build` and NVIDIA's bindings are stand-ins, transformers is real.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from google.protobuf import text_format
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM
from tritonclient.grpc import model_config_pb2 as pb
from typer.testing import CliRunner

from tests.fakes.bindings import stand_in
from tests.fakes.gpu_machine import H200
from tests.fakes.heads import write_head_for
from tests.unit.pipeline.build.test_heads import Bench
from trtspec.backends.table import load as load_recipe
from trtspec.backends.tensorrt_llm.heads import choices
from trtspec.base.errors import ModelError, RecipeError, UnavailableError
from trtspec.cli.app import app
from trtspec.deployment.build import DeployedBuild
from trtspec.pipeline.build.plan import make_plan
from trtspec.pipeline.engine.directory import Runtime
from trtspec.pipeline.inspection.folder import inspect
from trtspec.pipeline.plan.memory import engine_memory
from trtspec.pipeline.plan.resolved import Resolved
from trtspec.serving.completion import NO_END, CompletionRequest
from trtspec.serving.errors import RequestError
from trtspec.serving.executor import Guide, GuideType, SamplingConfig
from trtspec.serving.executors.tensorrt_llm.runtime_draft import as_parameter
from trtspec.serving.triton.engines import load

STEPS = [
    "check head", "copy tokenizer", "convert target", "verify target", "build target", "write repository",
    "write manifest",
]  # fmt: skip


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory, saved_llama: Callable[..., Path]) -> Path:
    """A folder with a target and three heads; it is not to be changed."""
    folder = tmp_path_factory.mktemp("models")
    sizes = {"hidden_size": 64, "num_hidden_layers": 4}
    shutil.copytree(saved_llama(6, torch.float16, "5GB", sizes), folder / "target")
    write_head_for(folder / "target", folder / "head", "medusa")
    return folder


def write(folder: Path, *lines: str) -> Path:
    """A recipe of these lines, and the usual ones for the sections that they leave out."""
    usual = (
        "name: inside", "target: {model: ./target}", "draft: {model: ./head}",
        "speculation: {method: medusa}", "engine: {max_batch_size: 2, max_seq_len: 96}",
        "hardware: {gpu: h200}",
    )  # fmt: skip
    given = [line.split(":")[0] for line in lines]
    kept = [line for line in usual if line.split(":")[0] not in given]
    (folder / "recipe.yaml").write_text("\n".join([*kept, *lines]) + "\n")
    return folder / "recipe.yaml"


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


def bench_with(models: Path, folder: Path) -> Bench:
    """A server with an H200 that has NVIDIA's image, and these models."""
    bench = Bench(folder)
    shutil.copytree(models, bench.folder, dirs_exist_ok=True)
    bench.machine.gpus(H200)
    bench.machine.tensorrt_llm()
    return bench


def planned(recipe: Path) -> Resolved:
    return make_plan(recipe).resolved


def config(folder: Path, model: str = "speculative_llm") -> tuple[set[str], dict[str, str]]:
    """The inputs of a model, and its parameters."""
    path = folder / "model_repository" / model / "config.pbtxt"
    found = text_format.Parse(path.read_text(), pb.ModelConfig())
    parameters = {key: value.string_value for key, value in found.parameters.items()}
    return {tensor.name for tensor in found.input}, parameters


def test_medusa_heads_and_their_target_are_built_into_one_engine(built: Bench) -> None:
    out = built.folder / "out"
    engine = json.loads((out / "target/engine/config.json").read_text())
    build, pretrained = engine["build_config"], engine["pretrained_config"]
    assert (build["speculative_decoding_mode"], build["max_draft_len"], build["max_seq_len"]) == (4, 63, 159)
    assert (pretrained["architecture"], pretrained["num_medusa_heads"]) == ("MedusaForCausalLM", 3)
    manifest = json.loads((out / "manifest.json").read_text())
    command = manifest["commands"]["build target"]
    assert command[command.index("--speculative_decoding_mode") + 1] == "medusa"
    assert "medusa_lm_head.safetensors" in manifest["models"]["draft"]["files"]
    assert inspect(str(out / "target/engine")).findings == ()
    inputs, parameters = config(out)
    assert parameters["medusa_choices"] == as_parameter(choices(3))
    assert not {"draft_engine_dir", "draft_policy", "draft_method", "num_draft_tokens"} & {*parameters}
    assert "num_draft_tokens" not in inputs  # By this `bench` and `verify` know that none is plain.


def test_a_deployment_finds_its_one_engine(built: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    build = DeployedBuild(built.folder / "out", load_recipe(built.folder / "recipe.yaml"))
    monkeypatch.setenv("PATH", built.machine.environment["PATH"])
    assert build.ranks == 1
    build.check(Runtime("1.2.1", "10.14.1.48", (90,)))


def completed(built: Bench, asked: CompletionRequest) -> list[int]:
    """The tokens of a request to the repository of the build."""

    async def main() -> list[int]:
        pair = load(config(built.folder / "out")[1], built.folder / "out/model_repository/model")
        try:
            delta = await pair.coordinator().complete(asked)
            assert delta.completion is not None
            return delta.token_ids
        finally:
            pair.shutdown()

    return asyncio.run(asyncio.wait_for(main(), 300))


def check_best(built: Bench, prompt: list[int], text: list[int]) -> None:
    model = AutoModelForCausalLM.from_pretrained(built.folder / "target", dtype=torch.float32)
    with torch.inference_mode():
        logits = model(torch.tensor([prompt + text])).logits[0, len(prompt) - 1 : -1]
    behind = logits.max(1).values - logits[range(len(text)), text]
    assert behind.max() < 0.1, "each token is the target's best, but for near ties of float16"


class TestServed:
    """The repository of the build, loaded with the stand-in for NVIDIA's bindings."""

    @pytest.fixture
    def ask(self, built: Bench) -> Iterator[Callable[..., list[int]]]:
        def ask(**changes: Any) -> list[int]:
            usual = {"prompt": "one two", "max_tokens": 24, "end_id": NO_END}

            return completed(built, CompletionRequest(**{**usual, **changes}))

        with stand_in():
            yield ask

    def test_an_engine_with_medusa_heads_says_the_targets_greedy_text(
        self, built: Bench, ask: Callable[..., list[int]]
    ) -> None:
        prompt = [7, 30, 80]
        text = ask(prompt=None, prompt_token_ids=prompt)
        assert len(text) == 24
        check_best(built, prompt, text)

    @pytest.mark.parametrize(
        ("changes", "field"),
        [
            ({"sampling": SamplingConfig(temperature=0.7)}, "temperature"),
            ({"sampling": SamplingConfig(min_tokens=3)}, "min_tokens"),
            ({"bad_words": ("a",)}, "bad_words"),
            ({"return_log_probs": True}, "return_log_probs"),
            ({"num_draft_tokens": 4}, "num_draft_tokens"),
            ({"guide": Guide(GuideType.JSON), "end_id": None}, "guide_type"),
        ],
    )
    def test_a_request_field_that_a_medusa_engine_ignores_is_refused(
        self, ask: Callable[..., list[int]], changes: dict[str, Any], field: str
    ) -> None:
        with pytest.raises(RequestError, match=f"^{field} is "):
            ask(**changes)


def test_other_heads_or_another_tree_change_the_digests_of_their_steps(recipe: Path) -> None:
    def digests(*lines: str) -> dict[str, str | None]:
        found = make_plan(write(recipe.parent, *lines), to_run=True)
        return {step.name: found.digest(step) for step in found.steps}

    usual, smaller = digests(), digests("speculation: {method: medusa, max_draft_len: 8}")
    weights = recipe.with_name("head") / "medusa_lm_head.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\1")
    trained = digests()
    changed = [{name for name in usual if usual[name] != other[name]} for other in (smaller, trained)]
    assert {"convert target", "verify target"} <= changed[0] & changed[1]
    assert "build target" in changed[0]


def test_the_heads_take_memory(recipe: Path) -> None:
    with_heads = engine_memory(planned(recipe).target)
    lines = "draft: null", "speculation: {method: ngram, max_draft_len: 63}"
    without = engine_memory(planned(write(recipe.parent, *lines)).target)
    assert with_heads.weights - without.weights == 3 * (64 * 64 + 64 + 264 * 64) * 2
    assert with_heads.workspace - without.workspace == 3 * (2 * 64) * 264 * 4


REFUSED: dict[str, tuple[list[str], str]] = {
    "adaptive": (["speculation: {method: medusa, policy: adaptive}"], r"policy: an engine with Medusa's"),
    "K": (["speculation: {method: medusa, num_draft_tokens: 4}"], "num_draft_tokens: an engine with Medusa"),
    "share": (["speculation: {method: medusa, share: 0.5}"], "speculation.share: an engine with Medusa's"),
    "mode": (["speculation: {method: medusa, mode: draft_tokens_external}"], "its mode is medusa"),
    "timeout": (["serving: {draft_timeout_microseconds: 9000}"], "the server waits for no draft"),
    "tree": (["speculation: {method: medusa, max_draft_len: 64}"], "which has 63 nodes at most"),
    "pipeline": (
        ["target: {model: ./target, parallel: {pipeline: 2}}", "hardware: {gpu: h200, count: 2}"],
        "with medusa inside has no pipeline ranks",
    ),
    "dtype": (["draft: {model: ./head, dtype: float16}"], "a head runs in its target's engine"),
    "no head": (["draft: {model: ./target}"], "is no head"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_recipe_that_a_medusa_engine_cannot_follow_is_refused_before_any_step(
    recipe: Path, name: str
) -> None:
    lines, problem = REFUSED[name]
    with pytest.raises((RecipeError, ModelError), match=problem):
        planned(write(recipe.parent, *lines))


def test_medusa_heads_of_another_target_are_refused(recipe: Path) -> None:
    shutil.rmtree(recipe.with_name("head"))
    path = recipe.with_name("target") / "config.json"
    whole = path.read_text()
    path.write_text(json.dumps(json.loads(whole) | {"hidden_size": 32}))
    write_head_for(recipe.with_name("target"), recipe.with_name("head"), "medusa")
    path.write_text(whole)
    with pytest.raises(ModelError, match="hidden size: the head reads states of width 32"):
        planned(recipe)


def test_the_tree_of_one_head(recipe: Path) -> None:
    folder = recipe.with_name("head")
    weights = folder / "medusa_lm_head.safetensors"
    save_file({name: held for name, held in load_file(weights).items() if name[0] == "0"}, weights)
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(values | {"medusa_num_heads": 1}))
    assert planned(recipe).target.options.max_draft_len == 16
    with pytest.raises(RecipeError, match="17 is more than the nodes of 1 head's tree: 16"):
        planned(write(recipe.parent, "speculation: {method: medusa, max_draft_len: 17}"))


def test_medusa_heads_refuse_texts_longer_than_the_attention_window(recipe: Path) -> None:
    path = recipe.with_name("target") / "config.json"
    kind = {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 128}
    path.write_text(json.dumps(json.loads(path.read_text()) | kind))
    with pytest.raises(
        RecipeError, match=r"engine.max_seq_len: tokens attend to the last 128, .* overwrite some of these"
    ):
        planned(recipe)


@pytest.mark.parametrize("command", ["build", "convert"])
def test_there_is_no_draft_to_make_alone(recipe: Path, command: str) -> None:
    result = CliRunner().invoke(app, [command, str(recipe), "--only", "draft"])
    assert "has no draft" in " ".join(result.output.split())


def test_rollout_and_verify_refuse_an_engine_with_medusa_heads(built: Bench) -> None:
    recipe = str(built.folder / "recipe.yaml")
    for words, kind, problem in (
        (["rollout", "plan", recipe], RecipeError, "no roll-out can switch that off for some"),
        (
            ["verify", recipe, "--output", str(built.folder / "out")],
            UnavailableError,
            "cannot decode plainly on request",
        ),
    ):
        result = CliRunner().invoke(app, words)
        assert isinstance(result.exception, kind)
        assert problem in str(result.exception)
