"""The responses to Triton's clients, written from the coordinator's plain types as tensors."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt

from trtspec.serving.completion import Completion, EndReason
from trtspec.serving.executor import LogProb
from trtspec.serving.stats import SpeculationCounts
from trtspec.serving.triton.requests import ResponseOptions
from trtspec.serving.triton.tensors import OUTPUTS, Datatype


class Code(Enum):
    """Triton's error codes, each with its HTTP status; only `UNAVAILABLE` is worth another try."""

    INVALID_ARG = 400
    CANCELLED = 499
    INTERNAL = 500
    UNAVAILABLE = 503


@dataclass(frozen=True, slots=True)
class Failure:
    """The reason why a request has no answer, in one line."""

    message: str
    code: Code


@dataclass(slots=True)
class TextChunk:
    """The content of one response: the text since the one before."""

    text: str = ""
    completion: Completion | None = None
    """Given with the last chunk of each completion, unless that has a `failure`."""
    failure: Failure | None = None
    """Given with the last chunk, in place of a completion."""
    log_probs: list[LogProb] = field(default_factory=list)
    """Those of `token_ids`, if they were asked for."""
    token_ids: list[int] = field(default_factory=list)
    """The tokens that were generated since the chunk before."""
    sequence_index: int = 0
    """The number of the completion, where the request asks for several. Each has its own chunks."""
    others_left: int = 0
    """The number of the request's other completions that have not ended yet."""

    @property
    def is_last(self) -> bool:
        """Says whether the client gets nothing after it."""
        return self.failure is not None or (self.completion is not None and not self.others_left)

    def followed_by(self, later: TextChunk) -> TextChunk:
        """Returns both, of one sequence, as one response."""
        return TextChunk(
            self.text + later.text,
            later.completion,
            later.failure,
            self.log_probs + later.log_probs,
            self.token_ids + later.token_ids,
            later.sequence_index,
            later.others_left,
        )


def arrays(chunk: TextChunk, wanted: ResponseOptions) -> dict[str, npt.NDArray[Any]]:
    """Returns the response's tensors by name, each of shape [1, 1].

    But `output_log_probs` and `output_ids` are [1, 1, tokens], `output_top_log_probs` and `output_top_ids`
    [1, tokens, top_log_probs], and `acceptance_histogram` is [1, K + 1].
    The last response says why the text ended, in the words of OpenAI's API: `stop` or `length`. Where options
    of the request turned speculation off, `speculation` is `off` and names them. Counts come with it, for the
    whole completion; clients that add up the counts of all responses, as Triton's OpenAI front end does, get
    the same sum.
    """
    values: dict[str, Any] = {"text_output": chunk.text.encode()}
    if wanted.sequence_index:
        values["sequence_index"] = chunk.sequence_index
    if chunk.completion is not None:
        speculation = chunk.completion.speculation
        ended_at_limit = chunk.completion.end_reason is EndReason.LENGTH
        values["finish_reason"] = b"length" if ended_at_limit else b"stop"
        if options := chunk.completion.undrafted_for:
            values["speculation"] = f"off: {', '.join(options)}".encode()
        if wanted.num_input_tokens:
            values["num_input_tokens"] = chunk.completion.num_input_tokens
        if wanted.num_output_tokens:
            values["num_output_tokens"] = chunk.completion.num_output_tokens
        if wanted.perf_metrics:
            values["acceptance_rate"] = speculation.draft_acceptance_rate
            values["total_accepted_draft_tokens"] = speculation.num_accepted_draft_tokens
            values["total_draft_tokens"] = speculation.num_draft_tokens
            values["num_spec_steps"] = speculation.num_spec_steps
            values["acceptance_histogram"] = _histogram(speculation, chunk.completion.num_draft_tokens)
    if chunk.log_probs:
        values["output_log_probs"] = [said.value for said in chunk.log_probs]
    if chunk.token_ids and (chunk.log_probs or wanted.output_ids):
        values["output_ids"] = chunk.token_ids
    made = {
        name: np.array(value, dtype=_DTYPES[name]).reshape(1, *([1] * (len(_DIMS[name]) - 1)), -1)
        for name, value in values.items()
    }
    if chunk.log_probs and chunk.log_probs[0].top:
        top = np.array([[said.top for said in chunk.log_probs]])
        made["output_top_ids"] = top[..., 0].astype(np.int32)
        made["output_top_log_probs"] = top[..., 1].astype(np.float32)
    return made


def _histogram(counts: SpeculationCounts, num_draft_tokens: int) -> list[int]:
    """Returns how many verifications accepted exactly 0, 1, … `num_draft_tokens` tokens."""
    at_least = [counts.num_spec_steps, *counts.accepted_per_position]
    at_least += [0] * (num_draft_tokens + 2 - len(at_least))
    return [at_least[j] - at_least[j + 1] for j in range(num_draft_tokens + 1)]


_NUMPY = {Datatype.STRING: np.object_, Datatype.INT32: np.int32, Datatype.FP32: np.float32}
_DTYPES = {output.name: _NUMPY[output.datatype] for output in OUTPUTS}
_DIMS = {output.name: output.dims for output in OUTPUTS}
