"""The executor that calls a Triton model: what the model hears, and what is made of its answers."""

from __future__ import annotations

import asyncio
import json
import math
import queue
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.fakes.bls_model import BlsModel
from tests.fakes.engine_dir import tiny_llama, write_engine
from trtspec.serving.assembly import assemble
from trtspec.serving.async_executor import AsyncExecutor, Liveness
from trtspec.serving.completion import CompletionRequest, Delta, EndReason
from trtspec.serving.errors import Cancelled, EngineFailure, RequestError
from trtspec.serving.executor import (
    FinishReason,
    Guide,
    GuideType,
    Limits,
    LogitsFormat,
    Request,
    Response,
    SamplingConfig,
)
from trtspec.serving.executors.bls_executor import Arrays, BlsExecutor, Outputs
from trtspec.serving.executors.torch.torch_executor import TorchExecutor
from trtspec.serving.executors.validation import read_limits
from trtspec.serving.guides.guides import Guides
from trtspec.serving.tokenizer import Tokenizer

Run = Callable[[Any], Any]
SIZE = 288
GUIDE = Guide(GuideType.JSON_SCHEMA, '{"type": "array", "items": {"enum": ["hello", 12, "é"]}}')
PUSH = (*((letter, 6.0) for letter in '",]}!'), ("<|end|>", 9.0))
GUIDED = CompletionRequest("hello", max_tokens=90, embedding_bias=PUSH, guide=GUIDE)


class Listening(BlsModel):
    """Keeps what it hears."""

    def __init__(self, engine_dir: Path, guides: Guides | None) -> None:
        super().__init__(lambda: TorchExecutor(engine_dir, guides=guides))
        self.heard: list[Arrays] = []

    def infer(self, inputs: Arrays, request_id: str) -> Outputs:
        self.heard.append(inputs)
        return super().infer(inputs, request_id)


@pytest.fixture
def engine_dir(tmp_path: Path) -> Path:
    return write_engine(tmp_path / "engine", tiny_llama(vocab_size=SIZE))


def test_a_guided_stream_is_one_request_with_the_text_of_the_engine(
    run: Run, tokenizer: Tokenizer, engine_dir: Path
) -> None:
    of_engine, of_coordinator = (Guides(tokenizer.vocabulary, SIZE) for _ in range(2))
    model = Listening(engine_dir, of_engine)
    executor = BlsExecutor(model, read_limits(engine_dir), guide_end_id=tokenizer.end_ids[0])

    async def main() -> tuple[Delta, Delta]:
        coordinator = assemble(executor, None, tokenizer, guides=of_coordinator)
        ours = await coordinator.complete(GUIDED)
        broken = replace(GUIDED, guide=Guide(GuideType.REGEX, "("))
        heard = len(model.heard)
        with pytest.raises(RequestError):
            await coordinator.complete(broken)
        assert len(model.heard) == heard
        plain = TorchExecutor(engine_dir, guides=of_coordinator)
        theirs = await assemble(plain, None, tokenizer, guides=of_coordinator).complete(GUIDED)
        plain.shutdown()
        return ours, theirs

    try:
        ours, theirs = run(main())
    finally:
        model.service.close()
    assert ours.text == theirs.text
    assert isinstance(json.loads(ours.text), list)
    assert ours.completion.end_reason is EndReason.END_ID
    assert ours.completion.undrafted_for == ("guided_decoding_guide_type",)
    [asked] = model.heard
    assert asked["guided_decoding_guide_type"].tolist() == [[b"json_schema"]]
    assert asked["guided_decoding_guide"].tolist() == [[GUIDE.guide.encode()]]
    assert asked["request_output_len"].tolist() == [[90]]
    assert "draft_input_ids" not in asked


@pytest.mark.parametrize(
    ("field", "request_"),
    [
        ("guide_type", replace(GUIDED, guide=Guide(GuideType.STRUCTURAL_TAG, "{}"))),
        ("end_id", replace(GUIDED, end_id=3)),
        ("bad_words", replace(GUIDED, bad_words=("a",))),
        ("min_tokens", replace(GUIDED, sampling=SamplingConfig(min_tokens=2))),
    ],
)
def test_a_guided_request_that_nvidias_backend_would_misread_is_refused(
    run: Run, tokenizer: Tokenizer, engine_dir: Path, field: str, request_: CompletionRequest
) -> None:
    """It takes a type that it does not know for no guide at all."""
    model = Listening(engine_dir, None)
    executor = BlsExecutor(model, read_limits(engine_dir), guide_end_id=tokenizer.end_ids[0])

    async def main() -> None:
        with pytest.raises(RequestError) as caught:
            await assemble(executor, None, tokenizer).complete(request_)
        assert caught.value.field == field

    try:
        run(main())
    finally:
        model.service.close()
    assert model.heard == []


def test_models_that_follow_no_guides_say_so(run: Run, tokenizer: Tokenizer, engine_dir: Path) -> None:
    """Whether the coordinator knows it, or only the model does."""
    model = Listening(engine_dir, None)
    limits = read_limits(engine_dir)

    async def main() -> None:
        with pytest.raises(RequestError, match="the target engine follows no guide"):
            await assemble(BlsExecutor(model, limits), None, tokenizer).complete(GUIDED)
        assert model.heard == []
        unaware = BlsExecutor(model, limits, guide_end_id=tokenizer.end_ids[0])
        with pytest.raises(EngineFailure, match="follows no guides of the type json_schema"):
            await assemble(unaware, None, tokenizer).complete(GUIDED)

    try:
        run(main())
    finally:
        model.service.close()


LIMITS = Limits(max_batch_size=2, max_input_len=127, max_seq_len=128, max_draft_len=4, vocab_size=96)
PROMPT = [3, 1, 4]


def said(*tokens: int, padding: int = 0, verified: int | None = None) -> Outputs:
    """A response; `output_ids` may be longer than what was said."""
    metrics = {} if verified is None else {"total_draft_tokens": [verified]}
    return {"output_ids": [*tokens, *[-1] * padding], "sequence_length": [len(tokens)], **metrics}


class Model:
    """Answers what the test puts into `says`, in order; a stop has it answer with nothing."""

    def __init__(self, *says: Outputs | Exception) -> None:
        self.says: queue.Queue[Outputs | Exception] = queue.Queue()
        self.heard: queue.Queue[tuple[Arrays, str]] = queue.Queue()
        for each in says:
            self.says.put(each)

    def infer(self, inputs: Arrays, request_id: str) -> Outputs:
        # Logits are one buffer, which another request may use later.
        self.heard.put(({name: array.copy() for name, array in inputs.items()}, request_id))
        if "stop" in inputs:
            self.says.put(said())
            return {}
        answer = self.says.get(timeout=120)
        if isinstance(answer, Exception):
            raise answer
        return answer


def ask(model: Model, request: Request) -> Response:
    async def main() -> Response:
        executor = BlsExecutor(model, LIMITS)
        try:
            return await AsyncExecutor(executor).answer(request, math.inf)
        finally:
            executor.shutdown()

    return asyncio.run(main())


def heard_by(model: Model) -> dict[str, object]:
    inputs, _ = model.heard.get(timeout=120)
    return {name: array.tolist() for name, array in inputs.items()}


def test_a_verification_as_tensors() -> None:
    model = Model(said(5, 6, 7, padding=3))

    response = ask(model, Request(PROMPT, 3, draft_token_ids=[5, 6], end_id=2, streaming=True))

    assert heard_by(model) == {
        "input_ids": [[3, 1, 4]],
        "input_lengths": [[3]],
        "request_output_len": [[3]],
        "draft_input_ids": [[5, 6]],
        "return_perf_metrics": [[True]],
        "exclude_input_in_output": [[True]],
        "end_id": [[2]],
        "runtime_top_k": [[1]],
    }
    assert (response.token_ids, response.finish_reason) == ([5, 6, 7], FinishReason.LENGTH)


SAMPLED = SamplingConfig(temperature=0.5, seed=1)
TAKES_LOGITS = replace(LIMITS, matches_samples=False, draft_logits=LogitsFormat(96, "float32"))


def test_a_sampled_verification_has_one_hot_logits() -> None:
    """The buffer comes back with the answer: the next one sees nothing of it."""
    model = Model(said(5, 6, verified=2), said(7, verified=1))

    async def main() -> Response:
        executor = AsyncExecutor(BlsExecutor(model, TAKES_LOGITS))
        said = await executor.answer(Request(PROMPT, 3, draft_token_ids=[5, 6], sampling=SAMPLED), math.inf)
        copied.append(model.heard.get()[0]["draft_logits"])
        await executor.answer(Request(PROMPT, 2, draft_token_ids=[9], sampling=SAMPLED), math.inf)
        copied.append(model.heard.get()[0]["draft_logits"])
        return said

    copied: list[npt.NDArray[np.float32]] = []
    assert asyncio.run(main()).num_verified == 2
    assert [(rows.dtype.name, rows.shape) for rows in copied] == [
        ("float32", (1, 2, 96)),
        ("float32", (1, 1, 96)),
    ]
    assert [np.argwhere(rows[0]).tolist() for rows in copied] == [[[0, 5], [1, 6]], [[0, 9]]]
    chances = np.exp(copied[0] - copied[0].max(axis=-1, keepdims=True))
    assert chances.sum() == 2


def test_a_model_that_hides_what_it_verified_verifies_no_sampled_draft() -> None:
    async def main() -> None:
        request = Request(PROMPT, 2, draft_token_ids=[5], sampling=SAMPLED)
        await AsyncExecutor(BlsExecutor(Model(said(5)), TAKES_LOGITS)).answer(request, math.inf)

    with pytest.raises(EngineFailure, match="total_draft_tokens"):
        asyncio.run(main())


def test_logits_that_config_pbtxt_does_not_declare_are_not_sent() -> None:
    half = replace(TAKES_LOGITS, draft_logits=LogitsFormat(96, "float16"))

    async def main() -> None:
        executor = BlsExecutor(Model(), half)
        assert not executor.limits.drafts_samples
        request = Request(PROMPT, 2, draft_token_ids=[5], sampling=SAMPLED)
        await AsyncExecutor(executor).answer(request, math.inf)

    with pytest.raises(EngineFailure, match="drafts of greedy requests alone"):
        asyncio.run(main())


def test_sampling_from_all_tokens_says_so() -> None:
    """Without top-k and top-p TensorRT-LLM would take the best one."""
    model = Model(said(5))

    ask(model, Request(PROMPT, 1, sampling=SamplingConfig(temperature=0.5, seed=2**64 - 1, min_tokens=1)))

    inputs, _ = model.heard.get()
    assert inputs["runtime_top_p"].tolist() == [[1.0]]
    assert inputs["seed"].tolist() == [[2**64 - 1]]
    assert (inputs["seed"].dtype, inputs["temperature"].dtype) == (np.dtype("uint64"), np.dtype("float32"))
    assert "runtime_top_k" not in inputs


def test_the_triton_executor_refuses_a_ban_that_the_engine_would_skip() -> None:
    async def main() -> None:
        executor = BlsExecutor(Model(), replace(LIMITS, never_banned=range(1)))
        await AsyncExecutor(executor).answer(Request(PROMPT, 1, bad_words=[[0, 4], [4, 0]]), math.inf)

    with pytest.raises(EngineFailure, match=r"Bad word \[4, 0\] ends in token id 0"):
        asyncio.run(main())


def test_a_sampling_setting_without_a_tensor_is_refused() -> None:
    with pytest.raises(EngineFailure, match="the engine ignores min_p"):
        ask(Model(), Request(PROMPT, 1, sampling=SamplingConfig(temperature=0.5, min_p=0.1)))


@pytest.mark.parametrize(
    ("draft", "new", "reason"),
    [
        ([5, 6], [5, 6], FinishReason.LENGTH),  # or it was cut short: another round will tell
        ([5, 6], [], FinishReason.END_ID),
        ([5, 6], [5], FinishReason.LENGTH),
        ([5, 6], [7], FinishReason.LENGTH),
        ([5, 6], [5, 7], FinishReason.LENGTH),
        ([5, 6], [5, 6, 7], FinishReason.LENGTH),
        ([], [5, 6], FinishReason.END_ID),
        ([], [5, 6, 7], FinishReason.LENGTH),
    ],
)
def test_why_a_request_ended_follows_from_its_tokens(
    draft: list[int], new: list[int], reason: FinishReason
) -> None:
    response = ask(Model(said(*new)), Request(PROMPT, 3, draft_token_ids=draft))

    assert (response.token_ids, response.finish_reason) == (new, reason)


def test_the_models_error_is_the_requests() -> None:
    with pytest.raises(EngineFailure, match=r"^tensorrt_llm: out of blocks$"):
        ask(Model(EngineFailure("tensorrt_llm: out of blocks")), Request(PROMPT, 3))


def test_an_answer_without_tensors_is_a_cancellation() -> None:
    with pytest.raises(Cancelled):
        ask(Model({}), Request(PROMPT, 3))


def test_bad_tokens_are_words_of_one_token() -> None:
    model = Model(said(5))

    ask(model, Request(PROMPT, 1, bad_words=[[7], [8, 9]]))

    assert heard_by(model)["bad_words_list"] == [[[7, 8, 9], [1, 3, -1]]]


def test_a_defect_is_an_error_too() -> None:
    with pytest.raises(EngineFailure, match="sequence_length"):
        ask(Model({"output_ids": [0]}), Request(PROMPT, 3))


def stream(model: Model, request: Request) -> tuple[list[list[int]], FinishReason]:
    async def main() -> tuple[list[list[int]], FinishReason]:
        executor = BlsExecutor(model, LIMITS)
        heard = [response async for response in AsyncExecutor(executor).answers(request, math.inf)]
        executor.shutdown()
        return [response.token_ids for response in heard], heard[-1].finish_reason

    return asyncio.run(main())


def test_a_stream_is_a_row_of_requests_that_continue_one_another() -> None:
    """The same numbers are drawn for the same token, however the text is cut."""
    model = Model(said(10), said(11, 12), said(13, 14, 15, 16), said(17, 18))
    sampling = SamplingConfig(temperature=1.0, seed=2**64 - 2)

    texts, reason = stream(model, Request(PROMPT, 9, streaming=True, sampling=sampling))

    assert (texts, reason) == ([[token] for token in range(10, 19)], FinishReason.LENGTH)
    heard = [heard_by(model) for _ in range(4)]
    assert [each["request_output_len"] for each in heard] == [[[1]], [[2]], [[4]], [[2]]]
    assert [each["input_ids"] for each in heard[:3]] == [[PROMPT], [[*PROMPT, 10]], [[*PROMPT, 10, 11, 12]]]
    assert [each["seed"] for each in heard] == [[[2**64 - 2]], [[2**64 - 1]], [[1]], [[5]]]
    assert "streaming" not in heard[0]


def test_pieces_grow_no_further_than_sixteen_tokens() -> None:
    model = Model(*(said(*[5] * size) for size in (1, 2, 4, 8, 16, 16, 3)))

    texts, _ = stream(model, Request(PROMPT, 50, streaming=True))

    assert len(texts) == 50


def test_a_piece_that_is_too_short_ends_the_stream() -> None:
    texts, reason = stream(Model(said(10), said(11)), Request(PROMPT, 9, streaming=True))

    assert (texts, reason) == ([[10], [11], []], FinishReason.END_ID)


def test_a_penalty_that_counts_generated_tokens_makes_the_text_one_request() -> None:
    sampling = SamplingConfig(presence_penalty=0.5)
    model = Model(said(10, 11, 12))

    texts, reason = stream(model, Request(PROMPT, 3, streaming=True, sampling=sampling))

    assert (texts, reason) == ([[10], [11], [12]], FinishReason.LENGTH)
    assert heard_by(model)["request_output_len"] == [[3]]


def test_a_cancelled_request_is_stopped_by_its_id() -> None:
    async def main() -> tuple[list[tuple[Arrays, str]], tuple[Arrays, str]]:
        model = Model(said(5))
        executor = BlsExecutor(model, LIMITS)
        stream = AsyncExecutor(executor).answers(Request(PROMPT, 100, streaming=True), math.inf)
        assert (await anext(stream)).token_ids == [5]
        asked = [await asyncio.to_thread(model.heard.get, timeout=120) for _ in range(2)]
        await stream.aclose()
        stop = await asyncio.to_thread(model.heard.get, timeout=120)
        executor.shutdown()
        return asked, stop

    asked, (stop, stopped) = asyncio.run(main())
    assert {stopped} == {request_id for _, request_id in asked}
    assert {name: array.tolist() for name, array in stop.items()} == {
        "input_ids": [[0]],
        "input_lengths": [[0]],
        "request_output_len": [[0]],
        "stop": [[True]],
    }


def test_a_stop_that_fails_ends_no_other() -> None:
    class Deaf(Model):
        def infer(self, inputs: Arrays, request_id: str) -> Outputs:
            found = super().infer(inputs, request_id)
            if not found:
                raise RuntimeError("the model is unloaded")
            return found

    async def main() -> list[Arrays]:
        model = Deaf()
        executor = BlsExecutor(model, LIMITS)
        numbers = [executor.enqueue_request(Request(PROMPT, 3), lambda _: None) for _ in range(2)]
        asked = [(await asyncio.to_thread(model.heard.get, timeout=120))[0] for _ in range(2)]
        for number in numbers:
            executor.cancel_request(number)
        stops = [(await asyncio.to_thread(model.heard.get, timeout=120))[0] for _ in range(2)]
        executor.shutdown()
        assert not any("stop" in inputs for inputs in asked)
        return stops

    assert all("stop" in inputs for inputs in asyncio.run(main()))


def test_requests_that_have_not_begun_are_never_sent_after_shutdown() -> None:
    async def main() -> tuple[list[Response], Model]:
        model = Model()
        executor = BlsExecutor(model, LIMITS)
        heard: list[Response] = []
        numbers = [executor.enqueue_request(Request(PROMPT, 3), heard.append) for _ in range(6)]
        executor.cancel_request(numbers[-1])
        await asyncio.sleep(0)
        executor.shutdown()
        return heard, model

    heard, model = asyncio.run(main())
    assert heard[0].finish_reason is FinishReason.CANCELLED
    asked = [inputs for inputs, _ in list(model.heard.queue) if "stop" not in inputs]
    assert len(asked) <= LIMITS.max_batch_size


def test_each_executor_has_ids_of_its_own() -> None:
    models = Model(said(1)), Model(said(1))
    for model in models:
        ask(model, Request(PROMPT, 1))

    assert models[0].heard.get()[1] != models[1].heard.get()[1]


@pytest.mark.parametrize(
    ("sampling", "is_lost"),
    [
        pytest.param(SamplingConfig(presence_penalty=0.5), False, id="in one piece"),
        pytest.param(SamplingConfig(), True, id="piece by piece"),
    ],
)
def test_a_model_that_answers_in_one_piece_is_not_lost_while_it_says_nothing(
    sampling: SamplingConfig, is_lost: bool
) -> None:
    async def main() -> None:
        model = Model()
        executor = BlsExecutor(model, LIMITS)
        target = Liveness(executor, timeout_s=120)
        executor.enqueue_request(Request(PROMPT, 100, sampling=sampling, streaming=True), lambda _: None)
        target.look(0, is_busy=True)
        target.look(121, is_busy=True)
        assert (target.failure is not None) is is_lost
        executor.shutdown()
        model.says.put(said())

    asyncio.run(main())
