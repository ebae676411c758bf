"""Asks servers for tokens: trtspec's model behind Triton's HTTP port, or a model behind OpenAI's API."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import aclosing
from time import perf_counter
from typing import Any

from yarl import URL

from trtspec.base.errors import ServerError, UnavailableError
from trtspec.client.endpoint import AskError, DraftCounts
from trtspec.client.finding import shown
from trtspec.client.http import Streams, problem_of
from trtspec.client.openai import COUNTING, SGLANG, TRTSPEC, counts_of
from trtspec.measure.verify.subject import END, PROBED, Row, SubjectAnswer, SubjectRequest
from trtspec.serving.completion import NO_END
from trtspec.serving.executor import MAX_TOP_LOG_PROBS

_NEEDED = ("input_ids", "return_output_ids")
_WANTED = ("stream", "return_output_ids", "return_num_input_tokens", "return_perf_metrics")
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


class _ServerSubject:
    """Streams the answers of one model of a server."""

    def __init__(self, url: str, model: str, streams: Streams, top_log_probs: int) -> None:
        self.name, self._streams, self.top_log_probs = f"{model} at {shown(url)}", streams, top_log_probs

    async def _events(self, address: URL, body: dict[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        """Yields the events of an answer; raises `ServerError`."""
        try:
            async with aclosing(self._streams.post(address, body, perf_counter())) as events:
                async for said, _ in events:
                    if "error" in said:
                        raise ServerError(self.name, problem_of(str(said["error"])))
                    yield said
        except AskError as error:
            raise ServerError(self.name, error.problem) from error

    async def close(self) -> None:
        await self._streams.close()


class TritonSubject(_ServerSubject):
    """trtspec's model behind Triton's HTTP port."""

    def __init__(self, url: str, model: str, streams: Streams) -> None:
        super().__init__(url, model, streams, MAX_TOP_LOG_PROBS)
        self._model = URL(url) / "v2/models" / model

    async def probe(self) -> None:
        """Finds out whether the server reports log-probabilities; raises `UnavailableError` if it reports no
        tokens."""
        try:
            model = await self._streams.get(self._model)
        except AskError as error:
            raise ServerError(self.name, error.problem) from error
        inputs = {tensor["name"] for tensor in (model or {}).get("inputs", ())}
        if missing := [name for name in _NEEDED if name not in inputs]:
            problem = f"has no input {missing[0]}, so its answers cannot be compared token by token"
            raise UnavailableError(self.name, problem, "build the model repository with this trtspec")
        try:
            answer = await self.ask(SubjectRequest(PROBED, 1, top_log_probs=1, ignores_end=True))
            has_rows = bool(answer.rows)
        except ServerError as error:
            if "log_probs" not in error.problem:
                raise
            has_rows = False
        self.top_log_probs = MAX_TOP_LOG_PROBS if has_rows else 0

    async def ask(self, question: SubjectRequest) -> SubjectAnswer:
        tokens: list[int] = []
        rows: list[Row] = []
        text, last = "", dict[str, Any]()
        address = self._model / "generate_stream"
        async with aclosing(self._events(address, self._body(question))) as events:
            async for said in events:
                text += said.get("text_output", "")
                new = _many(said.get("output_ids"))
                tokens += new
                rows += _rows(said, len(new))
                last = said
        if "finish_reason" not in last:
            raise ServerError(self.name, "the stream ended before the answer")
        return SubjectAnswer(
            (*tokens, *((END,) if last["finish_reason"] == "stop" else ())),
            text,
            tuple(rows),
            last.get("num_input_tokens"),
            last.get("total_draft_tokens"),
            last.get("total_accepted_draft_tokens"),
        )

    def _body(self, question: SubjectRequest) -> dict[str, Any]:
        sampling, bias = question.sampling, question.bias
        prompt = "text_input" if isinstance(question.prompt, str) else "input_ids"
        values = {
            prompt: question.prompt,
            "max_tokens": question.max_tokens,
            "num_draft_tokens": question.num_draft_tokens,
            "temperature": sampling.temperature,
            "seed": sampling.seed,
            "end_id": NO_END if question.ignores_end else None,
            "embedding_bias_ids": list(bias) or None,
            "embedding_bias_weights": list(bias.values()) or None,
            "return_log_probs": question.top_log_probs > 0 or None,
            "top_log_probs": question.top_log_probs or None,
        }
        given = {name: value for name, value in values.items() if value is not None}
        return given | dict.fromkeys(_WANTED, True)


def _many(value: Any) -> list[Any]:
    """Returns a tensor's values; Triton writes a tensor of one value without brackets."""
    return [] if value is None else value if isinstance(value, list) else [value]


def _rows(said: dict[str, Any], count: int) -> Sequence[Row]:
    tokens, values = _many(said.get("output_top_ids")), _many(said.get("output_top_log_probs"))
    if not tokens:
        return ()
    width = len(tokens) // count
    pairs = list(zip(tokens, values, strict=True))
    return [dict(pairs[first : first + width]) for first in range(0, len(pairs), width)]


class OpenAiSubject(_ServerSubject):
    """A model of `owner` behind OpenAI's API.

    The log-probabilities of vLLM and trtspec name tokens by ids. SGLang and trtllm-serve report no
    log-probabilities by id. trtllm-serve also reports no text where it reports ids.
    """

    def __init__(
        self, url: str, model: str, streams: Streams, end_ids: Collection[int], *, owner: str | None
    ) -> None:
        self._is_ours, self._telling = owner == TRTSPEC, _TELLING.get(owner)
        super().__init__(url, model, streams, 0 if self._telling else _MOST_TOP)
        self._model, self._address, self._end_ids = model, URL(url) / "completions", end_ids

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
        async with aclosing(self._events(self._address, self._body(question))) as events:
            async for said in events:
                for choice in said.get("choices") or ():
                    text += choice.get("text") or ""
                    tokens += choice.get("token_ids") or ()
                    reason = choice.get("finish_reason") or reason
                    if said_of := choice.get("logprobs"):
                        tokens += map(_token_id, said_of["tokens"])
                        for row in said_of.get("top_logprobs") or ():
                            rows.append({_token_id(name): value for name, value in row.items()})
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
