"""Asks trtspec's model behind Triton's HTTP port for tokens."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from time import perf_counter
from typing import Any

from yarl import URL

from trtspec.base.errors import ServerError, UnavailableError
from trtspec.client.finding import shown
from trtspec.client.http import Streams, problem_of
from trtspec.measure.verify.subject import END, PROBED, Row, SubjectAnswer, SubjectRequest, told
from trtspec.serving.executor import MAX_TOP_LOG_PROBS

_NO_END = -1
_NEEDED = ("input_ids", "return_output_ids")
_WANTED = ("stream", "return_output_ids", "return_num_input_tokens", "return_perf_metrics")


class TritonSubject:
    """trtspec's model behind Triton's HTTP port."""

    longest_draft: int | None = None

    def __init__(self, url: str, model: str, streams: Streams) -> None:
        self.name, self.top_log_probs = f"{model} at {shown(url)}", MAX_TOP_LOG_PROBS
        self._streams, self._model = streams, URL(url) / "v2/models" / model

    async def probe(self) -> None:
        """Finds out whether the server reports log-probabilities; raises `UnavailableError` if it reports no
        tokens."""
        async with told(self.name):
            model = await self._streams.get(self._model)
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
        async with (
            told(self.name),
            aclosing(self._streams.post(address, self._body(question), perf_counter())) as events,
        ):
            async for said, _ in events:
                if "error" in said:
                    raise ServerError(self.name, problem_of(str(said["error"])))
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

    async def close(self) -> None:
        await self._streams.close()

    def _body(self, question: SubjectRequest) -> dict[str, Any]:
        sampling, bias = question.sampling, question.bias
        prompt = "text_input" if isinstance(question.prompt, str) else "input_ids"
        values = {
            prompt: question.prompt,
            "max_tokens": question.max_tokens,
            "num_draft_tokens": question.num_draft_tokens,
            "temperature": sampling.temperature,
            "seed": sampling.seed,
            "end_id": _NO_END if question.ignores_end else None,
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
