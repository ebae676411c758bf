"""The contract between the coordinator and whatever runs an engine.

Names follow `tensorrt_llm.bindings.executor`; everything is a plain Python type, so that the coordinator runs
in NVIDIA's stock image and in a test without tensors. The rules are those of TensorRT-LLM's runtime
(`batch_manager/trtGptModelInflightBatching.cpp`, `llmRequest.cpp` and `createNewDecoderRequests.cpp`,
`kernels/speculativeDecoding/externalDraftTokensKernels.cu`):

1. The KV cache keeps the beginnings of texts. A request computes only what the cache lacks of its prompt,
   which changes no result.
2. A request with `draft_token_ids` is one verification: it is final after one step over the K draft tokens,
   whatever `max_tokens` says.
3. A verification returns the n accepted draft tokens and one token of the target's own: n + 1 tokens in all,
   0 <= n <= K. A `max_tokens` below that cuts the output off. The response does not state n.
4. The tokens of a verification have the target's own distribution under the request's sampling, whatever the
   draft is. Greedy, a draft token is accepted if it is the likeliest; the first one that is not ends the
   verification, with the likeliest in its place. Sampled, engines reach it in one of two ways:

   * An engine with `Limits.matches_samples` draws its own token first. It accepts a draft token that is the
     same, and says its own where they differ.
   * The kernel of TensorRT-LLM throws its own token away where they differ and draws again, with the draft
     token still among the rest, which is another distribution. With draft logits it accepts the draft token d
     with min(1, p(d) / q(d)) and else draws from max(p - q, 0). So the executor sends one-hot logits: q(d) is
     1, which is exact for any draft that is not drawn with the request's own random numbers.

   An engine that can do neither refuses drafts of sampled requests (`Limits.drafts_samples`).
5. The end token is never in the output. A verification that meets it returns what comes before it: the
   accepted tokens without the one more. No token of a rejected draft token's place is the draft token itself,
   so with `Response.num_verified` an answer that is a beginning of what was verified is the end.
6. A request without a draft is ordinary decoding, up to `max_tokens`.
7. An engine may discard the end of a draft that does not fit a step, as TensorRT-LLM does with chunked
   context (`fitDraftTokens` of `batch_manager/microBatchScheduler.cpp`). It then answers as for the shorter
   draft, and `Response.num_verified` is what was left of it. With nothing of the draft left the request is
   ordinary decoding, up to `max_tokens`. Every token is the target's own all the same.
8. A draft longer than the engine's `max_draft_len` is an error, and so is a prompt over `max_input_len`. A
   draft is cut off where prompt and draft exceed `max_input_len`, and `max_tokens` is reduced to what
   `max_seq_len` leaves.
9. The log-probability of a token is the natural logarithm of the model's own probability for it at its
   place: softmax over the raw logits, before embedding bias, temperature, penalties, bans and filters,
   whether the token was drafted or not. That is what OpenAI's API returns, and vLLM by default
   (`logprobs_mode=raw_logprobs`). `top_log_probs` of a request asks for so many of the likeliest tokens of
   the same distribution beside each, likeliest first. An engine that cannot say them refuses the request
   (`returns_log_probs`, `max_top_log_probs`).
10. A `guide` allows only tokens with which the tokens generated so far can become a text of its grammar, in
    verifications too: a draft counts up to the first token that the grammar forbids. An end token is allowed
    exactly where such a text is complete. Where it is complete and no other token is left, the text ends as
    if an end token came; where it is not and nothing is left, the request ends with an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal, NamedTuple, Protocol, runtime_checkable


class FinishReason(str, Enum):
    """The reason why a request ended; TensorRT-LLM's `FinishReason`."""

    NOT_FINISHED = "not_finished"
    END_ID = "end_id"
    LENGTH = "length"
    CANCELLED = "cancelled"


class GuideType(str, Enum):
    """The language of a guide: TensorRT-LLM's `GuidedDecodingParams.GuideType`, as its tensors name it."""

    JSON = "json"
    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    EBNF_GRAMMAR = "ebnf_grammar"
    STRUCTURAL_TAG = "structural_tag"


@dataclass(frozen=True, slots=True)
class Guide:
    """A grammar that bounds what is generated: TensorRT-LLM's `GuidedDecodingParams` (`executor.h`)."""

    guide_type: GuideType
    guide: str = ""
    """Empty for `JSON`, which is any JSON value."""
    end_ids: tuple[int, ...] = ()
    """The end tokens of the text, of which a request's `end_id` is one.

    Each of them ends a guided request, and none is in its output.
    """


MAX_TOP_LOG_PROBS = 20
"""The largest number of likeliest tokens beside each token, as in OpenAI's API."""

COLDEST = 1e-6
"""A temperature below this one is greedy: it would divide logits into infinities."""


@dataclass(frozen=True, slots=True)
class SamplingConfig:
    """The rule by which tokens are chosen from logits; all `None`, `top_k=1` or temperature 0 is greedy."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None
    """The name of a stream of random numbers, with one number for each token that a request generates.

    Token i of the request uses number `(seed + i) % 2**64` of it, whatever the batch, the draft or the
    engine. A continuation that starts `m` tokens later with `seed + m` therefore draws the very same numbers.
    """
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    min_tokens: int | None = None
    min_p: float | None = None

    @property
    def is_greedy(self) -> bool:
        """Says whether the token with the largest logit is chosen."""
        if self.top_k == 1 or (self.temperature is not None and self.temperature < COLDEST):
            return True
        return self.temperature is None and self.top_p is None and not self.top_k and not self.min_p

    @property
    def in_effect(self) -> tuple[str, ...]:
        """The names of the options by which another token than the likeliest may be chosen."""
        drawn = () if self.is_greedy else ("temperature", "top_k", "top_p", "min_p")
        return (*(name for name in (*drawn, "min_tokens") if getattr(self, name)), *self.penalties)

    @property
    def penalties(self) -> tuple[str, ...]:
        """The names of the penalties that change anything, which depend on the tokens of the text."""
        changes = {
            "repetition_penalty": self.repetition_penalty not in (None, 1),
            "presence_penalty": bool(self.presence_penalty),
            "frequency_penalty": bool(self.frequency_penalty),
        }
        return tuple(name for name, does_change in changes.items() if does_change)


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt in token ids, to be continued or, with a draft, to be verified."""

    input_token_ids: Sequence[int]
    """The prompt. A `trtspec.serving.text.Text` is neither checked nor copied."""
    max_tokens: int
    draft_token_ids: Sequence[int] = ()
    end_id: int | None = None
    """None if nothing ends the text but `max_tokens`."""
    bad_words: Sequence[Sequence[int]] = ()
    """Sequences of tokens.

    A token that would complete one of them is never generated, in verifications too. The prompt counts as
    text before it.
    """
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    streaming: bool = False
    embedding_bias: Mapping[int, float] = field(default_factory=dict)
    """Added to the logits of its token ids before anything else, in verifications too."""
    return_log_probs: bool = False
    """Asks for the log-probabilities of rule 9."""
    top_log_probs: int = 0
    """The number of the likeliest tokens that are returned with each."""
    guide: Guide | None = None
    num_guided: int = 0
    """The number of tokens at the end of the input that were generated before under the `guide`.

    The grammar begins with them.
    """


class LogProb(NamedTuple):
    """The log-probability of a token (rule 9), and the likeliest tokens at its place."""

    value: float
    top: tuple[tuple[int, float], ...] = ()
    """The ids of the likeliest tokens, each with its own log-probability."""


@dataclass(frozen=True, slots=True)
class Response:
    """The token ids that are new since the previous response of the same request, without the prompt.

    A request without `streaming` has exactly one response, which is final.
    """

    request_id: int
    token_ids: list[int]
    is_final: bool
    finish_reason: FinishReason = FinishReason.NOT_FINISHED
    error: str | None = None
    """A response with an error has no tokens, and is final."""
    log_probs: list[LogProb] | None = None
    """One for each token where the request has `return_log_probs`.

    None where it has not, and where it ended with an error or `CANCELLED`.
    """
    num_verified: int | None = None
    """The number of tokens of a draft, from its beginning, that the engine has verified (rule 7).

    None without a draft, and if the engine does not report it.
    """


GUIDE_REFUSED = "Guide refused: "
"""The prefix of errors about a guide that cannot be read or followed."""


@dataclass(frozen=True, slots=True)
class LogitsFormat:
    """The draft logits that an engine takes: a row of numbers for each token."""

    width: int
    """The length of a row: the vocabulary, padded to a multiple of the engine's ranks."""
    dtype: Literal["float32", "float16"]


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits that an engine was built with; all in tokens, except `max_batch_size` in requests."""

    max_batch_size: int
    max_input_len: int
    max_seq_len: int
    """The bound of prompt + generated + draft.

    A request without a draft counts as one with `max_draft_len` tokens.
    """
    max_draft_len: int
    """0 for an engine that verifies no drafts, or none but its own."""
    vocab_size: int
    ignored_options: frozenset[str] = frozenset()
    """The fields of `SamplingConfig` that the engine would silently ignore.

    A request in which one has an effect is refused.
    """
    takes_bias: bool = True
    """False if the engine would ignore an embedding bias. A request with one is then refused."""
    returns_log_probs: bool = True
    """False if the engine has no log-probabilities of rule 9.

    A request with `return_log_probs` is then refused.
    """
    max_top_log_probs: int = MAX_TOP_LOG_PROBS
    """A request with more `top_log_probs` is refused."""
    never_banned: range = range(0)
    """The tokens that the engine cannot ban. A request with a bad word that ends in one is refused."""
    guide_types: frozenset[GuideType] = frozenset()
    """The kinds of guides that the engine follows; others are refused."""
    resumes_guides: bool = False
    """True if the engine follows guides through verifications and in texts that were begun before."""
    matches_samples: bool = True
    """True if the engine verifies sampled drafts exactly by itself (rule 4)."""
    draft_logits: LogitsFormat | None = None
    """The format of the logits that an engine without `matches_samples` takes with sampled drafts.

    None if it takes none; it then verifies drafts of greedy requests alone.
    """

    @property
    def drafts_samples(self) -> bool:
        """Says whether drafts of sampled requests are verified."""
        return self.matches_samples or self.draft_logits is not None


@dataclass(frozen=True, slots=True)
class KvReuse:
    """The use that requests made of what the KV cache already had."""

    asked: int
    """The number of tokens that requests began with, without drafts."""
    found: int
    """The number of these that the KV cache had."""


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
        """Says how many tokens of text the KV cache holds; None where the engine does not say."""
        ...

    def take_kv_use(self) -> float | None:
        """Returns the largest share of the KV cache, 0 to 1, that requests held since the last call.

        None where the engine does not say. What is kept of ended requests, for texts that begin alike, does
        not count: it makes room.
        """
        ...

    @property
    def kv_reuse(self) -> KvReuse | None:
        """Says what requests found in the KV cache since the start; None where the engine does not say."""
        ...

    @property
    def progress(self) -> int:
        """Counts the steps or responses of the engine, so that it rises while the engine works.

        Any thread may read it.
        """
        ...

    @property
    def failure(self) -> str | None:
        """Says in one line why the engine will serve nothing any more; None while it serves."""
        ...

    def enqueue_request(self, request: Request, listener: Listener) -> int:
        """Takes a request and returns its id; the listener hears what is wrong with it as an error."""
        ...

    def cancel_request(self, request_id: int) -> None:
        """Ends a request, whose listener hears a final `CANCELLED` response; ignores a finished id."""
        ...

    def shutdown(self) -> None:
        """Cancels what is in flight and frees the engine's memory."""
        ...


@runtime_checkable
class DrawsByToken(Protocol):
    """An engine of which chance is a function of the number of a draw and the id of a token alone.

    Two of these, of which one takes the other's ids for its tokens, are likely to draw the same tokens.
    """

    def draw_as(self, token_ids: list[int]) -> None:
        """Draws from now on as if the id of each token were that of its place in `token_ids`."""
        ...
