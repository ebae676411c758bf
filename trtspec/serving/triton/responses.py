"""The responses to clients, written from the coordinator's plain types as Triton's tensors."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt

from trtspec.serving.completion import Completion, EndReason, PromptScores
from trtspec.serving.executor import LogProb
from trtspec.serving.stats import SpeculationCounts
from trtspec.serving.triton.requests import ResponseOptions
from trtspec.serving.triton.tensors import OUTPUTS, Datatype


class Code(Enum):
    """Triton's error codes with their HTTP statuses. A client should retry only after `UNAVAILABLE`."""

    INVALID_ARG = 400
    CANCELLED = 499
    INTERNAL = 500
    UNAVAILABLE = 503


@dataclass(frozen=True, slots=True)
class Failure:
    """The reason why a request failed."""

    message: str
    """One line."""
    code: Code


@dataclass(slots=True)
class TextChunk:
    """The content of one response."""

    text: str = ""
    """The text since the previous chunk of the completion."""
    completion: Completion | None = None
    """The summary, in the last chunk of each completion without a failure."""
    failure: Failure | None = None
    """The reason of a failed request, in its last chunk."""
    log_probs: list[LogProb] = field(default_factory=list)
    """The log-probabilities of `token_ids` if the request has `return_log_probs`."""
    token_ids: list[int] = field(default_factory=list)
    """The tokens since the previous chunk of the completion, if the response has them."""
    sequence_index: int = 0
    """The index of the completion, from 0, among those of the request."""
    others_left: int = 0
    """The number of the request's completions that have not ended yet, apart from one that ends here."""
    prompt: PromptScores | None = None
    """In the first chunk of a request with `prompt_log_probs`."""

    @property
    def is_last(self) -> bool:
        """True if no chunk of the request follows."""
        return self.failure is not None or (self.completion is not None and not self.others_left)

    def followed_by(self, later: TextChunk) -> TextChunk:
        """Returns both chunks, which are of one completion, as one."""
        return TextChunk(
            self.text + later.text,
            later.completion,
            later.failure,
            self.log_probs + later.log_probs,
            self.token_ids + later.token_ids,
            later.sequence_index,
            later.others_left,
            self.prompt or later.prompt,
        )


def arrays(chunk: TextChunk, options: ResponseOptions) -> dict[str, npt.NDArray[Any]]:
    """Returns the response's tensors by name.

    The shape is [1, 1], with these exceptions: `output_log_probs` and `output_ids` have [1, 1, tokens],
    `output_top_log_probs` and `output_top_ids` [1, tokens, top_log_probs], those of the prompt likewise, and
    `acceptance_histogram` [1, K + 1].

    The last response of a completion has the `finish_reason` of OpenAI's API, `stop` or `length`. If options
    of the request turned speculation off, `speculation` is `off` with their names. Counts come only in this
    response, so clients that add up those of all responses, as Triton's OpenAI front end does, get the same
    sums.
    """
    values: dict[str, Any] = {"text_output": chunk.text.encode()}
    if options.sequence_index:
        values["sequence_index"] = chunk.sequence_index
    if chunk.completion is not None:
        speculation = chunk.completion.speculation
        ended_at_limit = chunk.completion.end_reason is EndReason.LENGTH
        values["finish_reason"] = b"length" if ended_at_limit else b"stop"
        if reasons := chunk.completion.undrafted_for:
            values["speculation"] = f"off: {', '.join(reasons)}".encode()
        if options.num_input_tokens:
            values["num_input_tokens"] = chunk.completion.num_input_tokens
            if chunk.completion.num_cached_tokens is not None:
                values["num_cached_tokens"] = chunk.completion.num_cached_tokens
        if options.num_output_tokens:
            values["num_output_tokens"] = chunk.completion.num_output_tokens
        if options.perf_metrics:
            values["acceptance_rate"] = speculation.draft_acceptance_rate
            values["total_accepted_draft_tokens"] = speculation.num_accepted_draft_tokens
            values["total_draft_tokens"] = speculation.num_draft_tokens
            values["num_spec_steps"] = speculation.num_spec_steps
            values["acceptance_histogram"] = _histogram(speculation, chunk.completion.max_draft_len)
    if chunk.log_probs:
        values["output_log_probs"] = [log_prob.value for log_prob in chunk.log_probs]
    if chunk.token_ids and (chunk.log_probs or options.output_ids):
        values["output_ids"] = chunk.token_ids
    if chunk.prompt:
        values["prompt_ids"] = chunk.prompt.token_ids
        values["prompt_token_log_probs"] = [log_prob.value for log_prob in chunk.prompt.log_probs]
    made = {
        name: np.array(value, dtype=_DTYPES[name]).reshape(1, *([1] * (len(_DIMS[name]) - 1)), -1)
        for name, value in values.items()
    }
    for name, found in (
        ("output", chunk.log_probs),
        ("prompt", chunk.prompt.log_probs if chunk.prompt else ()),
    ):
        if found and found[0].top:
            top = np.array([[log_prob.top for log_prob in found]])
            made[f"{name}_top_ids"] = top[..., 0].astype(np.int32)
            made[f"{name}_top_log_probs"] = top[..., 1].astype(np.float32)
    return made


def _histogram(counts: SpeculationCounts, max_draft_len: int) -> list[int]:
    """Returns the number of verifications that accepted exactly 0, 1, … `max_draft_len` tokens."""
    at_least = [counts.num_spec_steps, *counts.accepted_per_position]
    at_least += [0] * (max_draft_len + 2 - len(at_least))
    return [at_least[j] - at_least[j + 1] for j in range(max_draft_len + 1)]


_NUMPY = {Datatype.STRING: np.object_, Datatype.INT32: np.int32, Datatype.FP32: np.float32}
_DTYPES = {output.name: _NUMPY[output.datatype] for output in OUTPUTS}
_DIMS = {output.name: output.dims for output in OUTPUTS}
