"""OpenAI's API, of trtspec, vLLM or anyone: chats, or completions of plain text."""

from __future__ import annotations

from typing import Any

import orjson
from yarl import URL

from trtspec.client.endpoint import Api, AskError, DraftCounts, EndpointRequest, Hear, TimedAnswer, unheard
from trtspec.client.http import Streams, problem_of

TRTSPEC, SGLANG, TENSORRT_LLM = "trtspec", "sglang", "tensorrt_llm"
"""The owners of models in `/v1/models`; each API has its own."""

COUNTING = {SGLANG: {"return_spec_tokens_details": True}}
"""The fields that make a server report the drafts of each answer. Other servers report them unasked, or not
at all.

SGLang 0.5.23, `entrypoints/openai/protocol.py`: `SpecTokensDetails`.
"""


class OpenAiEndpoint:
    """One model behind a base URL that ends in /v1.

    Without `chat` the conversation is one text, with an empty line between what one side and the other says.
    `owner` is whom the model belongs to. `plain_per_request` is true of trtspec's own API alone: another may
    take no notice of a field that it does not know.
    """

    api: Api = "openai"

    def __init__(self, url: str, model: str, streams: Streams, *, chat: bool, owner: str | None) -> None:
        self.url, self.model, self._streams, self._chat = url, model, streams, chat
        self._address = URL(url) / ("chat/completions" if chat else "completions")
        self.metrics_path = "prometheus/metrics" if owner == TENSORRT_LLM else "metrics"
        self.plain_per_request, self._counting = owner == TRTSPEC, COUNTING.get(owner or "", {})

    async def ask(self, question: EndpointRequest, hear: Hear = unheard) -> TimedAnswer:
        answer = await self._streams.ask(self._address, self._body(question), _add, hear)
        if answer.finish_reason is None:
            raise AskError("broken_off", "the stream ended without a finish_reason", answer.sent)
        return answer

    async def close(self) -> None:
        await self._streams.close()

    def _body(self, question: EndpointRequest) -> dict[str, Any]:
        messages = [{"role": message.role, "content": message.text} for message in question.messages]
        values = {
            "model": self.model,
            "messages": messages if self._chat else None,
            "prompt": None if self._chat else question.text,
            **question.options,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self._counting,
        }
        if not self.plain_per_request:
            values.pop("num_draft_tokens", None)
        return {name: value for name, value in values.items() if value is not None}


def _add(answer: TimedAnswer, said: dict[str, Any], now: float) -> None:
    if said.get("error") is not None:
        raise AskError("failed", problem_of(orjson.dumps(said).decode()), answer.sent)
    for choice in said.get("choices") or ():
        delta = choice.get("delta") or choice
        text = delta.get("content") or delta.get("text") or ""
        # What a model thinks before it answers is generated too, but is no part of the conversation.
        thought = delta.get("reasoning_content") or delta.get("reasoning") or ""
        if text or thought:
            answer.text += text
            answer.times.append(now)
        answer.finish_reason = choice.get("finish_reason") or answer.finish_reason
        answer.ended = now
    if usage := said.get("usage"):
        answer.num_input_tokens, answer.num_output_tokens = usage["prompt_tokens"], usage["completion_tokens"]
    answer.drafts = counts_of(said) or answer.drafts


def counts_of(said: dict[str, Any]) -> DraftCounts | None:
    """Returns what an event says of drafts, None if nothing.

    That is vLLM's `metrics.speculative_decoding`, of which what is left out follows from the histogram, or
    SGLang's `sglext.spec_tokens_details`.
    """
    if counts := (said.get("sglext") or {}).get("spec_tokens_details"):
        return DraftCounts(
            counts["spec_verify_ct"],
            counts["spec_num_proposed_drafts"],
            counts["spec_num_correct_drafts"],
            tuple(counts["spec_correct_drafts_histogram"]),
        )
    if not (counts := (said.get("metrics") or {}).get("speculative_decoding")):
        return None
    histogram = tuple(counts["acceptance_histogram"])
    steps = counts.get("num_spec_steps", sum(histogram))
    accepted = sum(number * times for number, times in enumerate(histogram))
    return DraftCounts(
        verifications=steps,
        drafted=counts.get("num_draft_tokens", steps * (len(histogram) - 1)),
        accepted=counts.get("num_accepted_draft_tokens", accepted),
        histogram=histogram,
        undrafted=counts.get("nothing_drafted", ""),
    )
