"""Triton's `generate_stream`: a model of text in, text out, of trtspec, of NVIDIA, or of the vLLM backend."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from yarl import URL

from trtspec.client.endpoint import Api, AskError, DraftCounts, EndpointRequest, Hear, TimedAnswer, unheard
from trtspec.client.http import Streams, problem_of
from trtspec.serving.completion import NO_END
from trtspec.serving.stats import why_undrafted

VLLM_INPUT = "sampling_parameters"
"""The input that only models of the vLLM backend have: vLLM's sampling parameters as one text of JSON."""


class TritonTextModel:
    """One model of a Triton server; `inputs` and `outputs` are the names of its tensors.

    A conversation is one text, with an empty line between what one side and the other says: templates of
    chats are for OpenAI's API.
    """

    api: Api = "triton"

    def __init__(self, url: str, model: str, inputs: frozenset[str], outputs: frozenset[str]) -> None:
        self.url, self.model, self._inputs = url, model, inputs
        self._tells_end = "finish_reason" in outputs
        self.plain_per_request = "num_draft_tokens" in inputs

    def body(self, question: EndpointRequest) -> dict[str, Any]:
        """Returns the values of the inputs, by their names."""
        return {name: value for name, value in tensors_of(question).items() if name in self._inputs}

    def add(self, answer: TimedAnswer, said: dict[str, Any], now: float) -> None:
        """Adds the outputs of a response, by their names, to the answer; raises `AskError`."""
        if "error" in said:
            words = problem_of(str(said["error"]))
            raise AskError("refused" if words.startswith("503 ") else "failed", words, answer.sent)
        if text := said.get("text_output"):
            answer.text += text
            answer.times.append(now)
        answer.ended = now
        if (number := said.get("num_input_tokens")) is not None:
            answer.num_input_tokens = int(number)
        if (number := said.get("num_output_tokens")) is not None:
            answer.num_output_tokens = int(number)
        answer.finish_reason = said.get("finish_reason", answer.finish_reason)
        answer.drafts = counts_of(said) or answer.drafts

    def whole(self, answer: TimedAnswer) -> TimedAnswer:
        """Returns the answer after its stream; raises `AskError` if something is missing."""
        if answer.finish_reason is None and (self._tells_end or not answer.times):
            raise AskError("broken_off", "the stream ended before the answer", answer.sent)
        return answer


class TritonEndpoint(TritonTextModel):
    """A model over Triton's HTTP."""

    def __init__(
        self, url: str, model: str, inputs: frozenset[str], outputs: frozenset[str], streams: Streams
    ) -> None:
        super().__init__(url, model, inputs, outputs)
        self._streams = streams
        self._address = URL(url) / "v2/models" / model / "generate_stream"

    async def ask(self, question: EndpointRequest, hear: Hear = unheard) -> TimedAnswer:
        answer = await self._streams.ask(self._address, self.body(question), self.add, hear)
        return self.whole(answer)

    async def close(self) -> None:
        await self._streams.close()


def tensors_of(question: EndpointRequest) -> dict[str, Any]:
    """Returns the values of the inputs of trtspec's model, by their names."""
    options = question.options
    if options.pop("ignore_eos", False):
        options["end_id"] = NO_END
    if "stop" in options:
        options["stop_words"] = options.pop("stop")
    if question.tenant is not None:
        options["tenant"] = question.tenant
    # Without temperature, top_k and top_p the model is greedy. With one of the last two it samples, unless
    # the temperature is 0, so that is sent then.
    if not question.temperature and "top_k" not in options and "top_p" not in options:
        options.pop("temperature", None)
    return {
        "text_input": question.text,
        "stream": question.stream,
        "return_perf_metrics": True,
        "return_num_input_tokens": True,
        "return_num_output_tokens": True,
        **options,
    }


def counts_of(tensors: Mapping[str, Any]) -> DraftCounts | None:
    """Returns what the outputs of trtspec's model say of drafts; None if nothing."""
    if (histogram := tensors.get("acceptance_histogram")) is None:
        return None
    return DraftCounts(
        tensors["num_spec_steps"],
        tensors["total_draft_tokens"],
        tensors["total_accepted_draft_tokens"],
        # In JSON, Triton writes a tensor of one value without brackets.
        tuple(histogram) if isinstance(histogram, list) else (histogram,),
        why_undrafted(tensors.get("speculation", "")),
    )


class TritonVllmEndpoint(TritonEndpoint):
    """One model of Triton's vLLM backend, as vllm_backend's `src/model.py` and `src/utils/request.py` say.

    It does not report drafts, and a request cannot choose K.
    """

    def __init__(self, url: str, model: str, streams: Streams) -> None:
        super().__init__(url, model, frozenset(), frozenset({"finish_reason"}), streams)

    def body(self, question: EndpointRequest) -> dict[str, Any]:
        sampling = question.options
        sampling.pop("num_draft_tokens", None)
        return {
            "text_input": question.text,
            "stream": True,
            VLLM_INPUT: json.dumps(sampling),
            "return_finish_reason": True,
            "return_num_input_tokens": True,
            "return_num_output_tokens": True,
        }

    def add(self, answer: TimedAnswer, said: dict[str, Any], now: float) -> None:
        """Adds an event; each counts the tokens that came with it, and only the last has a reason to end."""
        event = {name: value for name, value in said.items() if (name, value) != ("finish_reason", "None")}
        if (number := event.get("num_output_tokens")) is not None:
            event["num_output_tokens"] = (answer.num_output_tokens or 0) + int(number)
        super().add(answer, event, now)
