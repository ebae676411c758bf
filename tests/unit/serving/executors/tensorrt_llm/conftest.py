"""Engines as `trtllm-build` leaves them, and the stand-in for NVIDIA's bindings."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedModel

from tests.fakes.bindings import stand_in, write_trtllm_engine
from tests.fakes.engine_dir import tiny_llama
from trtspec.serving.executor import Executor, Request, Response

EngineWriter = Callable[..., Path]
Ask = Callable[[Executor, Request], Coroutine[Any, Any, Response]]


@pytest.fixture
def trtllm() -> Iterator[Any]:
    with stand_in() as module:
        yield module


@pytest.fixture
def write(tmp_path: Path) -> EngineWriter:
    """Writes an engine; keywords replace values of its `build_config`."""

    def write(name: str = "engine", model: PreTrainedModel | None = None, **build: Any) -> Path:
        return write_trtllm_engine(tmp_path / name, model or tiny_llama(), **build)

    return write


@pytest.fixture
def final() -> Ask:
    """The final response to a request, on the loop that calls."""

    async def ask(executor: Executor, request: Request) -> Response:
        answer = asyncio.get_running_loop().create_future()
        executor.enqueue_request(
            request, lambda response: answer.set_result(response) if response.is_final else None
        )
        return await asyncio.wait_for(answer, 120)

    return ask
