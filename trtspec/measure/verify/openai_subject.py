"""Asks a model behind OpenAI's API of trtspec, vLLM, SGLang or trtllm-serve, whose completions report token
ids."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import aclosing
from time import perf_counter
from typing import Any

from yarl import URL

from trtspec.base.errors import ServerError, UnavailableError
from trtspec.client.endpoint import DraftCounts
from trtspec.client.finding import shown
from trtspec.client.http import Streams, problem_of
from trtspec.client.openai import COUNTING, SGLANG, TRTSPEC, counts_of
from trtspec.measure.verify.subject import END, PROBED, Row, SubjectAnswer, SubjectRequest, told

_MOST_TOP = 5
"""The largest number of likeliest tokens that OpenAI's completions report."""
_NAME = "token_id:"
_TELLING: Mapping[str | None, Mapping[str, Any]] = {
    SGLANG: {"return_token_ids": True, **COUNTING[SGLANG]},
    "tensorrt_llm": {"detokenize": False},
}
"""By a model's owner, the field that makes a server report token ids if log-probabilities have none.

SGLang 0.5.23, `entrypoints/openai/serving_completions.py`; TensorRT-LLM 1.2, `serve/postprocess_handlers.py`.
"""


class OpenAiSubject:
    """A model of `owner` behind OpenAI's API.

    The log-probabilities of vLLM and trtspec name tokens by ids. SGLang and trtllm-serve report no
    log-probabilities by id. trtllm-serve also reports no text where it reports ids.
    """

    longest_draft: int | None = None

    def __init__(
        self, url: str, model: str, streams: Streams, end_ids: Collection[int], *, owner: str | None
    ) -> None:
        self.name, self._model, self._streams = f"{model} at {shown(url)}", model, streams
        self._address, self._end_ids = URL(url) / "completions", end_ids
        self._is_ours, self._telling = owner == TRTSPEC, _TELLING.get(owner)
        self.top_log_probs = 0 if self._telling else _MOST_TOP

    async def probe(self) -> None:
        """Raises `UnavailableError` if the server does not report its tokens."""
        question = SubjectRequest(PROBED, 1, ignores_end=True)
        try:
            await self.ask(question)
        except (ServerError, ValueError) as error:
            problem = f"does not report its tokens, so answers cannot be compared: {error}"
            repair = "for a trtspec deployment, name Triton's HTTP port instead"
            raise UnavailableError(self.name, problem, repair) from error

    async def ask(self, question: SubjectRequest) -> SubjectAnswer:
        if question.num_draft_tokens and not self._is_ours:
            problem = "takes K at its start only, not in a request"
            raise ServerError(self.name, problem, "leave --num-draft-tokens out")
        tokens: list[int] = []
        rows: list[Row] = []
        text, reason, usage = "", "", dict[str, Any]()
        counts = DraftCounts(0, 0, 0, ()) if self._is_ours else None
        async with (
            told(self.name),
            aclosing(self._streams.post(self._address, self._body(question), perf_counter())) as events,
        ):
            async for said, _ in events:
                if "error" in said:
                    raise ServerError(self.name, problem_of(str(said["error"])))
                for choice in said.get("choices") or ():
                    text += choice.get("text") or ""
                    tokens += choice.get("token_ids") or ()
                    reason = choice.get("finish_reason") or reason
                    if said_of := choice.get("logprobs"):
                        tokens += map(_token_id, said_of["tokens"])
                        rows += [_named(row) for row in said_of.get("top_logprobs") or ()]
                usage = said.get("usage") or usage
                counts = counts_of(said) or counts
        if not reason:
            raise ServerError(self.name, "the stream ended without a finish_reason")
        if not tokens and text:
            raise ServerError(self.name, "the answer has text and no token ids")
        ended = reason == "stop"
        if ended and tokens and tokens[-1] in self._end_ids:  # vLLM also reports the end token.
            tokens, rows = tokens[:-1], rows[: len(tokens) - 1]
        return SubjectAnswer(
            (*tokens, *((END,) if ended else ())),
            text,
            tuple(rows) if question.top_log_probs else (),
            usage.get("prompt_tokens"),
            counts.drafted if counts else None,
            counts.accepted if counts else None,
        )

    async def close(self) -> None:
        await self._streams.close()

    def _body(self, question: SubjectRequest) -> dict[str, Any]:
        sampling, top = question.sampling, min(max(question.top_log_probs, 1), _MOST_TOP)
        values: dict[str, Any] = {
            "model": self._model,
            "prompt": question.prompt,
            "max_tokens": question.max_tokens,
            "temperature": sampling.temperature or 0.0,
            "seed": sampling.seed,
            "num_draft_tokens": question.num_draft_tokens if self._is_ours else None,
            **(self._telling or {"logprobs": top, "return_tokens_as_token_ids": True}),
            "logit_bias": {str(token): bias for token, bias in question.bias.items()} or None,
            "ignore_eos": True if question.ignores_end else None,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        return {name: value for name, value in values.items() if value is not None}


def _token_id(name: str) -> int:
    if not name.startswith(_NAME):
        raise ValueError(f"a token is named {name!r}, and not by its id")
    return int(name.removeprefix(_NAME))


def _named(row: dict[str, float]) -> Row:
    return {_token_id(name): value for name, value in row.items()}
