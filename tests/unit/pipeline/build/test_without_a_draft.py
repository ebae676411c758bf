"""A recipe without a draft, from `check` to rounds, on both backends and in both layouts.

PyTorch and Triton's protobuf are real; `trtllm-build`, NVIDIA's bindings, docker and the calls between models
of Triton are stand-ins.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

from tests.fakes.bindings import stand_in
from tests.fakes.bls_model import BlsModel
from tests.fakes.gpu_machine import H200, GpuMachine
from tests.support.command_line import trtspec
from trtspec.recipe.releases import release_of
from trtspec.serving.completion import NO_END, Completion, CompletionRequest
from trtspec.serving.executor import Executor
from trtspec.serving.executors.tensorrt_llm.trtllm_executor import EngineLocation, load_engines
from trtspec.serving.executors.torch.torch_executor import TorchExecutor
from trtspec.serving.triton.engines import load

ENGINES = {
    "torch": "engine: {backend: torch, max_batch_size: 4, max_seq_len: 128}\nhardware: {gpu: none}\n",
    "tensorrt_llm": "engine: {release: 1.2.1, max_batch_size: 4, max_seq_len: 128}\nhardware: {gpu: h200}\n",
}
OF_A_PAIR = re.compile(
    r"\b(both|pair|the two)\b|\btwo (models|engines)|\bdraft (model|engine|checkpoint)\b|tensorrt_llm_draft"
)
STEPS = ["check model", "copy tokenizer", "convert target", "verify target", "build target"]
SERVED = ["write repository", "write manifest"]


class Bench:
    """The recipe on a machine that builds and serves it."""

    def __init__(self, folder: Path, backend: str, layout: str) -> None:
        self.folder, self.backend, self.layout = folder, backend, layout
        self.machine = GpuMachine(folder / "machine")
        if backend == "tensorrt_llm":
            self.machine.gpus(H200)
            self.machine.tensorrt_llm()
        (folder / "recipe.yaml").write_text(
            "name: alone\ntarget: {model: ./target}\n"
            "speculation: {method: {kind: ngram, prompt_lookup_max: 6}, max_draft_len: 4}\n"
            f"serving: {{layout: {layout}}}\n{ENGINES[backend]}"
        )

    def run(self, *words: str) -> str:
        """Returns what a command prints, which says nothing of a second model."""
        result = trtspec(*words, folder=self.folder, environment=self.machine.environment)
        assert result.returncode == 0, result.stderr
        assert not OF_A_PAIR.search(result.stdout + result.stderr)
        return result.stdout

    def parameters(self, build: str) -> dict[str, str]:
        text = (self.folder / build / "model_repository/speculative_llm/config.pbtxt").read_text()
        config = text_format.Parse(text, pb.ModelConfig())
        return {key: value.string_value for key, value in config.parameters.items()}


@pytest.fixture(params=["in_process", pytest.param("bls", marks=pytest.mark.sweep)])
def layout(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(params=["torch", "tensorrt_llm"])
def bench(
    request: pytest.FixtureRequest, layout: str, tmp_path: Path, llama_folder: Callable[..., Path]
) -> Bench:
    """The target is one that repeats itself: the token is what its own embedding is nearest to."""
    llama_folder("target", dtype=torch.bfloat16, tie_word_embeddings=True, initializer_range=0.1)
    return Bench(tmp_path, request.param, layout)


@pytest.fixture
def loads(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What `load` needs that is not on this machine."""
    with ExitStack() as stack:
        if bench.backend == "tensorrt_llm":
            trtllm = stack.enter_context(stand_in())

        def connect(name: str) -> BlsModel:
            assert name == "tensorrt_llm"

            def engine() -> Executor:
                if bench.backend == "torch":
                    return TorchExecutor(bench.folder / "out/target/engine")
                return load_engines(trtllm, [EngineLocation(bench.folder / "out/target/engine", 0)], 0.1)[0]

            model = BlsModel(engine)
            stack.callback(model.service.close)
            return model

        module = SimpleNamespace(TritonModel=connect)
        monkeypatch.setitem(sys.modules, "trtspec.serving.triton.bls", module)
        yield


def completions(bench: Bench, prompt: str) -> tuple[Completion, Completion, str, str]:
    """What is completed with drafts and without, and the two texts."""

    async def main() -> tuple[Completion, Completion, str, str]:
        pair = load(bench.parameters("out"), bench.folder / "out/model_repository/speculative_llm")
        assert pair.draft is None
        try:
            coordinator = pair.coordinator()
            request = {"prompt": prompt, "max_tokens": 60, "end_id": NO_END}
            drafted = await coordinator.complete(CompletionRequest(**request))  # type: ignore[arg-type]
            alone = await coordinator.complete(
                CompletionRequest(**request, num_draft_tokens=0)  # type: ignore[arg-type]
            )
            assert drafted.completion
            assert alone.completion
            return drafted.completion, alone.completion, drafted.text, alone.text
        finally:
            pair.shutdown()

    return asyncio.run(asyncio.wait_for(main(), 300))


@pytest.mark.usefixtures("loads")
def test_a_recipe_without_a_draft_is_checked_planned_built_and_decodes(bench: Bench) -> None:
    assert bench.run("check", "recipe.yaml").endswith("\nthe recipe is valid\n")
    assert json.loads(bench.run("check", "recipe.yaml", "--json"))["models"].keys() == {"target"}

    bench.run("plan", "recipe.yaml")
    plan = json.loads(bench.run("plan", "recipe.yaml", "--json"))
    values = {choice["key"]: choice["value"] for choice in plan["values"]}
    assert values["speculation.method"] == "ngram"
    assert values["speculation.method.prompt_lookup_max"] == 6
    assert not [key for key in values if key.startswith("draft.") or "draft_timeout" in key]
    assert [step["name"] for step in plan["steps"]] == STEPS + SERVED
    if bench.backend == "tensorrt_llm":
        assert "draft" not in plan["memory"]
        memory = plan["memory"]
        assert memory["tokens"] == memory["left"] // memory["target"]["kv_per_token"]

    bench.run("doctor", "recipe.yaml")
    bench.run("build", "recipe.yaml", "--output", "out", "--dry-run")
    built = json.loads(bench.run("build", "recipe.yaml", "--output", "out", "--json"))
    assert built["ran"] == STEPS + SERVED
    out = bench.folder / "out"
    assert not (out / "draft").exists()
    config = json.loads((out / "target/engine/config.json").read_text())["build_config"]
    assert (config["speculative_decoding_mode"], config["max_draft_len"]) == (2, 4)
    assert json.loads((out / "manifest.json").read_text())["models"].keys() == {"target"}
    bench.run("inspect", "out/target/engine")
    bench.run("inspect", "out/target/checkpoint")

    bench.run("deploy", "recipe.yaml", "--output", "out", "--dry-run")
    jobs = json.loads(bench.run("ci", "matrix", "recipe.yaml"))["include"]
    assert [job["name"] for job in jobs] == (["alone"] if bench.backend == "tensorrt_llm" else [])

    models = {"speculative_llm"} | ({"tensorrt_llm"} if bench.layout == "bls" else set())
    assert {folder.name for folder in (out / "model_repository").iterdir()} == models
    parameters = bench.parameters("out")
    assert not [key for key in parameters if key.startswith("draft_engine") or "draft_timeout" in key]
    assert (parameters["draft_method"], parameters["draft_method.prompt_lookup_min"]) == ("ngram", "2")

    drafted, alone, text, plain = completions(bench, "a, b, c, a, b, c, a, b")
    assert text == plain
    assert drafted.speculation.num_draft_tokens > drafted.speculation.num_accepted_draft_tokens > 0
    assert alone.speculation.num_draft_tokens == 0


def test_a_store_gives_back_what_it_got(bench: Bench) -> None:
    """A build of one engine is an entry like a build of two, under the word that documents have for it."""
    bench.run("build", "recipe.yaml", "--output", "out")
    command = ("store", "push", "store", "recipe.yaml", "--output", "out")
    result = trtspec(*command, folder=bench.folder, environment=bench.machine.environment)
    assert result.returncode == 0, result.stderr
    listed = trtspec("store", "list", "store", "--json", folder=bench.folder).stdout
    assert {entry["role"] for entry in json.loads(listed)} == {"target", "pair"}
    again = json.loads(bench.run("build", "recipe.yaml", "--output", "new", "--store", "store", "--json"))
    assert again["ran"] == ["check model", "copy tokenizer", "pull target", *SERVED]
    if bench.backend == "torch":
        bench.run("store", "pull", "store", "alone", "--output", "pulled")
        assert bench.parameters("pulled") == bench.parameters("out")
        assert not (bench.folder / "pulled/draft").exists()


@pytest.mark.parametrize("bench", ["tensorrt_llm"], indirect=True)
def test_one_container_builds_and_one_serves(bench: Bench) -> None:
    image = release_of("1.2.1").image
    docker = bench.machine.containers(image)
    bench.machine.remove("tensorrt_llm")
    (bench.machine.folder / "bin/trtllm-build").unlink()
    bench.run("build", "recipe.yaml", "--output", "out", "--container")
    (words,) = docker.calls("run")
    assert "draft_tokens_external" in words
    shown = bench.run("deploy", "recipe.yaml", "--output", "out", "--container", "--dry-run")
    assert f"    {image} " in shown


def test_the_draft_alone_cannot_be_converted(bench: Bench) -> None:
    command = ("convert", "recipe.yaml", "--only", "draft", "--output", "out")
    result = trtspec(*command, folder=bench.folder, environment=bench.machine.environment)
    assert result.returncode == 2
    assert "recipe.yaml has no draft" in result.stderr
    assert not (bench.folder / "out").exists()
