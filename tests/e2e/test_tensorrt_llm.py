"""The tiny pair for TensorRT-LLM: `trtllm-build` and the bindings are stand-ins, all between them is real."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.conftest import Deployer, Until
from tests.fakes.bindings import BINDINGS
from tests.fakes.gpu_machine import H200, GpuMachine
from trtspec.base.cache import cache_folder
from trtspec.serving.completion import CompletionRequest
from trtspec.serving.triton.engines import load

TINY = Path(__file__).parents[2] / "recipes" / "tiny"
TRTSPEC = Path(sys.prefix, "bin", "trtspec")
TOKENS = 24
PROMPTS = ("import ", "def add(a, b):\n    return", "class Point:\n    def __init__(self", "# héllo 日本\n")


def write_recipe(folder: Path, hardware: str, engine: str, draft: str = "") -> Path:
    """Both in bfloat16, so that both backends compute the same; `draft` are more keys of the draft."""
    recipe = folder / "recipe.yaml"
    recipe.write_text(
        "name: tiny\n"
        f"target: {{model: {TINY / 'target'}}}\n"
        f"draft: {{model: {TINY / 'draft'}{draft}}}\n"
        "speculation: {max_draft_len: 8, num_draft_tokens: 3}\n"
        f"engine: {{{engine}, max_seq_len: 1024}}\n"
        f"hardware: {{{hardware}}}\n"
    )
    return recipe


class Machine(GpuMachine):
    """NVIDIA's image, but for the bindings."""

    def __init__(self, folder: Path, *gpus: str) -> None:
        super().__init__(folder)
        self.tensorrt_llm()
        self.gpus(*gpus)

    def build(self, recipe: Path) -> Path:
        subprocess.run(
            [TRTSPEC, "build", recipe, "--output", recipe.parent / "build"],
            check=True,
            env=self.environment,
            capture_output=True,
        )
        return recipe.parent / "build"

    @property
    def serving(self) -> dict[str, str]:
        """The wheel's Triton is copied into the cache, so it is that of the other tests."""
        return self.environment | {"TRTSPEC_CACHE": str(cache_folder())}


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "machine", H200)


@pytest.fixture(
    params=["", pytest.param(", device: cpu", marks=pytest.mark.sweep)], ids=["both", "draft on the CPU"]
)
def recipe(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return write_recipe(tmp_path, "gpu: h200", "release: 1.2.1", request.param)


@pytest.fixture
def said_by_torch(tmp_path: Path) -> list[str]:
    """What the same models say after each prompt, without Triton and stand-ins."""
    folder = tmp_path / "torch"
    folder.mkdir()
    recipe = write_recipe(folder, "gpu: none", "backend: torch")
    subprocess.run([TRTSPEC, "build", recipe, "--output", folder / "build"], check=True, capture_output=True)
    folders = {f"{role}_engine_dir": f"{role}/engine" for role in ("target", "draft")}
    parameters = {"engine_backend": "torch", "tokenizer_dir": "tokenizer", **folders}

    async def complete() -> list[str]:
        pair = load(parameters, folder / "build")
        coordinator = pair.coordinator()
        requests = [CompletionRequest(prompt=prompt, max_tokens=TOKENS) for prompt in PROMPTS]
        texts = [(await coordinator.complete(request)).text for request in requests]
        pair.shutdown()
        return texts

    return asyncio.run(complete())


def test_the_text_is_that_of_the_torch_backend(
    machine: Machine, recipe: Path, said_by_torch: list[str], deployer: Deployer, until: Until
) -> None:
    build = machine.build(recipe)
    # Triton's Python looks for packages in the working folder, and not at PYTHONPATH.
    (build / "tensorrt_llm").symlink_to(BINDINGS / "tensorrt_llm")
    deploy = deployer(build, recipe=recipe, environment=machine.serving)
    until(lambda: deploy.is_ready, "the server")

    assert [deploy.generate(prompt, max_tokens=TOKENS) for prompt in PROMPTS] == said_by_torch
    for prompt, text in zip(PROMPTS, said_by_torch, strict=True):
        events = deploy.stream(prompt, max_tokens=TOKENS)
        assert "".join(event["text_output"] for event in events) == text
    without = deploy.generate(PROMPTS[0], max_tokens=TOKENS, num_draft_tokens=0)
    assert without == said_by_torch[0]
    until(lambda: deploy.metric("spec_decode_num_accepted_tokens") > 0, "accepted tokens")
    assert deploy.stop() == 0
    assert "Traceback" not in (build / "tritonserver.log").read_text()


@pytest.mark.parametrize("recipe", [""], indirect=True, ids=["both"])
@pytest.mark.sweep
def test_a_triton_whose_python_has_no_bindings_names_the_image(
    machine: Machine, recipe: Path, deployer: Deployer
) -> None:
    deploy = deployer(machine.build(recipe), recipe=recipe, environment=machine.serving)

    assert deploy.ended() == 1
    assert (
        "error: speculative_llm: did not load: tensorrt_llm: cannot be imported here (No module named"
        " 'tensorrt_llm'); serve with nvcr.io/nvidia/tritonserver:26.06-trtllm-python-py3"
    ) in deploy.said.read_text().splitlines()
