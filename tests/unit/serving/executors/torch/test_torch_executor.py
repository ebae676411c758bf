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
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from tests.fakes.engine_dir import tiny_llama, write_engine
from trtspec.serving.async_executor import AsyncExecutor
from trtspec.serving.errors import EngineLoadError
from trtspec.serving.executor import Executor, FinishReason, Request, Response, SamplingConfig
from trtspec.serving.executors.torch import device, host, linear, torch_executor
from trtspec.serving.executors.torch.device import find_device, kv_tokens_of
from trtspec.serving.executors.torch.device_thread import DeviceThread
from trtspec.serving.executors.torch.engine import read_config
from trtspec.serving.executors.torch.host import ProcessShare
from trtspec.serving.executors.torch.linear import PackedWeights, SharedWeights, packed, shared_bytes
from trtspec.serving.executors.torch.model import Decoder
from trtspec.serving.executors.torch.runner import MAX_FAILED_STEPS, Runner
from trtspec.serving.executors.torch.sequence import MAX_ROWS
from trtspec.serving.executors.torch.spans import Span
from trtspec.serving.executors.torch.torch_executor import TorchExecutor, load_beside, load_engines
from trtspec.serving.guides.guides import Guides
from trtspec.serving.text import Text


class TestFindDevice:
    @pytest.fixture
    def gpus(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
        def see(count: int) -> None:
            monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
            monkeypatch.setattr(torch.cuda, "device_count", lambda: count)

        return see

    @pytest.mark.parametrize(
        ("count", "named", "found"),
        [
            (0, None, "cpu"),
            (0, "cpu", "cpu"),
            (1, None, "cuda:0"),
            (1, "cpu", "cpu"),
            (2, "cuda:1", "cuda:1"),
        ],
    )
    def test_the_device_is_the_named_one_or_the_first_gpu(
        self, gpus: Callable[[int], None], count: int, named: str | None, found: str
    ) -> None:
        gpus(count)
        assert find_device(named) == found

    def test_a_gpu_that_is_not_here(self, gpus: Callable[[int], None]) -> None:
        gpus(2)
        with pytest.raises(EngineLoadError, match="device: there is no cuda:2: GPUs that PyTorch sees: 2"):
            find_device("cuda:2")

    def test_without_any_gpu_all_run_on_the_cpu(
        self, gpus: Callable[[int], None], caplog: pytest.LogCaptureFixture
    ) -> None:
        gpus(0)
        assert find_device("cuda:1") == "cpu"
        assert caplog.messages == ["neither cuda:1 nor any other GPU is here: the engine runs on the CPU"]


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    draft = write_engine(
        tmp_path / "draft", tiny_llama(1), max_draft_len=0, speculative_decoding_mode=1, max_seq_len=96
    )
    return write_engine(tmp_path / "target", tiny_llama(2)), draft


@pytest.fixture
def two_devices(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine with a GPU, whose process may run on eight processors."""

    def on_cpu(
        folder: Path, *, device: str, device_thread: DeviceThread, guides: Guides | None
    ) -> TorchExecutor:
        assert device in ("cuda:0", "cpu")
        return TorchExecutor(folder, device="cpu", device_thread=device_thread, guides=guides)

    threads = torch.get_num_threads()
    torch.set_num_threads(8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(torch_executor, "find_device", lambda named: named or "cuda:0")
    monkeypatch.setattr(torch_executor, "TorchExecutor", on_cpu)
    share = host.ProcessShare(8, None, 1 << 30)
    for module in ("device_thread", "device"):
        monkeypatch.setattr(f"trtspec.serving.executors.torch.{module}.look", lambda: share)
    yield
    torch.set_num_threads(threads)


@contextmanager
def loaded(folders: Sequence[Path], draft_device: str | None = None) -> Iterator[Sequence[Executor]]:
    """Loads engines, and shuts them down whatever happens: a failure leaves no thread to the next test."""
    executors = load_engines(folders, draft_device)
    try:
        yield executors
    finally:
        for executor in reversed(executors):
            executor.shutdown()


@pytest.fixture
def running() -> Callable[[], int]:
    """Counts the threads of steps that this test has begun; a test before it may have left one that hangs."""
    others = {*threading.enumerate()}

    def count() -> int:
        return sum(thread.name == "trtspec-steps" for thread in {*threading.enumerate()} - others)

    return count


def threads_of(executor: Executor) -> int:
    """How many threads PyTorch uses on the thread of its steps."""
    assert isinstance(executor, TorchExecutor)
    return executor._device_thread.call(torch.get_num_threads)


@pytest.mark.usefixtures("two_devices")
def test_each_has_a_thread_and_a_memory_of_its_own(
    folders: tuple[Path, Path], running: Callable[[], int]
) -> None:
    """The draft computes on all processors but one; the thread of the GPU has no helpers beside it."""

    async def main() -> None:
        with loaded(folders, "cpu") as (target, draft):
            assert running() == 2
            assert (threads_of(target), threads_of(draft)) == (1, 7)
            assert (target.kv_tokens, draft.kv_tokens) == (2 * 4 * 128, 2 * 4 * 96)
            for executor in (target, draft):
                await AsyncExecutor(executor).answer(Request([5], 8), 1e9)
            # Beside other programs the draft may have gone on with fewer than seven.
            assert threads_of(target) == 1 <= threads_of(draft) <= 7
            target.shutdown()
            assert running() == 1
        assert running() == 0

    asyncio.run(main())


@pytest.mark.usefixtures("two_devices")
def test_their_steps_do_not_wait_for_each_other(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two texts: while one is drafted, the other may be verified."""

    async def main() -> None:
        with loaded(folders, "cpu") as (target, draft):
            assert isinstance(draft, TorchExecutor)
            assert draft._runner
            forward, may_go_on = draft._runner._model.forward, threading.Event()

            def held(*arguments: object) -> torch.Tensor:
                assert may_go_on.wait(120)
                return forward(*arguments)  # type: ignore[arg-type]

            monkeypatch.setattr(draft._runner._model, "forward", held)
            drafting = asyncio.ensure_future(AsyncExecutor(draft).answer(Request([5], 4), 1e9))
            verified = await AsyncExecutor(target).answer(Request([7], 4, draft_token_ids=[1, 2]), 1e9)
            assert verified.token_ids
            assert not drafting.done()
            may_go_on.set()
            assert len((await drafting).token_ids) == 4

    asyncio.run(main())


def test_the_same_device_is_one_thread_and_one_memory(
    folders: tuple[Path, Path], running: Callable[[], int]
) -> None:
    async def main() -> None:
        with loaded(folders, device.CPU) as (target, draft):
            assert running() == 1
            assert target.kv_tokens == draft.kv_tokens

    asyncio.run(main())


def test_a_target_that_does_not_load_takes_the_draft_with_it(
    folders: tuple[Path, Path], running: Callable[[], int]
) -> None:
    def load() -> list[Executor]:
        assert running() == 1
        raise EngineLoadError("GPU 0", "is busy")

    with pytest.raises(EngineLoadError, match="GPU 0: is busy"):
        load_beside(load, folders[1], device.CPU)
    assert running() == 0


def test_nothing_of_a_pair_is_left_where_the_target_does_not_load(
    folders: tuple[Path, Path], running: Callable[[], int]
) -> None:
    weights = folders[0] / "rank0.safetensors"
    save_file({name: value for name, value in load_file(weights).items() if "ln_f" not in name}, weights)
    with pytest.raises(EngineLoadError):
        load_engines(folders)
    assert running() == 0


def test_a_draft_of_layers_of_its_target_holds_no_weights_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has the logits of its own model in transformers, and the target goes on when the draft is gone."""
    packs = count_packs(monkeypatch)
    target, draft = some_layers(tmp_path, [0, 2])
    alone = 4 * 4 + 1  # Four products in each of four layers, and the head.

    async def main() -> None:
        with loaded([tmp_path / "target", tmp_path / "draft"]) as executors:
            assert len(packs) == alone
            homes = [executor._home for executor in executors if isinstance(executor, TorchExecutor)]
            decoders = [home.model for home in homes if home]
            assert decoders[0].embedding is decoders[1].embedding
            for executor, decoder, model in zip(
                executors[::-1], decoders[::-1], (draft, target), strict=True
            ):
                assert isinstance(executor, TorchExecutor)
                assert executor._device_thread.call(partial(difference, decoder, model)) < 3e-5
                executor.shutdown()

    asyncio.run(main())


def test_the_budget_knows_what_is_held_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What target and draft have in common is a draft of two layers without its norms, here to the byte."""
    _, draft = some_layers(tmp_path, [0, 2])
    folders = [tmp_path / "target", tmp_path / "draft"]
    configs = [read_config(folder) for folder in folders]
    matrices = sum(weight.numel() for weight in draft.parameters() if weight.dim() > 1)
    assert shared_bytes(folders, configs) == 4 * matrices

    sizes = [file.stat().st_size for folder in folders for file in folder.glob("*.safetensors")]
    few = host.ProcessShare(1, None, sum(sizes) - 4 * matrices // 2)
    monkeypatch.setattr("trtspec.serving.executors.torch.device.look", lambda: few)
    with pytest.raises(EngineLoadError, match="less than one sequence"):
        kv_tokens_of(configs, "cpu")
    per_token = sum(2 * config.num_layers * config.num_kv_heads * config.head_size * 4 for config in configs)
    with loaded(folders) as both:
        for executor in both:
            assert executor.kv_tokens == pytest.approx(4 * matrices // 2 / 2 / (1.5 * per_token), rel=0.1)


@pytest.mark.parametrize("change", ["one bit", "dtype", "none"])
def test_two_engines_share_only_weights_that_agree_in_every_bit(tmp_path: Path, change: str) -> None:
    same = tiny_llama(1)
    folders = [write_engine(tmp_path / "target", same), tmp_path / "draft"]
    if change == "one bit":
        weight = same.model.layers[0].mlp.down_proj.weight.data
        weight[3, 3] = torch.nextafter(weight[3, 3], torch.tensor(9.0))
    if change == "dtype":
        same = tiny_llama(1, torch.bfloat16)
    write_engine(folders[1], same, max_draft_len=0, speculative_decoding_mode=1)
    configs = [read_config(folder) for folder in folders]
    matrices = sum(weight.numel() for weight in same.parameters() if weight.dim() > 1)
    changed = same.model.layers[0].mlp.down_proj.weight.numel()
    expected = {"one bit": matrices - changed, "dtype": 0, "none": matrices}[change]
    assert shared_bytes(folders, configs) == 4 * expected


def test_weights_that_differ_are_not_shared() -> None:
    """By one bit, in a bias or in a weight."""
    shared, weight = SharedWeights(), torch.randn(300, 300)
    bias, changed = torch.randn(300), weight.clone()
    changed[7, 7] = torch.nextafter(weight[7, 7], torch.tensor(9.0))
    packs = [shared.pack(*one) for one in ((weight, None), (weight, bias), (changed, None), (weight, -bias))]
    assert len({id(pack) for pack in packs}) == 4
    assert shared.pack(weight.clone(), bias.clone()) is packs[1]
    assert shared.tensor(weight) is not shared.tensor(weight.view(100, 900))
    assert shared.tensor(weight.clone()) is weight


@pytest.mark.parametrize("is_tied", [False, True])
def test_a_tied_head_that_is_not_packed_is_the_embedding(tmp_path: Path, is_tied: bool) -> None:
    """Nothing packs half precision."""
    model = tiny_llama(dtype=torch.float16, tie_word_embeddings=is_tied)
    executor = TorchExecutor(write_engine(tmp_path / "engine", model))
    assert executor._home
    decoder = executor._home.model
    product = decoder._head._linear
    assert isinstance(product, partial)
    assert (product.keywords["weight"].data_ptr() == decoder.embedding.data_ptr()) == is_tied
    assert executor._device_thread.call(partial(difference, decoder, model)) < 1e-2
    executor.shutdown()


def count_packs(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """The weights that are packed from now on."""
    packs: list[torch.Tensor] = []

    def counted(weight: torch.Tensor, bias: torch.Tensor | None) -> PackedWeights:
        packs.append(weight)
        return packed(weight, bias)

    monkeypatch.setattr(linear, "packed", counted)
    return packs


def some_layers(folder: Path, kept: list[int]) -> tuple[PreTrainedModel, PreTrainedModel]:
    """A target of four layers, and a draft of some of them; both also as engines."""
    sizes: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 32}
    target = tiny_llama(num_hidden_layers=4, **sizes)
    draft = tiny_llama(num_hidden_layers=len(kept), **sizes)
    draft.model.embed_tokens, draft.model.norm = target.model.embed_tokens, target.model.norm
    draft.lm_head = target.lm_head
    for place, layer in enumerate(kept):
        draft.model.layers[place].load_state_dict(target.model.layers[layer].state_dict())
    write_engine(folder / "target", target)
    write_engine(folder / "draft", draft, max_draft_len=0, speculative_decoding_mode=1)
    return target, draft


@torch.inference_mode()
def difference(decoder: Decoder, model: PreTrainedModel) -> float:
    """Between the logits of an engine and transformers', relative to the largest."""
    text = [(17 * i) % 96 for i in range(40)]
    theirs = model(torch.tensor([text])).logits[0]
    ours = decoder.forward(text, [Span(0, 0, len(text))], list(range(len(text))))
    return float((ours - theirs).abs().max() / theirs.abs().max())


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    return write_engine(tmp_path / "engine", tiny_llama())


async def ask(executor: TorchExecutor, request: Request) -> Response:
    answer = asyncio.get_running_loop().create_future()
    executor.enqueue_request(request, answer.set_result)
    return await asyncio.wait_for(answer, 120)


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
        go_on.wait(120)

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
        "import sys, trtspec.serving.executors.torch.torch_executor;"
        "print(*sorted(m for m in sys.modules if m.startswith('trtspec.')"
        " and not m.startswith('trtspec.serving')), 'transformers' in sys.modules)"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.split() == ["False"]
