"""The torch executor on a GPU says what it says on a CPU."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest
import torch

from trtspec.serving.assembly import assemble
from trtspec.serving.completion import NO_END, CompletionRequest
from trtspec.serving.executor import Executor
from trtspec.serving.executors.torch.device_thread import DeviceThread
from trtspec.serving.executors.torch.torch_executor import TorchExecutor, load_engines
from trtspec.serving.tokenizer import Tokenizer

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch sees no GPU"),
]
Load = Callable[[Sequence[Path]], Sequence[Executor]]
TINY = Path(__file__).parents[2] / "recipes" / "tiny"
PROMPTS = ("def fib(", "class Stack:\n", "import os\n\n\ndef main(argv):\n", "for name in sorted(")


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    recipe = shutil.copytree(TINY, tmp_path_factory.mktemp("tiny") / "tiny") / "recipe.yaml"
    output = recipe.parent / "build"
    subprocess.run([sys.executable, "-m", "trtspec", "build", recipe, "--output", output], check=True)
    return output


def on(device: str) -> Load:
    """Loads both engines on one device."""

    def load(folders: Sequence[Path]) -> Sequence[Executor]:
        device_thread = DeviceThread()
        draft, target = (
            TorchExecutor(folder, device=device, device_thread=device_thread) for folder in folders[::-1]
        )
        return target, draft

    return load


def texts(build: Path, load: Load, num_draft_tokens: int) -> list[str]:
    async def main() -> list[str]:
        target, draft = load([build / "target/engine", build / "draft/engine"])
        coordinator = assemble(target, draft, Tokenizer.load(build / "tokenizer"))
        requests = [
            CompletionRequest(prompt=prompt, max_tokens=48, num_draft_tokens=num_draft_tokens, end_id=NO_END)
            for prompt in PROMPTS
        ]
        said = [delta.text for delta in await asyncio.gather(*map(coordinator.complete, requests))]
        for executor in (draft, target):
            executor.shutdown()
        return said

    return asyncio.run(main())


@pytest.mark.parametrize("num_draft_tokens", [0, 1, 4, 8])
def test_greedy_text_is_that_of_the_cpu(build: Path, num_draft_tokens: int) -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    assert texts(build, on("cuda"), num_draft_tokens) == texts(build, on("cpu"), 0)


@pytest.mark.parametrize("num_draft_tokens", [1, 8])
def test_a_draft_on_the_cpu_changes_no_text(build: Path, num_draft_tokens: int) -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    beside = partial(load_engines, draft_device="cpu")
    assert texts(build, beside, num_draft_tokens) == texts(build, on("cpu"), 0)
