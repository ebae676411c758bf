"""What the contract does not see: counters, failures inside a step, memory, the end of an engine."""

from __future__ import annotations

import asyncio
import gc
import json
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.fakes.engine_dir import tiny_llama, write_engine
from trtspec.serving.errors import EngineLoadError
from trtspec.serving.executor import FinishReason, Request, Response, SamplingConfig
from trtspec.serving.executors.torch import device
from trtspec.serving.executors.torch.device_thread import DeviceThread
from trtspec.serving.executors.torch.host import ProcessShare
from trtspec.serving.executors.torch.model import Decoder
from trtspec.serving.executors.torch.pair import load_engines
from trtspec.serving.executors.torch.runner import MAX_FAILED_STEPS, Runner
from trtspec.serving.executors.torch.sequence import MAX_ROWS
from trtspec.serving.executors.torch.spans import Span
from trtspec.serving.executors.torch.torch_executor import TorchExecutor
from trtspec.serving.text import Text


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    return write_engine(tmp_path / "engine", tiny_llama())


async def ask(executor: TorchExecutor, request: Request) -> Response:
    answer = asyncio.get_running_loop().create_future()
    executor.enqueue_request(request, answer.set_result)
    return await asyncio.wait_for(answer, 20)


class Counted(dict[int, float]):
    """A bias that counts how often it is read."""

    reads = 0

    def values(self) -> Any:
        self.reads += 1
        return super().values()


class Model:
    """Does `before` at each step, and what the engine's own model does after it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, before: Callable[[], object]) -> None:
        forward = Decoder.forward

        def changed(*arguments: Any) -> torch.Tensor:
            before()
            return forward(*arguments)

        monkeypatch.setattr(Decoder, "forward", changed)


def runner_of(executor: TorchExecutor) -> Runner:
    assert executor._runner is not None
    return executor._runner


def test_requests_in_flight_share_a_step(engine: Path) -> None:
    async def main() -> TorchExecutor:
        executor = TorchExecutor(engine)
        await asyncio.gather(*(ask(executor, Request([i + 1, 5, 9], 10)) for i in range(4)))
        executor.shutdown()
        return executor

    stats = asyncio.run(main()).stats
    assert (stats.steps, stats.rows) == (10, 4 * (3 + 9))


def test_a_bias_is_read_once_whatever_the_number_of_steps(engine: Path) -> None:
    async def main() -> int:
        executor, bias = TorchExecutor(engine), Counted({1: 1.0, 2: -1.0})
        await ask(executor, Request([5, 9], 10, embedding_bias=bias))
        executor.shutdown()
        assert executor.stats.steps == 10
        return bias.reads

    assert asyncio.run(main()) == 1


def test_verifications_wait_for_drafts_and_go_together(engine: Path, tmp_path: Path) -> None:
    """Four streams of rounds, of different prompt lengths, fall into step."""

    async def main() -> tuple[TorchExecutor, TorchExecutor]:
        device_thread = DeviceThread()
        draft = TorchExecutor(
            write_engine(tmp_path / "draft", tiny_llama(1), max_draft_len=0), device_thread=device_thread
        )
        target = TorchExecutor(engine, device_thread=device_thread)

        async def stream(text: Text) -> None:
            for _ in range(5):
                proposed = await ask(draft, Request(text, 3))
                verified = await ask(target, Request(text, 4, draft_token_ids=proposed.token_ids))
                text += verified.token_ids

        await asyncio.gather(*(stream(Text([i + 1] * (4 * i + 1))) for i in range(4)))
        draft.shutdown()
        target.shutdown()
        return draft, target

    draft, target = asyncio.run(main())
    assert target.stats.steps == 5
    assert draft.stats.steps == 15


def test_the_loop_takes_cancels_and_delivers_while_a_step_runs(
    engine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is refused and cancelled while the model is at work is answered before it is done."""
    at_work, go_on = threading.Event(), threading.Event()

    def work() -> None:
        at_work.set()
        go_on.wait(20)

    Model(monkeypatch, work)

    async def main() -> None:
        executor = TorchExecutor(engine)
        running = asyncio.create_task(ask(executor, Request([1, 2], 2)))
        while not at_work.is_set():
            await asyncio.sleep(0)
        assert (await ask(executor, Request([], 2))).error == "Input token ids are empty"
        over = asyncio.get_running_loop().create_future()
        executor.cancel_request(executor.enqueue_request(Request([3], 5), over.set_result))
        assert (await over).finish_reason is FinishReason.CANCELLED
        assert not running.done()
        go_on.set()
        assert len((await running).token_ids) == 2
        executor.shutdown()

    asyncio.run(main())


def test_a_step_that_fails_ends_its_requests_and_no_more(
    engine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        executor = TorchExecutor(engine)
        before = await ask(executor, Request([1, 2, 3], 5))
        with monkeypatch.context() as patch:
            Model(patch, lambda: 1 / 0)
            failed = await ask(executor, Request([1, 2, 3], 5))
        assert failed.error == "The engine failed: division by zero"
        assert (failed.is_final, failed.token_ids) == (True, [])
        assert executor.failure is None
        reused = executor.stats.reused_tokens
        after = await ask(executor, Request([1, 2, 3], 5))
        assert after.token_ids == before.token_ids
        assert executor.stats.reused_tokens == reused, "the cache of a failed step was trusted"
        executor.shutdown()

    asyncio.run(main())


def test_an_engine_whose_steps_all_fail_says_so_and_takes_nothing_more(
    engine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        executor = TorchExecutor(engine)
        Model(monkeypatch, lambda: 1 / 0)
        for requests in [*[4] * (MAX_FAILED_STEPS - 1), 9]:  # At the last strike some wait for their turn.
            assert executor.failure is None
            answers = await asyncio.gather(*(ask(executor, Request([1, i], 5)) for i in range(requests)))
            assert all("division by zero" in (answer.error or "") for answer in answers)
        assert executor.failure == f"The engine failed {MAX_FAILED_STEPS} times in a row: division by zero"
        assert (await ask(executor, Request([1], 1))).error == executor.failure
        executor.shutdown()

    asyncio.run(main())


def test_the_device_fails_once(engine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise torch.AcceleratorError("CUDA error:\n device-side assert triggered")

    async def main() -> None:
        executor = TorchExecutor(engine)
        Model(monkeypatch, fail)
        answers = await asyncio.gather(*(ask(executor, Request([1, index], 5)) for index in range(9)))
        line = "The engine's device failed: CUDA error: device-side assert triggered"
        assert [answer.error for answer in answers] == [line] * 9
        assert executor.failure == line
        executor.shutdown()

    asyncio.run(main())


def test_progress_rises_with_every_step(engine: Path) -> None:
    async def main() -> None:
        executor = TorchExecutor(engine)
        before = executor.progress
        await ask(executor, Request([1, 2, 3], 5))
        assert executor.progress == before + 5
        executor.shutdown()

    asyncio.run(main())


def test_an_engine_that_is_shut_down_says_so(engine: Path) -> None:
    async def main() -> Response:
        executor = TorchExecutor(engine)
        executor.shutdown()
        executor.shutdown()
        return await ask(executor, Request([1, 2, 3], 5))

    assert asyncio.run(main()).error == "The engine is shut down"


def test_shutdown_ends_the_thread_and_frees_the_weights(engine: Path) -> None:
    async def main() -> list[weakref.ref[Decoder]]:
        device_thread = DeviceThread()
        executors = [TorchExecutor(engine, device_thread=device_thread) for _ in range(2)]
        models = [weakref.ref(executor._home.model) for executor in executors if executor._home]
        for executor in executors:
            await ask(executor, Request([1, 2, 3], 50, streaming=False))
            executor.enqueue_request(Request([1, 2, 3], 50), lambda response: None)
        for executor in executors:
            executor.shutdown()
        return models

    before = {*threading.enumerate()}
    models = asyncio.run(main())
    assert {*threading.enumerate()} <= before
    gc.collect()
    assert [model() for model in models] == [None, None]


def test_requests_that_do_not_fit_the_cache_together_wait(engine: Path) -> None:
    async def main() -> None:
        executor = TorchExecutor(engine, kv_tokens=128)
        alone = [await ask(executor, Request([index + 1] * 20, 60)) for index in range(4)]
        together = await asyncio.gather(*(ask(executor, Request([index + 1] * 20, 60)) for index in range(4)))
        assert [one.token_ids for one in together] == [one.token_ids for one in alone]
        executor.shutdown()

    asyncio.run(main())


def test_memory_is_what_texts_take_and_is_given_back(engine: Path) -> None:
    async def main() -> None:
        executor = TorchExecutor(engine, kv_tokens=1000)
        cache = runner_of(executor)._cache
        assert cache.tokens == 0
        for index in range(96):
            await ask(executor, Request([index] * 40, 60))
            assert cache.tokens <= 1.5 * 1000
        assert cache.tokens > 900
        executor.shutdown()

    asyncio.run(main())


def test_a_short_text_that_begins_as_a_long_one_gives_the_rest_of_its_memory_back(tmp_path: Path) -> None:
    model = tiny_llama(max_position_embeddings=1024)
    engine = write_engine(tmp_path / "long", model, max_input_len=1024, max_seq_len=1024)

    async def main() -> None:
        executor, large = TorchExecutor(engine, kv_tokens=1024), TorchExecutor(engine)
        for index, length in enumerate((1014, 200, 820, 200, 620)):
            text = [1 + index // 2] * 100 + [10 + index] * (length - 100)
            small, usual = [await ask(each, Request(text, 4)) for each in (executor, large)]
            assert small.token_ids == usual.token_ids != []
            assert runner_of(executor)._cache.tokens <= 1.5 * 1024
        executor.shutdown()
        large.shutdown()

    asyncio.run(main())


def test_the_largest_gap_of_a_stream_while_prompts_arrive(tmp_path: Path) -> None:
    """A token in every step, and bounded rows in each: what time is made of, and the same on each machine."""
    model = tiny_llama(max_position_embeddings=1024)
    engine = write_engine(tmp_path / "long", model, max_seq_len=1024, max_batch_size=16)

    async def main(arrivals: int) -> tuple[int, int]:
        """The rows of the largest step, and how many steps the stream took."""
        executor, over = TorchExecutor(engine), asyncio.get_running_loop().create_future()
        decoder = runner_of(executor)._model
        forward = decoder.forward
        steps: list[int] = []

        def counted(token_ids: list[int], spans: Sequence[Span], wanted: list[int]) -> torch.Tensor:
            steps.append(len(token_ids))
            return forward(token_ids, spans, wanted)

        decoder.forward = counted  # type: ignore[method-assign]

        def listen(response: Response) -> None:
            if response.is_final:
                over.set_result(len(steps))

        executor.enqueue_request(Request([5], 60, streaming=True), listen)
        await asyncio.gather(*(ask(executor, Request([index + 1] * 900, 1)) for index in range(arrivals)))
        at_end = await over
        executor.shutdown()
        return max(steps), at_end

    for arrivals in (1, 8):
        rows, steps = asyncio.run(main(arrivals))
        assert rows <= MAX_ROWS["cpu"]
        assert steps <= 60 + 2, "there were steps without a token of the stream"


def test_a_round_of_a_long_text_looks_at_what_is_new(tmp_path: Path) -> None:
    """Slices of the text that an engine takes in a round are as short as the round, however long the text."""

    class Watched(Text):
        looked, is_whole = 0, False

        def __getitem__(self, part: Any) -> Any:
            found = super().__getitem__(part)
            Watched.looked += len(found) if isinstance(part, slice) else 1
            return found

        def __iter__(self) -> Iterator[int]:
            assert not Watched.is_whole, "the whole text was read"
            return super().__iter__()

    model = tiny_llama(max_position_embeddings=4096)
    engine = write_engine(tmp_path / "long", model, max_seq_len=4096)

    async def main(length: int) -> list[int]:
        executor, text, looked = TorchExecutor(engine), Watched([7] * length), []
        Watched.is_whole = True
        for _ in range(4):
            Watched.looked = 0
            response = await ask(executor, Request(text, 5, draft_token_ids=[1, 2, 3, 4]))
            looked.append(Watched.looked)
            text.extend(response.token_ids)
        executor.shutdown()
        return looked[1:]

    assert max(asyncio.run(main(3000))) <= 20


def test_penalties_still_see_the_whole_text(engine: Path) -> None:
    async def main() -> None:
        executor = TorchExecutor(engine)
        text = Text([index % 40 for index in range(80)])
        sampling = SamplingConfig(presence_penalty=1000.0)
        response = await ask(executor, Request(text, 20, sampling=sampling))
        assert not {*response.token_ids} & {*range(40)}
        assert len({*response.token_ids}) == 20
        executor.shutdown()

    asyncio.run(main())


def test_a_cache_for_which_there_is_no_memory(engine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "look", lambda: ProcessShare(2, None, 200_000))
    with pytest.raises(
        EngineLoadError, match=r"holds \d+ tokens, less than one sequence of 128 \(max_seq_len\)"
    ):
        TorchExecutor(engine)


def test_a_pair_shares_what_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    big = write_engine(tmp_path / "big", tiny_llama(num_hidden_layers=6), max_batch_size=500)
    small = write_engine(tmp_path / "small", tiny_llama(), max_batch_size=500)
    monkeypatch.setattr(device, "look", lambda: ProcessShare(2, None, 20_000_000))
    target, draft = load_engines([big, small])
    # A token takes 2 x 2 heads x 8 x 4 bytes in each of 8 layers, and half as much again; half may be taken.
    weights = sum(json_size(folder) for folder in (big, small))
    assert target.kv_tokens == draft.kv_tokens == int(0.5 * (20_000_000 - weights) / (1.5 * 8 * 128))
    target.shutdown()
    draft.shutdown()


def json_size(folder: Path) -> int:
    """Bytes of the tensors, as the header of the file has them."""
    with (folder / "rank0.safetensors").open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    return max(int(tensor["data_offsets"][1]) for name, tensor in header.items() if name != "__metadata__")


def test_the_serving_package_stands_alone() -> None:
    """It is copied into model repositories, where nothing of trtspec outside `serving` is."""
    code = (
        "import sys, trtspec.serving.executors.torch.pair;"
        "print(*sorted(m for m in sys.modules if m.startswith('trtspec.')"
        " and not m.startswith('trtspec.serving')), 'transformers' in sys.modules)"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.split() == ["False"]
