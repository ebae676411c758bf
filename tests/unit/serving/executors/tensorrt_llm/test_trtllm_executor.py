"""What the contract does not see: what the bindings are told, what they refuse, an engine that dies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.fakes.bindings import change_config
from tests.fakes.engine_dir import tiny_llama, tiny_model
from tests.unit.serving.executors.tensorrt_llm.conftest import Ask
from trtspec.serving.errors import EngineLoadError
from trtspec.serving.executor import (
    Executor,
    FinishReason,
    Limits,
    LogitsFormat,
    Request,
    Response,
    SamplingConfig,
)
from trtspec.serving.executors.tensorrt_llm.bindings import free_memory, from_bindings, load_bindings
from trtspec.serving.executors.tensorrt_llm.trtllm_executor import (
    EngineLocation,
    KvBudget,
    TrtLlmEngine,
    TrtLlmExecutor,
    load_engines,
    read_engine,
    tokens_of_each,
)


def test_limits_are_those_of_the_runtime(write: Any) -> None:
    """The longest prompt leaves room for one token, whatever max_input_len was given to the build."""
    limits = Limits(
        *(4, 127, 128, 6, 96),
        ignored_options=frozenset({"min_p"}),
        returns_log_probs=False,
        max_top_log_probs=0,
        never_banned=range(1),
        matches_samples=False,
        draft_logits=LogitsFormat(96, "float32"),
        tokens_per_block=32,
    )
    assert read_engine(write(max_input_len=7), "1.2.1").limits == limits
    draft = read_engine(write("draft", speculative_decoding_mode=1), "1.2.1").limits
    assert (draft.max_draft_len, draft.ignored_options) == (0, frozenset())


def test_a_prompt_that_is_read_at_once_fits_an_iteration(write: Any) -> None:
    folder = write(max_num_tokens=100)
    assert read_engine(folder, "1.2.1", enable_chunked_context=False).limits.max_input_len == 100
    assert read_engine(folder, "1.2.1", enable_chunked_context=True).limits.max_input_len == 127


def test_memory(write: Any) -> None:
    """2 layers of 2 heads of 8 numbers, keys and values; the file, and weights that lie beside it."""
    folder = write()
    (folder / "rank0_managed_weights.safetensors").write_bytes(b"x" * 1000)
    engine = read_engine(folder, "1.2.1")
    assert engine.weight_bytes == (folder / "rank0.engine").stat().st_size + 1000
    assert engine.kv_bytes == 2 * 2 * 2 * 8 * 4
    change_config(folder, "pretrained_config", dtype="bfloat16")
    assert read_engine(folder, "1.2.1").kv_bytes == 2 * 2 * 2 * 8 * 2
    change_config(folder, "pretrained_config", quantization={"kv_cache_quant_algo": "FP8"})
    assert read_engine(folder, "1.2.1").kv_bytes == 2 * 2 * 2 * 8
    change_config(folder, "pretrained_config", head_size=None, num_key_value_heads=None)
    assert read_engine(folder, "1.2.1").kv_bytes == 2 * 2 * 48


@pytest.mark.parametrize(("window", "told"), [(None, None), (16, 16), (127, 127), (128, None), (4096, None)])
def test_an_engine_on_disk_has_a_sliding_window_only_if_a_text_can_outgrow_it(
    write: Any, window: int | None, told: int | None
) -> None:
    folder = write(model=tiny_model("mistral", sliding_window=window))
    assert read_engine(folder, "1.2.1").max_attention_window == told


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "another release": ("", {"version": "1.1.0"}, "was built by TensorRT-LLM 1.1.0, but this is 1.2.1"),
    "two ranks": ("pretrained_config", {"mapping": {"world_size": 2}}, "has 2 ranks, .* layout: bls"),
    "no reuse": (
        "build_config",
        {"plugin_config": {"use_paged_context_fmha": False}},
        "built without use_paged_context_fmha",
    ),
    "a size that is none": ("build_config", {"max_seq_len": "long"}, "not an engine's config.json"),
    "a dtype that is none": ("pretrained_config", {"dtype": "int3"}, "has no int3"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(write: Any, name: str) -> None:
    section, changes, problem = REFUSED[name]
    folder = write()
    change_config(folder, section, **changes)
    with pytest.raises(EngineLoadError, match=problem):
        read_engine(folder, "1.2.1")


def test_folders_that_are_no_engines(write: Any, tmp_path: Path) -> None:
    with pytest.raises(EngineLoadError, match=r"config\.json: no such file; is this an engine directory"):
        read_engine(tmp_path, "1.2.1")
    folder = write()
    (folder / "rank0.engine").rename(folder / "rank1.engine")
    with pytest.raises(EngineLoadError, match=r"has no rank0\.engine"):
        read_engine(folder, "1.2.1")
    (folder / "config.json").write_text("{")
    with pytest.raises(EngineLoadError, match=r"not an engine's config\.json"):
        read_engine(folder, "1.2.1")
    (folder / "config.json").write_text('{"version": "1.2.1", "pretrained_config": {}}')
    with pytest.raises(EngineLoadError, match="has no build_config"):
        read_engine(folder, "1.2.1")


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


Load = Callable[..., TrtLlmExecutor]


@pytest.fixture
def engine(write: Any) -> TrtLlmEngine:
    return read_engine(write(), "1.2.1")


@pytest.fixture
def load(trtllm: Any, engine: TrtLlmEngine) -> Load:
    return lambda loaded=engine, fraction=0.1: TrtLlmExecutor(trtllm, loaded, 0, KvBudget(fraction))


def asked(executor: TrtLlmExecutor, trtllm: Any, request: Request) -> Any:
    """The bindings' request that ours becomes."""
    runtime = trtllm.Executor.MADE[-1]
    executor.enqueue_request(request, lambda response: None)
    return runtime.requests[-1]


class TestConfig:
    def test_is_what_drafts_need(self, load: Load, trtllm: Any) -> None:
        load()
        config = trtllm.Executor.MADE[0].config
        cache = config.kv_cache_config
        assert config.batching_type is trtllm.BatchingType.INFLIGHT
        assert (config.max_beam_width, config.enable_chunked_context) == (1, True)
        assert (cache.enable_block_reuse, cache.host_cache_size, cache.max_attention_window) == (
            True,
            None,
            None,
        )
        assert config.parallel_config.communication_mode is trtllm.CommunicationMode.LEADER
        assert config.gather_generation_logits is False
        assert (config.spec_dec_config, config.decoding_config) == (None, None)

    def test_chunked_context_is_the_plans_to_decide(self, load: Load, write: Any, trtllm: Any) -> None:
        engine = read_engine(write(max_num_tokens=100), "1.2.1", enable_chunked_context=False)
        limits = load(engine).limits
        runtime = trtllm.Executor.MADE[0]
        assert not runtime.config.enable_chunked_context
        assert limits.max_input_len == 100

    def test_a_cache_too_small_for_one_text_is_an_error(self, load: Load) -> None:
        with pytest.raises(EngineLoadError, match="window size 128 exceeds upper bound 3 for available"):
            load(fraction=1e-8)

    @pytest.mark.parametrize("window", [None, 16])
    def test_a_sliding_window_is_seen(self, load: Load, write: Any, final: Ask, window: int | None) -> None:
        model = tiny_model("mistral", sliding_window=window, attn_implementation="eager")
        prompt = [(11 * i) % 96 for i in range(40)]
        text = list(prompt)
        with torch.inference_mode():
            for _ in range(12):
                text.append(int(model(torch.tensor([text])).logits[0, -1].argmax()))
        folder = write("mistral", model)

        async def main() -> Response:
            return await final(load(read_engine(folder, "1.2.1")), Request(prompt, 12))

        assert asyncio.run(main()).token_ids == text[40:]
        if window:
            change_config(folder, "pretrained_config", sliding_window=None)
            assert asyncio.run(main()).token_ids != text[40:]


class TestRequests:
    def ask(self, load: Load, trtllm: Any, request: Request) -> Any:
        async def main() -> Any:
            return asked(load(), trtllm, request)

        return asyncio.run(main())

    def test_a_verification(self, load: Load, trtllm: Any) -> None:
        """Tokens alone: no logits, no threshold, which engines share between requests."""
        request = Request([1, 2, 3], 4, draft_token_ids=[4, 5, 6], end_id=9, streaming=True)
        told = self.ask(load, trtllm, request)
        draft = told.external_draft_tokens_config
        assert (told.input_token_ids, told.max_tokens, told.end_id) == ([1, 2, 3], 4, 9)
        assert (draft.tokens, draft.logits, draft.acceptance_threshold, draft.fast_logits) == (
            [4, 5, 6],
            None,
            None,
            None,
        )
        assert told.streaming is False
        assert told.sampling_config.beam_width == 1
        output = told.output_config
        assert output.exclude_input_from_output is True
        assert (output.return_generation_logits, output.return_context_logits) == (False, False)

    def test_ordinary_decoding(self, load: Load, trtllm: Any) -> None:
        told = self.ask(load, trtllm, Request([1, 2, 3], 4, streaming=True))
        assert (told.external_draft_tokens_config, told.end_id, told.streaming) == (None, None, True)

    @pytest.mark.parametrize(
        ("ours", "top_k", "top_p", "temperature", "seed"),
        [
            (SamplingConfig(), 1, None, None, None),
            (SamplingConfig(temperature=0, top_p=0.5, seed=3), 1, None, None, None),
            (SamplingConfig(temperature=0.7), None, 1.0, 0.7, None),
            (SamplingConfig(temperature=0.7, top_k=5, seed=-1), 5, None, 0.7, 2**64 - 1),
            (SamplingConfig(temperature=0.7, top_k=0, top_p=0.9, seed=8), 0, 0.9, 0.7, 8),
        ],
    )
    def test_the_bindings_are_told_the_sampling_of_a_request(
        self,
        load: Load,
        trtllm: Any,
        ours: SamplingConfig,
        top_k: int | None,
        top_p: float | None,
        temperature: float | None,
        seed: int | None,
    ) -> None:
        told = self.ask(load, trtllm, Request([1], 4, sampling=ours)).sampling_config
        assert (told.top_k, told.top_p, told.temperature, told.seed) == (top_k, top_p, temperature, seed)

    def test_penalties(self, load: Load, trtllm: Any) -> None:
        ours = SamplingConfig(
            repetition_penalty=1.1, presence_penalty=0.2, frequency_penalty=0.3, min_tokens=2
        )
        told = self.ask(load, trtllm, Request([1], 4, sampling=ours)).sampling_config
        assert (told.repetition_penalty, told.presence_penalty, told.frequency_penalty, told.min_tokens) == (
            1.1,
            0.2,
            0.3,
            2,
        )

    def test_the_in_process_executor_refuses_a_ban_that_the_engine_would_skip(
        self, load: Load, trtllm: Any, final: Ask
    ) -> None:
        words = [[0, 4], [7]]
        assert self.ask(load, trtllm, Request([1], 4, bad_words=words)).bad_words == words

        async def refused() -> Response:
            return await final(load(), Request([1], 4, bad_words=[[0]]))

        assert asyncio.run(refused()).error == "Bad word [0] ends in token id 0, which this engine never bans"

    def test_min_p_reaches_a_draft_engine_and_is_refused_where_it_would_be_ignored(
        self, load: Load, write: Any, trtllm: Any, final: Ask
    ) -> None:
        warm = Request([1], 4, sampling=SamplingConfig(temperature=0.7, min_p=0.25))
        draft = read_engine(write("draft", speculative_decoding_mode=1), "1.2.1")

        async def refused() -> Response:
            return await final(load(), warm)

        assert self.ask(lambda: load(draft), trtllm, warm).sampling_config.min_p == 0.25
        assert asyncio.run(refused()).error == "Incorrect sampling config: the engine ignores min_p"


class TestErrors:
    def test_an_error_of_loading_an_engine_is_one_line(self, load: Load, engine: TrtLlmEngine) -> None:
        (engine.folder / "config.json").unlink()
        with pytest.raises(EngineLoadError) as caught:
            load()
        problem = f"Assertion failed: File does not exist: {engine.folder / 'config.json'}"
        assert (caught.value.subject, caught.value.problem) == (str(engine.folder), problem)

    def test_an_error_of_the_engine_is_one_line_and_harms_no_other_request(
        self, load: Load, engine: TrtLlmEngine, final: Ask
    ) -> None:
        """The engine is believed to take more than it does."""
        generous = replace(engine, limits=replace(engine.limits, max_input_len=500, max_seq_len=600))

        async def main() -> list[Response]:
            executor = load(generous)
            return [await final(executor, Request([1] * length, 4)) for length in (300, 3)]

        refused, served = asyncio.run(main())
        assert refused.error == (
            "Encountered an error when fetching new request: Prompt length (300) exceeds maximum input length"
            " (127). Set log level to info and check TRTGptModel logs"
        )
        assert (refused.token_ids, refused.is_final) == ([], True)
        assert len(served.token_ids) == 4

    def test_a_value_that_the_bindings_reject_fails_its_request_alone(self, load: Load, final: Ask) -> None:
        async def main() -> tuple[Response, Response]:
            executor = load()
            wrong = await final(executor, Request([1], 4, sampling=SamplingConfig(top_k=2**31)))
            return wrong, await final(executor, Request([1], 4))

        wrong, right = asyncio.run(main())
        assert wrong.error == (
            "SamplingConfig.top_k: incompatible function arguments. The following argument types are"
            " supported:"
        )
        assert right.error is None

    def test_an_error_of_a_listener_harms_no_other_response_of_the_iteration(
        self, load: Load, trtllm: Any
    ) -> None:
        async def main() -> tuple[list[Response], list[Exception]]:
            errors: list[Exception] = []
            heard: list[Response] = []
            loop = asyncio.get_running_loop()
            loop.set_exception_handler(lambda _, context: errors.append(context["exception"]))
            executor = load()

            def fail(response: Response) -> None:
                raise KeyError("listener")

            ids = [executor.enqueue_request(Request([1], 100), listener) for listener in (fail, heard.append)]
            executor._receive([trtllm.Response(request_id, "of the engine") for request_id in ids])
            while not heard:
                await asyncio.sleep(0)
            return heard, errors

        [response], [error] = asyncio.run(main())
        assert response.error == "of the engine"
        assert isinstance(error, KeyError)


class TestAnEngineThatDies:
    def test_everyone_hears_of_it(self, load: Load, trtllm: Any, final: Ask) -> None:
        async def main() -> list[Response]:
            executor = load()
            tasks = [asyncio.create_task(final(executor, Request([i + 1], 100))) for i in range(3)]
            await asyncio.sleep(0)
            trtllm.Executor.MADE[0].break_down("CUDA error: an illegal memory access was encountered")
            heard = [await task for task in tasks]
            heard.append(await final(executor, Request([1], 4)))
            executor.shutdown()
            return heard

        said = "The engine failed: CUDA error: an illegal memory access was encountered"
        for response in asyncio.run(main()):
            assert (response.error, response.token_ids, response.is_final) == (said, [], True)

    def test_before_anyone_asked(self, load: Load, trtllm: Any, final: Ask) -> None:
        executor = load()
        trtllm.Executor.MADE[0].break_down("gone")
        executor._responses._thread.join(120)
        response = asyncio.run(self.ask(executor, final))
        assert response.error == "The engine failed: gone"

    async def ask(self, executor: Executor, final: Ask) -> Response:
        return await final(executor, Request([1], 4))

    def test_a_request_of_a_dead_engine_is_cancelled_without_the_engine(
        self, load: Load, trtllm: Any
    ) -> None:
        """The engine's end is known, and those that wait have not been told yet."""

        async def main() -> list[Response]:
            executor = load()
            heard: list[Response] = []
            request_id = executor.enqueue_request(Request([1], 100), heard.append)
            trtllm.Executor.MADE[0].break_down("gone")
            executor._responses._thread.join(120)
            executor.cancel_request(request_id)
            await asyncio.sleep(0)
            return heard

        [response] = asyncio.run(main())
        assert response.finish_reason is FinishReason.CANCELLED


class TestShutdown:
    def test_frees_the_memory_and_refuses_what_comes_later(self, load: Load, trtllm: Any, final: Ask) -> None:
        async def main() -> Response:
            executor = load()
            await final(executor, Request([1], 4))
            executor.shutdown()
            executor.shutdown()
            return await final(executor, Request([1], 4))

        assert asyncio.run(main()).error == "The engine is shut down"
        from tensorrt_llm.gpu import GPUS

        assert GPUS[0].used == 0

    def test_nobody_is_left_to_hear(self, load: Load, trtllm: Any) -> None:
        """Responses that come when the loop is closed raise nothing on the thread that waits for them."""
        executor = load()

        async def ask() -> None:
            executor.enqueue_request(Request([1], 50, streaming=True), lambda response: None)

        asyncio.run(ask())
        runtime = trtllm.Executor.MADE[0]
        runtime.shutdown()
        executor._responses._thread.join(120)
        assert not executor._responses._thread.is_alive()


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("NOT_FINISHED", FinishReason.NOT_FINISHED),
        ("END_ID", FinishReason.END_ID),
        ("STOP_WORDS", FinishReason.END_ID),
        ("LENGTH", FinishReason.LENGTH),
        ("TIMED_OUT", FinishReason.CANCELLED),
        ("CANCELLED", FinishReason.CANCELLED),
    ],
)
def test_reasons(trtllm: Any, theirs: str, ours: FinishReason) -> None:
    result = trtllm.Result()
    result.output_token_ids, result.is_final = [[7, 9]], True
    result.finish_reasons = [trtllm.FinishReason[theirs]]
    result.request_perf_metrics = trtllm.RequestPerfMetrics()
    limits = Limits(4, 63, 64, 6, 96, tokens_per_block=64)
    response = trtllm.Response(3, result=result)
    assert from_bindings(response, limits, has_draft=False).finish_reason is ours


def test_blocks_that_were_reused_whole_are_told_in_tokens(trtllm: Any) -> None:
    """The last of them may have been reused in part; without the size of a block nobody knows."""
    result, metrics = trtllm.Result(), trtllm.RequestPerfMetrics()
    result.output_token_ids, result.finish_reasons = [[7]], [trtllm.FinishReason.LENGTH]
    told = []
    for blocks in (0, 1, 3):
        metrics.kv_cache_metrics.num_reused_blocks = blocks
        result.request_perf_metrics = metrics
        response = trtllm.Response(3, result=result)
        for size in (64, None):
            limits = Limits(4, 63, 64, 6, 96, tokens_per_block=size)
            told.append(from_bindings(response, limits, has_draft=True).num_reused)
    assert told == [0, None, 0, None, 128, None]
