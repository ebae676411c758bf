"""A target and its draft on two devices of one machine: each has a thread, a memory and rounds of its own.

The tests have no GPU: an engine for `cuda:0` is loaded on the CPU.
"""

from __future__ import annotations

import asyncio
import threading
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
from trtspec.serving.executor import Executor, Request
from trtspec.serving.executors.torch import device, host, packed_weights, pair
from trtspec.serving.executors.torch.device import find_device, kv_tokens_of
from trtspec.serving.executors.torch.device_thread import DeviceThread
from trtspec.serving.executors.torch.engine import read_config
from trtspec.serving.executors.torch.model import Decoder
from trtspec.serving.executors.torch.packed_weights import PackedWeights, SharedWeights, packed, shared_bytes
from trtspec.serving.executors.torch.pair import load_beside, load_engines
from trtspec.serving.executors.torch.spans import Span
from trtspec.serving.executors.torch.torch_executor import TorchExecutor
from trtspec.serving.guides.guides import Guides


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
    monkeypatch.setattr(pair, "find_device", lambda named: named or "cuda:0")
    monkeypatch.setattr(pair, "TorchExecutor", on_cpu)
    share = host.ProcessShare(8, None, 1 << 30)
    for module in ("thread_count", "device"):
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
                assert may_go_on.wait(20)
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

    monkeypatch.setattr(packed_weights, "packed", counted)
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
