"""A recipe with `draft: {device: cpu}`, from `check` to rounds, in both layouts.

PyTorch and Triton's protobuf are real; `trtllm-build`, NVIDIA's bindings, docker and the calls between models
of Triton are stand-ins.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

from tests.fakes.bindings import stand_in
from tests.fakes.bls_model import BlsModel
from tests.fakes.gpu_machine import H100, H200, GpuMachine
from tests.support.command_line import trtspec
from trtspec.recipe.releases import release_of
from trtspec.serving.completion import NO_END, CompletionRequest, Delta
from trtspec.serving.executor import Executor
from trtspec.serving.executors.tensorrt_llm.trtllm_executor import EngineLocation, load_engines
from trtspec.serving.executors.torch.torch_executor import TorchExecutor
from trtspec.serving.triton.engines import load


class Bench:
    """The recipe on a machine that builds and serves it."""

    def __init__(self, folder: Path, layout: str, machine: GpuMachine) -> None:
        self.folder, self.layout, self.machine = folder, layout, machine
        machine.gpus(H200)
        machine.tensorrt_llm()
        machine.environment["FAKE_CALLS"] = str(folder / "calls.txt")
        self.write("h200")

    def write(self, gpu: str, device: str = "device: cpu") -> None:
        (self.folder / "recipe.yaml").write_text(
            f"name: pair\ntarget: {{model: ./target}}\ndraft: {{model: ./draft, {device}}}\n"
            f"speculation: {{max_draft_len: 4, num_draft_tokens: 3}}\nserving: {{layout: {self.layout}}}\n"
            f"engine: {{release: 1.2.1, max_batch_size: 4, max_seq_len: 128}}\nhardware: {{gpu: {gpu}}}\n"
        )

    def run(self, *words: str) -> str:
        result = trtspec(*words, folder=self.folder, environment=self.machine.environment)
        assert result.returncode == 0, result.stderr
        return result.stdout

    def built(self, *words: str) -> dict[str, Any]:
        content: dict[str, Any] = json.loads(self.run("build", "recipe.yaml", *words, "--json"))
        return content

    def parameters(self, model: str) -> dict[str, str]:
        text = (self.folder / "out/model_repository" / model / "config.pbtxt").read_text()
        config = text_format.Parse(text, pb.ModelConfig())
        return {key: value.string_value for key, value in config.parameters.items()}


@pytest.fixture(params=["in_process", pytest.param("bls", marks=pytest.mark.sweep)])
def bench(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    llama_folder: Callable[..., Path],
    machine: GpuMachine,
) -> Bench:
    """The draft is the target without its second layer, so that it is right now and then."""
    llama_folder("target", dtype=torch.bfloat16, initializer_range=0.1, tie_word_embeddings=True)
    llama_folder("draft", num_hidden_layers=1, tie_word_embeddings=True, initializer_range=0.1)
    return Bench(tmp_path, request.param, machine)


@pytest.fixture
def loads(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What `load` needs that is not on this machine."""
    with ExitStack() as stack:
        trtllm = stack.enter_context(stand_in())

        def connect(name: str) -> BlsModel:
            def engine() -> Executor:
                if name == "tensorrt_llm_draft":
                    device = bench.parameters(name)["device"]
                    return TorchExecutor(bench.folder / "out/draft/engine", device=device)
                return load_engines(trtllm, [EngineLocation(bench.folder / "out/target/engine", 0)], 0.1)[0]

            model = BlsModel(engine)
            stack.callback(model.service.close)
            return model

        monkeypatch.setitem(sys.modules, "trtspec.serving.triton.bls", SimpleNamespace(TritonModel=connect))
        yield


@pytest.mark.sweep
@pytest.mark.usefixtures("loads")
def test_a_draft_on_the_cpu_is_checked_planned_built_and_decodes(bench: Bench) -> None:
    assert bench.run("check", "recipe.yaml").endswith("the recipe is valid, and the pair fits\n")
    plan = json.loads(bench.run("plan", "recipe.yaml", "--json"))
    assert "draft" not in plan["memory"]
    assert plan["host_memory"]["roles"] == ["draft"]
    bench.run("doctor", "recipe.yaml")

    assert bench.built("--output", "out")["ran"][-4:] == [
        "build target",
        "build draft",
        "write repository",
        "write manifest",
    ]
    assert len((bench.folder / "calls.txt").read_text().splitlines()) == 2, "one run, of the target"
    out = bench.folder / "out"
    assert {file.suffix for file in out.glob("*/engine/rank0*")} == {".engine", ".safetensors"}
    assert json.loads((out / "draft/engine/config.json").read_text())["version"].startswith("trtspec-torch ")
    manifest = json.loads((out / "manifest.json").read_text())
    assert (manifest["backend"], manifest["values"]["draft.device"]) == ("tensorrt_llm", "cpu")
    assert [name for name in manifest["commands"] if name.startswith("build")] == ["build target"]
    assert bench.built("--output", "out")["ran"] == []
    bench.run("inspect", "out/draft/engine")
    assert "mpirun" not in bench.run("deploy", "recipe.yaml", "--output", "out", "--dry-run")

    drafted, alone = asyncio.run(asyncio.wait_for(completions(bench), 300))
    assert drafted.token_ids == alone.token_ids
    assert drafted.completion
    counts = drafted.completion.speculation
    assert counts.num_draft_tokens > counts.num_accepted_draft_tokens > 0


async def completions(bench: Bench) -> tuple[Delta, Delta]:
    """What is completed with drafts and without."""
    model = bench.folder / "out/model_repository/speculative_llm"
    pair = load(bench.parameters("speculative_llm"), model)
    try:
        coordinator, usual = (
            pair.coordinator(),
            CompletionRequest(prompt="a, b, c", max_tokens=60, end_id=NO_END),
        )
        return await coordinator.complete(usual), await coordinator.complete(
            CompletionRequest(prompt="a, b, c", max_tokens=60, end_id=NO_END, num_draft_tokens=0)
        )
    finally:
        pair.shutdown()


@pytest.mark.parametrize("bench", ["in_process"], indirect=True)
def test_a_store_has_one_draft_for_every_gpu(bench: Bench) -> None:
    """What was built for an H200 is pulled for an L40S, whose target is built anew."""
    bench.built("--output", "out", "--store", "store")
    listed = json.loads(bench.run("store", "list", "store", "--json"))
    assert len(listed) == 3
    folders = {entry["role"]: entry["platform"]["backend"] for entry in listed}
    assert folders == {"target": "tensorrt_llm", "draft": "torch", "pair": "tensorrt_llm"}

    bench.write("l40s")
    bench.machine.gpus(H100.replace("9.0", "8.9").replace("H100", "L40S"))
    bench.machine.environment["FAKE_SM"] = "89"
    ran = bench.built("--output", "new", "--store", "store")["ran"]
    assert [step for step in ran if step.endswith("draft")] == ["pull draft"]
    assert "build target" in ran


@pytest.mark.parametrize("bench", ["in_process"], indirect=True)
def test_a_device_that_changes_builds_the_draft_anew(bench: Bench) -> None:
    bench.built("--output", "out")
    bench.write("h200", "device: 'cuda:0'")
    assert bench.built("--output", "out")["ran"] == ["build draft", "write repository", "write manifest"]
    assert bench.parameters("speculative_llm")["draft_gpu_device_id"] == "0"
    assert "draft_device" not in bench.parameters("speculative_llm")


@pytest.mark.parametrize("bench", ["in_process"], indirect=True)
def test_a_container_builds_the_target_alone_and_serves_both(bench: Bench) -> None:
    image = release_of("1.2.1").image
    docker = bench.machine.containers(image)
    bench.machine.remove("tensorrt_llm")
    (bench.machine.folder / "bin/trtllm-build").unlink()
    bench.run("build", "recipe.yaml", "--output", "out", "--container")
    (words,) = docker.calls("run")
    assert "draft_tokens_external" in words
    shown = bench.run("deploy", "recipe.yaml", "--output", "out", "--container", "--dry-run")
    assert f"    {image} " in shown
