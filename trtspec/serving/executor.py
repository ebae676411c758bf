"""The contract between the coordinator and whatever runs an engine.

Names follow `tensorrt_llm.bindings.executor`; everything is a plain Python type, so that the coordinator runs
in NVIDIA's stock image and in a test without tensors. The semantics are those of TensorRT-LLM's in-flight
batching runtime (`trtGptModelInflightBatching.cpp`, `llmRequest.cpp`, `externalDraftTokensKernels.cu`):

* A request with `draft_token_ids` is one verification: it returns the n accepted draft tokens and one token
  of the target's own, n + 1 in all, and is then final whatever `max_tokens` says.
* A request without is ordinary decoding, up to `max_tokens`.
* An engine may discard the end of a draft that does not fit a step, as TensorRT-LLM does with chunked context
  (`microBatchScheduler.cpp`, `fitDraftTokens`), and does not say so. What it returns is then what the shorter
  draft gives: a proper prefix of the draft may be the whole answer, and is no end. With nothing of the draft
  left the request is ordinary decoding, up to `max_tokens`. Every token returned is the target's own in any
  case.
* The end token is never in the output. A verification that meets it returns what comes before it: the
  accepted tokens without the one more. Only a response without any token, or its finish reason, tells that
  from a draft that was cut short.
* A draft longer than the engine's `max_draft_len` is an error; so is a prompt over `max_input_len`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol


class FinishReason(str, Enum):
    """Why a request ended; TensorRT-LLM's `FinishReason`."""

    NOT_FINISHED = "not_finished"
    END_ID = "end_id"
    LENGTH = "length"
    CANCELLED = "cancelled"


COLDEST = 1e-6


@dataclass(frozen=True, slots=True)
class SamplingConfig:
    """How a token is chosen from the logits. All `None` (or `top_k=1`, or temperature 0) is greedy.

    `seed` names a stream of random numbers, one for each token that a request generates: token i of the
    request uses number `(seed + i) % 2**64` of it, whatever the batch, the draft or the engine. A
    continuation that starts `m` tokens later with `seed + m` therefore draws the very same numbers.
    """

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    min_tokens: int | None = None

    @property
    def is_greedy(self) -> bool:
        """A temperature below `COLDEST` divides logits into infinities; its limit is the best token."""
        if self.top_k == 1 or (self.temperature is not None and self.temperature < COLDEST):
            return True
        return self.temperature is None and self.top_p is None and not self.top_k


@dataclass(frozen=True, slots=True)
class Request:
    """Token ids in. `end_id` None means that nothing ends the text but `max_tokens`.

    `input_token_ids` that are a `trtspec.serving.text.Text` are neither checked nor copied. The
    `bad_token_ids` are never generated; a request with a draft has none.
    """

    input_token_ids: Sequence[int]
    max_tokens: int
    draft_token_ids: Sequence[int] = ()
    end_id: int | None = None
    bad_token_ids: Sequence[int] = ()
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    streaming: bool = False


@dataclass(frozen=True, slots=True)
class Response:
    """Token ids out: those new since the previous response of the same request, the prompt never among them.

    A request without `streaming` has exactly one response, which is final. With `error` set there are no
    tokens, and the response is final.
    """

    request_id: int
    token_ids: list[int]
    is_final: bool
    finish_reason: FinishReason = FinishReason.NOT_FINISHED
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """What an engine was built for; all in tokens, except `max_batch_size` in requests.

    `max_seq_len` bounds prompt + generated + draft, where a request without a draft counts `max_draft_len`
    for one; `max_draft_len` is 0 for an engine that verifies no drafts.
    """

    max_batch_size: int
    max_input_len: int
    max_seq_len: int
    max_draft_len: int
    vocab_size: int


Listener = Callable[[Response], None]


class Executor(Protocol):
    """A loaded engine that takes requests.

    All methods are called on the thread of one asyncio loop, and listeners are called on it, never before
    `enqueue_request` has returned.
    """

    @property
    def limits(self) -> Limits: ...

    @property
    def kv_tokens(self) -> int | None:
        """How many tokens of text the KV cache holds; None where the engine does not say."""
        ...

    @property
    def progress(self) -> int:
        """Rises whenever the engine has done something: a step, or a response. Any thread may read it."""
        ...

    @property
    def failure(self) -> str | None:
        """Why the engine will serve nothing any more, in one line; None while it does."""
        ...

    def enqueue_request(self, request: Request, listener: Listener) -> int:
        """Takes a request and returns its id. Whatever is wrong with it comes to the listener as an error."""
        ...

    def cancel_request(self, request_id: int) -> None:
        """Ends a request: its listener hears a final `CANCELLED` response; a finished id is ignored."""
        ...

    def shutdown(self) -> None:
        """Cancels what is in flight and frees the engine's memory."""
        ...
