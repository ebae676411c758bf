"""From the coordinator's plain types to a Triton response's tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from trtspec.serving.completion import Completion
from trtspec.serving.triton.requests import Wanted
from trtspec.serving.triton.tensors import OUTPUTS, Datatype


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a request has no answer, in one line; `is_clients` tells a bad request from a server's fault."""

    message: str
    is_clients: bool
    is_retryable: bool = False


@dataclass(slots=True)
class Chunk:
    """What one response brings: the text since the one before. The last has `completion`, or `failure`
    instead.
    """

    text: str = ""
    completion: Completion | None = None
    failure: Failure | None = None

    @property
    def is_last(self) -> bool:
        return self.completion is not None or self.failure is not None


def arrays(chunk: Chunk, wanted: Wanted) -> dict[str, npt.NDArray[Any]]:
    """The response's tensors by name, each of shape [1, 1].

    Counts come with the last response, for the whole completion; clients that add up what responses count, as
    Triton's OpenAI front end does, get the same sum.
    """
    values: dict[str, Any] = {"text_output": chunk.text.encode()}
    if chunk.completion is not None:
        speculation = chunk.completion.speculation
        if wanted.num_input_tokens:
            values["num_input_tokens"] = chunk.completion.num_input_tokens
        if wanted.num_output_tokens:
            values["num_output_tokens"] = chunk.completion.num_output_tokens
        if wanted.perf_metrics:
            values["acceptance_rate"] = speculation.draft_acceptance_rate
            values["total_accepted_draft_tokens"] = speculation.num_accepted_draft_tokens
            values["total_draft_tokens"] = speculation.num_draft_tokens
    return {name: np.array([[value]], dtype=_DTYPES[name]) for name, value in values.items()}


_NUMPY = {Datatype.STRING: np.object_, Datatype.INT32: np.int32, Datatype.FP32: np.float32}
_DTYPES = {output.name: _NUMPY[output.datatype] for output in OUTPUTS}
