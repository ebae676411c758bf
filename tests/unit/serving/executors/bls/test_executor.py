"""The executor that calls a Triton model: what the model hears, and what is made of its answers."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Iterator

import numpy as np
import pytest

from trtspec.serving.calls import answer, answers
from trtspec.serving.errors import EngineFailure
from trtspec.serving.executor import FinishReason, Limits, Request, SamplingConfig
from trtspec.serving.executors.bls.executor import BlsExecutor
from trtspec.serving.executors.bls.tensors import Arrays

LIMITS = Limits(max_batch_size=2, max_input_len=127, max_seq_len=128, max_draft_len=4, vocab_size=96)
PROMPT = [3, 1, 4]


def said(*tokens: int, padding: int = 0) -> Arrays:
    """A response; `output_ids` may be longer than what was said."""
    ids = np.array([[[*tokens, *[-1] * padding]]], np.int32).reshape(1, 1, -1)
    return {"output_ids": ids, "sequence_length": np.array([[len(tokens)]], np.int32)}


class Model:
    """Says what the test puts into `says`, None for the end; a stop puts the end there."""

    def __init__(self, *says: Arrays | Exception | None) -> None:
        self.says: queue.Queue[Arrays | Exception | None] = queue.Queue()
        self.heard: queue.Queue[tuple[Arrays, str]] = queue.Queue()
        for each in says:
            self.says.put(each)

    def infer(self, inputs: Arrays, request_id: str) -> Iterator[Arrays]:
        self.heard.put((dict(inputs), request_id))
        if "stop" in inputs:
            self.says.put(None)
            return
        while (each := self.says.get(timeout=20)) is not None:
            if isinstance(each, Exception):
                raise each
            yield each


def ask(model: Model, request: Request):
    async def main():
        executor = BlsExecutor(model, LIMITS)
        try:
            return await answer(executor, request)
        finally:
            executor.shutdown()

    return asyncio.run(main())


def heard_by(model: Model) -> dict[str, object]:
    inputs, _ = model.heard.get(timeout=20)
    return {name: array.tolist() for name, array in inputs.items()}


def test_a_verification_as_tensors():
    model = Model(said(5, 6, 7, padding=3), None)

    response = ask(model, Request(PROMPT, 3, draft_token_ids=[5, 6], end_id=2, streaming=True))

    assert heard_by(model) == {
        "input_ids": [[3, 1, 4]],
        "input_lengths": [[3]],
        "request_output_len": [[3]],
        "draft_input_ids": [[5, 6]],
        "exclude_input_in_output": [[True]],
        "end_id": [[2]],
        "runtime_top_k": [[1]],
    }
    assert (response.token_ids, response.finish_reason) == ([5, 6, 7], FinishReason.LENGTH)


def test_sampling_from_all_tokens_says_so():
    """Without top-k and top-p TensorRT-LLM would take the best one."""
    model = Model(said(5), None)

    ask(model, Request(PROMPT, 1, sampling=SamplingConfig(temperature=0.5, seed=2**64 - 1, min_tokens=1)))

    inputs, _ = model.heard.get()
    assert inputs["runtime_top_p"].tolist() == [[1.0]]
    assert inputs["seed"].tolist() == [[2**64 - 1]]
    assert (inputs["seed"].dtype, inputs["temperature"].dtype) == (np.uint64, np.float32)
    assert "runtime_top_k" not in inputs


@pytest.mark.parametrize(
    ("draft", "new", "reason"),
    [
        ([5, 6], [5, 6], FinishReason.END_ID),
        ([5, 6], [], FinishReason.END_ID),
        ([5, 6], [5], FinishReason.END_ID),
        ([5, 6], [7], FinishReason.LENGTH),
        ([5, 6], [5, 7], FinishReason.LENGTH),
        ([5, 6], [5, 6, 7], FinishReason.LENGTH),
        ([], [5, 6], FinishReason.END_ID),
        ([], [5, 6, 7], FinishReason.LENGTH),
    ],
)
def test_why_a_request_ended_follows_from_its_tokens(draft, new, reason):
    response = ask(Model(said(*new), None), Request(PROMPT, 3, draft_token_ids=draft))

    assert (response.token_ids, response.finish_reason) == (new, reason)


def test_the_models_error_is_the_requests():
    with pytest.raises(EngineFailure, match=r"^tensorrt_llm: out of blocks$"):
        ask(Model(EngineFailure("tensorrt_llm: out of blocks")), Request(PROMPT, 3))


def test_a_defect_is_an_error_too():
    with pytest.raises(EngineFailure, match="sequence_length"):
        ask(Model({"output_ids": np.zeros([1, 1, 1], np.int32)}), Request(PROMPT, 3))


def test_a_model_that_is_not_decoupled_is_asked_again_without_streaming():
    """In the words of NVIDIA's backend."""
    refusal = EngineFailure("Streaming is only supported if model is deployed using decoupled mode.")
    model = Model(refusal, said(5, 6, 7), None, said(8, 9, 1), None)

    async def main():
        executor = BlsExecutor(model, LIMITS)
        request = Request(PROMPT, 3, streaming=True)
        texts = []
        for _ in range(2):
            texts += [each.token_ids async for each in answers(executor, request)]
        executor.shutdown()
        return texts

    assert asyncio.run(main()) == [[5, 6, 7], [8, 9, 1]]
    assert ["streaming" in heard_by(model) for _ in range(3)] == [True, False, False]


def test_a_cancelled_stream_is_stopped_by_its_id():
    async def main():
        model = Model(said(5))
        executor = BlsExecutor(model, LIMITS)
        stream = answers(executor, Request(PROMPT, 100, streaming=True))
        assert (await anext(stream)).token_ids == [5]
        await stream.aclose()
        (_, asked), (stop, stopped) = [await asyncio.to_thread(model.heard.get, timeout=20) for _ in range(2)]
        executor.shutdown()
        return asked, stop, stopped

    asked, stop, stopped = asyncio.run(main())
    assert stopped == asked
    assert {name: array.tolist() for name, array in stop.items()} == {
        "input_ids": [[0]],
        "input_lengths": [[0]],
        "request_output_len": [[0]],
        "stop": [[True]],
    }


def test_a_stop_that_came_too_early_is_said_again():
    """The model may hear of the stop before it hears of the request."""

    async def main():
        model = Model(said(5))
        executor = BlsExecutor(model, LIMITS)
        stream = answers(executor, Request(PROMPT, 100, streaming=True))
        await anext(stream)
        model.infer = ignore_first_stop(model.infer)
        await stream.aclose()
        heard = [await asyncio.to_thread(model.heard.get, timeout=20)]
        model.says.put(said(6))
        heard.append(await asyncio.to_thread(model.heard.get, timeout=20))
        executor.shutdown()
        return heard

    assert "stop" in asyncio.run(main())[1][0]


def ignore_first_stop(infer):
    stops = []

    def ignoring(inputs: Arrays, request_id: str) -> Iterator[Arrays]:
        stops.append(inputs)
        return iter(()) if len(stops) == 1 else infer(inputs, request_id)

    return ignoring


def test_what_has_not_begun_is_never_sent():
    async def main():
        model = Model()
        executor = BlsExecutor(model, LIMITS)
        heard = []
        numbers = [executor.enqueue_request(Request(PROMPT, 3), heard.append) for _ in range(6)]
        executor.cancel_request(numbers[-1])
        await asyncio.sleep(0)
        executor.shutdown()
        model.says.put(None)
        return heard, model

    heard, model = asyncio.run(main())
    assert heard[0].finish_reason is FinishReason.CANCELLED
    asked = [inputs for inputs, _ in list(model.heard.queue) if "stop" not in inputs]
    assert len(asked) <= 4  # the threads


def test_each_executor_has_ids_of_its_own():
    models = Model(said(1), None), Model(said(1), None)
    for model in models:
        ask(model, Request(PROMPT, 1))

    assert models[0].heard.get()[1] != models[1].heard.get()[1]
