"""Two engines in one process: their GPUs, and KV caches that leave each other room."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.engine_dir import tiny_llama
from tests.unit.serving.executors.tensorrt_llm.conftest import Ask
from trtspec.serving.errors import EngineLoadError
from trtspec.serving.executor import Request
from trtspec.serving.executors.tensorrt_llm.bindings import free_memory, load_bindings
from trtspec.serving.executors.tensorrt_llm.engine import KvBudget, read_engine, tokens_of_each
from trtspec.serving.executors.tensorrt_llm.trtllm_executor import (
    EngineLocation,
    TrtLlmExecutor,
    load_engines,
)

MIB = 2**20
DRAFT = {"speculative_decoding_mode": 1, "max_draft_len": 0}


@pytest.fixture
def gpus(trtllm: Any) -> Any:
    """The memory of two GPUs of 8 MiB, on which a token of both engines takes 384 bytes."""
    from tensorrt_llm.gpu import GPUS

    for gpu in GPUS:
        gpu.total = 8 * MIB
    return GPUS


@pytest.fixture
def folders(write: Any) -> tuple[Path, Path]:
    return write("target"), write("draft", tiny_llama(1, num_hidden_layers=1), **DRAFT)


def caches(trtllm: Any) -> list[Any]:
    """What each executor was told of its KV cache, in the order in which they were loaded."""
    return [executor.config.kv_cache_config for executor in trtllm.Executor.MADE]


def test_on_one_gpu_both_caches_hold_about_the_same_texts(trtllm: Any, gpus: Any, folders: Any) -> None:
    free = free_memory(0)
    target, draft = load_engines(trtllm, [EngineLocation(folders[0], 0), EngineLocation(folders[1], 0)], 0.9)

    theirs, ours = caches(trtllm)
    weights = sum((folder / "rank0.engine").stat().st_size for folder in folders)
    assert theirs.max_tokens == int((free - weights) * 0.9) // 384
    assert ours.max_tokens is None
    assert theirs.free_gpu_memory_fraction == ours.free_gpu_memory_fraction == 0.9
    of_target = gpus[0].used - weights - theirs.max_tokens * 128
    assert of_target / 256 == pytest.approx(theirs.max_tokens, rel=0.05)
    assert gpus[1].used == 0

    target.shutdown()
    draft.shutdown()
    assert gpus[0].used == 0


def test_without_a_plan_the_second_would_not_fit(trtllm: Any, gpus: Any, folders: Any) -> None:
    """Each takes its fraction of what is free when it is loaded."""
    target, draft = (read_engine(folder, "1.2.1") for folder in folders)
    gpus[0].total = MIB
    TrtLlmExecutor(trtllm, draft, 0, KvBudget(0.9))
    with pytest.raises(EngineLoadError, match=r"out of memory|exceeds upper bound"):
        TrtLlmExecutor(trtllm, target, 0, KvBudget(0.9))


def test_on_two_gpus_each_has_its_fraction(trtllm: Any, gpus: Any, folders: Any) -> None:
    load_engines(trtllm, [EngineLocation(folders[0], 0), EngineLocation(folders[1], 1)], 0.8)

    assert [cache.max_tokens for cache in caches(trtllm)] == [None, None]
    assert [executor.config.parallel_config.device_ids for executor in trtllm.Executor.MADE] == [[1], [0]]
    for gpu, folder in zip(gpus, folders, strict=True):
        weights = (folder / "rank0.engine").stat().st_size
        assert gpu.used - weights == pytest.approx(0.8 * (gpu.total - weights), rel=0.01)


@pytest.mark.parametrize("device", [0, 1])
def test_a_target_alone_has_its_fraction(trtllm: Any, gpus: Any, folders: Any, device: int) -> None:
    (target,) = load_engines(trtllm, [EngineLocation(folders[0], device)], 0.8)
    (cache,) = caches(trtllm)
    assert (cache.max_tokens, cache.free_gpu_memory_fraction) == (None, 0.8)
    weights = (folders[0] / "rank0.engine").stat().st_size
    taken = gpus[device].used - weights
    assert taken == pytest.approx(0.8 * (gpus[device].total - weights), rel=0.01)
    assert gpus[1 - device].used == 0
    target.shutdown()


def test_a_target_alone_must_verify_drafts(trtllm: Any, folders: Any) -> None:
    with pytest.raises(EngineLoadError, match=r"verifies no drafts: .* draft_tokens_external"):
        load_engines(trtllm, [EngineLocation(folders[1], 0)], 0.9)


def test_too_little_memory_is_said_before_anything_is_loaded(trtllm: Any, gpus: Any, folders: Any) -> None:
    gpus[0].total = 200_000
    with pytest.raises(EngineLoadError) as caught:
        load_engines(trtllm, [EngineLocation(folders[0], 0), EngineLocation(folders[1], 0)], 0.9)
    assert str(caught.value) == (
        "GPU 0: has 0.0 GiB free, but the engines need 0.0 GiB for weights and 0.0 GiB for the KV caches of "
        "one sequence of 128 tokens"
    )
    assert trtllm.Executor.MADE == []


def test_a_target_without_the_mode(trtllm: Any, folders: Any) -> None:
    with pytest.raises(EngineLoadError, match=r"verifies no drafts: .* draft_tokens_external"):
        load_engines(trtllm, [EngineLocation(folders[1], 0), EngineLocation(folders[1], 0)], 0.9)


def test_a_target_that_does_not_load_leaves_no_draft_behind(trtllm: Any, gpus: Any, folders: Any) -> None:
    with pytest.raises(EngineLoadError, match="invalid device ordinal"):
        load_engines(trtllm, [EngineLocation(folders[0], 7), EngineLocation(folders[1], 0)], 0.9)
    [draft] = trtllm.Executor.MADE
    assert not draft.can_enqueue_requests()
    assert gpus[0].used == 0


def test_rounds_of_both(trtllm: Any, gpus: Any, folders: Any, final: Ask) -> None:
    """A draft from one engine is verified by the other, and the text is the target's."""

    async def main() -> tuple[list[int], list[int]]:
        target, draft = load_engines(
            trtllm, [EngineLocation(folders[0], 0), EngineLocation(folders[1], 0)], 0.9
        )
        prompt = [5, 6, 7]
        text: list[int] = []
        while len(text) < 20:
            proposed = await final(draft, Request(prompt + text, 4))
            verify = Request(prompt + text, 5, draft_token_ids=proposed.token_ids)
            text += (await final(target, verify)).token_ids
        return text[:20], (await final(target, Request(prompt, 20))).token_ids

    speculated, plain = asyncio.run(main())
    assert speculated == plain


def test_a_cache_has_no_more_tokens_than_fit_a_number(folders: Any) -> None:
    target, draft = (read_engine(folder, "1.2.1") for folder in folders)
    assert tokens_of_each(2**60, 0.9, [target, draft]) == 2**31 - 1
    assert tokens_of_each(1000, 0.9, [target, draft]) == 0


def test_a_gpu_that_cannot_be_asked() -> None:
    with pytest.raises(EngineLoadError, match="GPU 99: cannot be asked how much memory is free"):
        free_memory(99)


def test_bindings_that_are_not_there_name_the_image() -> None:
    with pytest.raises(EngineLoadError) as caught:
        load_bindings("nvcr.io/image")
    problem = "cannot be imported here (No module named 'tensorrt_llm'); serve with nvcr.io/image"
    assert (caught.value.subject, caught.value.problem) == ("tensorrt_llm", problem)


def test_bindings_that_are_there(trtllm: Any) -> None:
    assert load_bindings("nvcr.io/image") is trtllm
    assert trtllm.__version__ == "1.2.1"
