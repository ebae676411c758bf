"""Triton's vLLM backend: text in, text out, with vLLM's own sampling parameters as one text of JSON."""

from __future__ import annotations

import json
from typing import Any

from yarl import URL

from trtspec.client.endpoint import Api, AskError, EndpointRequest, Hear, TimedAnswer, unheard
from trtspec.client.http import Streams, problem_of

INPUT = "sampling_parameters"
"""The input that only its models have."""


class TritonVllmEndpoint:
    """One model of the backend, as vllm_backend's `src/model.py` and `src/utils/request.py` say.

    It does not report drafts, and a request cannot choose K.
    """

    api: Api = "triton"
    plain_per_request = False

    def __init__(self, url: str, model: str, streams: Streams) -> None:
        self.url, self.model, self._streams = url, model, streams
        self._address = URL(url) / "v2/models" / model / "generate_stream"

    async def ask(self, question: EndpointRequest, hear: Hear = unheard) -> TimedAnswer:
        answer = await self._streams.ask(self._address, _body(question), _add, hear)
        if answer.finish_reason is None:
            raise AskError("broken_off", "the stream ended before the answer", answer.sent)
        return answer

    async def close(self) -> None:
        await self._streams.close()


def _body(question: EndpointRequest) -> dict[str, Any]:
    sampling = {
        "max_tokens": question.max_tokens,
        "temperature": question.temperature,
        "seed": question.seed,
        "top_k": question.top_k,
        "top_p": question.top_p,
        "stop": list(question.stop) or None,
        "ignore_eos": question.ignore_eos or None,
    }
    return {
        "text_input": question.text,
        "stream": True,
        INPUT: json.dumps({name: value for name, value in sampling.items() if value is not None}),
        "return_finish_reason": True,
        "return_num_input_tokens": True,
        "return_num_output_tokens": True,
    }


def _add(answer: TimedAnswer, said: dict[str, Any], now: float) -> None:
    """Adds an event; each counts the tokens that came with it, and only the last has a reason to end."""
    if "error" in said:
        raise AskError("failed", problem_of(str(said["error"])), answer.sent)
    if text := said.get("text_output"):
        answer.text += text
        answer.times.append(now)
    answer.ended = now
    answer.input_tokens = said.get("num_input_tokens", answer.input_tokens)
    if (number := said.get("num_output_tokens")) is not None:
        answer.output_tokens = (answer.output_tokens or 0) + int(number)
    if (reason := said.get("finish_reason", "None")) != "None":
        answer.finish_reason = reason
