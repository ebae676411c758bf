"""What the contract does not see: what the bindings are told, what they refuse, an engine that dies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.fakes.bindings import change_config
from tests.fakes.engine_dir import tiny_model
from tests.unit.serving.executors.tensorrt_llm.conftest import Ask
from trtspec.serving.errors import EngineLoadError
from trtspec.serving.executor import Executor, FinishReason, Limits, Request, Response, SamplingConfig
from trtspec.serving.executors.tensorrt_llm.bindings import from_bindings
from trtspec.serving.executors.tensorrt_llm.engine import KvBudget, TrtLlmEngine, read_engine
from trtspec.serving.executors.tensorrt_llm.trtllm_executor import TrtLlmExecutor

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
        executor._responses._thread.join(20)
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
            executor._responses._thread.join(20)
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
        executor._responses._thread.join(20)
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
