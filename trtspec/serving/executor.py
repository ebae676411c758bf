"""The contract between the coordinator and whatever runs an engine.

Names follow `tensorrt_llm.bindings.executor`; everything is a plain Python type, so that the coordinator runs
in NVIDIA's stock image and in a test without tensors. The rules are those of TensorRT-LLM's runtime
(`batch_manager/trtGptModelInflightBatching.cpp`, `llmRequest.cpp` and `createNewDecoderRequests.cpp`,
`kernels/speculativeDecoding/externalDraftTokensKernels.cu`):

1. The KV cache keeps prefixes of sequences. A request computes only the part of its prompt that the cache
   lacks, which changes no result.
2. A request with `draft_token_ids` is one verification: it is final after one step over the K draft tokens,
   whatever `max_tokens` says.
3. A verification returns the n accepted draft tokens and one token of the target's own: n + 1 tokens in all,
   0 <= n <= K. A `max_tokens` below that cuts the output off. The response does not state n.
4. The tokens of a verification have the target's own distribution under the request's sampling, whatever the
   draft is. In greedy decoding a draft token is accepted if it is the likeliest; the first one that is not
   ends the verification, with the likeliest at its position. In sampling, engines work in one of two ways:

   * An engine with `Limits.matches_samples` draws its own token first. It accepts a draft token that is the
     same, and returns its own where they differ.
   * The kernel of TensorRT-LLM drops its own token where they differ and draws again, with the draft token
     still among the candidates, which is another distribution. With draft logits it accepts the draft token d
     with min(1, p(d) / q(d)) and else draws from max(p - q, 0). So the executor sends one-hot logits: q(d) is
     1, which is exact for any draft that is not drawn with the request's own random numbers.

   An engine that can do neither refuses drafts of sampled requests (`Limits.drafts_samples`).
5. The end token is never in the output. A verification that meets it returns the accepted tokens alone. At
   the position of a rejected draft token the target's token differs from it. So an output that is a prefix of
   the first `Response.num_verified` draft tokens means that the end token came next.
6. A request without a draft is ordinary decoding, up to `max_tokens`.
7. An engine may discard the end of a draft that does not fit a step, as TensorRT-LLM does with chunked
   context (`fitDraftTokens` of `batch_manager/microBatchScheduler.cpp`). It then answers as for the shorter
   draft, whose length is `Response.num_verified`. If it discards the whole draft, the request is ordinary
   decoding, up to `max_tokens`.
8. A draft longer than the engine's `max_draft_len` is an error, and so is a prompt over `max_input_len`. A
   draft is cut off where prompt and draft exceed `max_input_len`, and `max_tokens` is reduced to what
   `max_seq_len` leaves.
9. The log-probability of a token is the natural logarithm of the model's own probability for it at its
   position: softmax over the raw logits, before embedding bias, temperature, penalties, bans and filters,
   whether the token was drafted or not. That is what OpenAI's API returns, and vLLM by default
   (`logprobs_mode=raw_logprobs`). With `top_log_probs` = n the n likeliest tokens of the same distribution
   come with each token, likeliest first. None is below `LEAST_LOG_PROB`. An engine that cannot
   return them refuses the request (`returns_log_probs`, `max_top_log_probs`).
10. A `guide` allows only tokens after which the generated tokens can still become a text of its grammar, in
    verifications too: a draft is verified up to the first token that the grammar forbids. An end token is
    allowed exactly where the text is complete. If it is complete and no other token is allowed, the request
    ends as if the end token came. If it is incomplete and no token is allowed, the request ends with an
    error.
11. If the logits at a position are not finite, there is no token. The request whose token it would be ends
    with the error `NOT_FINITE`, and other requests go on.
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
    """The language of a guide: TensorRT-LLM's `GuidedDecodingParams.GuideType`, by its names in tensors."""

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
    """The end tokens, the request's `end_id` too: each ends a guided request, and none is in its output."""


MAX_TOP_LOG_PROBS = 20
"""The largest number of likeliest tokens with each token, as in OpenAI's API."""

LEAST_LOG_PROB = -9999.0
"""The least log-probability, which stands for that of 0 too, as in vLLM: JSON has no infinity."""

COLDEST = 1e-6
"""A temperature below this one is greedy: logits divided by it would overflow."""


@dataclass(frozen=True, slots=True)
class SamplingConfig:
    """The rule that chooses tokens from logits. All `None`, `top_k=1` or temperature 0 is greedy."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None
    """The seed of the random numbers, of which each generated token uses one.

    Token i of the request uses number `(seed + i) % 2**64`, whatever the batch, the draft or the engine. So a
    continuation that starts `m` tokens later with `seed + m` draws the same numbers.
    """
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    min_tokens: int | None = None
    min_p: float | None = None

    @property
    def is_greedy(self) -> bool:
        """True if the token with the largest logit is chosen."""
        if self.top_k == 1 or (self.temperature is not None and self.temperature < COLDEST):
            return True
        return self.temperature is None and self.top_p is None and not self.top_k and not self.min_p

    @property
    def in_effect(self) -> tuple[str, ...]:
        """The names of the options that may choose another token than the likeliest."""
        drawn = () if self.is_greedy else ("temperature", "top_k", "top_p", "min_p")
        return (*(name for name in (*drawn, "min_tokens") if getattr(self, name)), *self.penalties)

    @property
    def penalties(self) -> tuple[str, ...]:
        """The names of the penalties that have an effect."""
        changes = {
            "repetition_penalty": self.repetition_penalty not in (None, 1),
            "presence_penalty": bool(self.presence_penalty),
            "frequency_penalty": bool(self.frequency_penalty),
        }
        return tuple(name for name, does_change in changes.items() if does_change)


# Each round makes some of these: they are not frozen, since a frozen one takes four times as long to make.
@dataclass(slots=True)
class Request:
    """A prompt in token ids, to be continued or, with a draft, to be verified."""

    input_token_ids: Sequence[int]
    """The prompt. If it is a `trtspec.serving.text.Text`, it is neither checked nor copied."""
    max_tokens: int
    draft_token_ids: Sequence[int] = ()
    end_id: int | None = None
    """The end token. None if only `max_tokens` ends the request."""
    bad_words: Sequence[Sequence[int]] = ()
    """Banned words, each a sequence of tokens.

    A token that would complete one of them is never generated, in verifications too. A word may begin in the
    prompt.
    """
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    streaming: bool = False
    embedding_bias: Mapping[int, float] = field(default_factory=dict)
    """Added to the logits of its token ids before anything else, in verifications too."""
    return_log_probs: bool = False
    """Asks for the log-probabilities of rule 9."""
    top_log_probs: int = 0
    """The number of likeliest tokens that are returned with each token."""
    guide: Guide | None = None
    num_guided: int = 0
    """The tokens at the input's end that were generated under `guide`: the grammar's text begins there."""
    scores_prompt: bool = False
    """Asks for no tokens, but for the log-probabilities of the prompt's own after its first (rule 9)."""


class LogProb(NamedTuple):
    """The log-probability of a token (rule 9), and the likeliest tokens at its position."""

    value: float
    top: tuple[tuple[int, float], ...] = ()
    """The ids of the likeliest tokens, each with its log-probability."""


@dataclass(slots=True)
class Response:
    """A response to a request. Without `streaming` there is exactly one, which is final."""

    request_id: int
    token_ids: list[int]
    """The token ids since the previous response of the same request, without the prompt."""
    is_final: bool
    finish_reason: FinishReason = FinishReason.NOT_FINISHED
    error: str | None = None
    """A response with an error has no tokens, and is final."""
    log_probs: list[LogProb] | None = None
    """One for each token if the request has `return_log_probs`. None if not, failed or `CANCELLED`."""
    num_verified: int | None = None
    """The draft tokens, from the first, that the engine verified (rule 7); None without any or a report."""
    num_reused: int | None = None
    """The number of prompt tokens that the KV cache already had. None if the engine does not report it."""


NOT_FINITE = "the model's logits are NaN or infinite: its weights are broken, or its dtype overflows"
"""The error of rule 11."""
GUIDE_REFUSED = "Guide refused: "
"""The prefix of errors about a guide that cannot be read or followed."""
GUIDE_WAITS = "Guide waits: "
"""The prefix of errors about a guide that nobody has looked at yet, because of other guides."""


@dataclass(frozen=True, slots=True)
class LogitsFormat:
    """The format of the draft logits that an engine takes: a row for each draft token."""

    width: int
    """The length of a row: the vocabulary, padded to a multiple of the engine's ranks."""
    dtype: Literal["float32", "float16"]


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits that an engine was built with. Lengths are in tokens."""

    max_batch_size: int
    """The number of requests."""
    max_input_len: int
    max_seq_len: int
    """The largest sum of prompt, generated tokens and draft; a missing draft counts `max_draft_len`."""
    max_draft_len: int
    """0 for an engine that verifies no drafts, or only its own."""
    vocab_size: int
    ignored_options: frozenset[str] = frozenset()
    """The fields of `SamplingConfig` that the engine ignores: a request in which one counts is refused."""
    takes_bias: bool = True
    """False if the engine would ignore an embedding bias. A request with one is then refused."""
    returns_log_probs: bool = True
    """False if the engine has none of rule 9. A request with `return_log_probs` is then refused."""
    max_top_log_probs: int = MAX_TOP_LOG_PROBS
    """A request with more `top_log_probs` is refused."""
    scores_prompts: bool = False
    """True if the engine takes requests with `scores_prompt`, whose response has no tokens."""
    never_banned: range = range(0)
    """The tokens that the engine cannot ban. A request with a bad word that ends in one is refused."""
    guide_types: frozenset[GuideType] = frozenset()
    """The types of guides that the engine follows; others are refused."""
    resumes_guides: bool = False
    """True if the engine follows guides in verifications, and after `num_guided` generated tokens."""
    matches_samples: bool = True
    """True if the engine verifies sampled drafts exactly by itself (rule 4)."""
    draft_logits: LogitsFormat | None = None
    """Their format with sampled drafts, without `matches_samples`; None if only greedy ones are verified."""
    tokens_per_block: int | None = None
    """The number of tokens in a block of the KV cache; None if the engine does not say it."""

    @property
    def drafts_samples(self) -> bool:
        """True if drafts of sampled requests are verified."""
        return self.matches_samples or self.draft_logits is not None

    def reused_tokens(self, blocks: int) -> int | None:
        """Returns the number of tokens in that many reused blocks, but for the last one.

        TensorRT-LLM counts a block of which it has reused a part, which can only be the last one
        (`loadOrAllocateBlocks` of `batch_manager/kvCacheManager.cpp`).
        """
        return None if self.tokens_per_block is None else max(blocks - 1, 0) * self.tokens_per_block


@dataclass(frozen=True, slots=True)
class KvReuse:
    """The reuse of prefixes in the KV cache since the start."""

    asked: int
    """The number of prompt tokens of all requests."""
    found: int
    """The number of these that the KV cache already had."""


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
        """The number of tokens that the KV cache holds. None if the engine does not report it."""

    def take_kv_use(self) -> float | None:
        """Returns the largest share of the KV cache, 0 to 1, that requests held since the last call.

        None if the engine does not report it. Prefixes of ended requests, which are kept for reuse, do not
        count: they are evicted when a request needs the room.
        """

    @property
    def kv_reuse(self) -> KvReuse | None:
        """The reuse of prefixes since the start. None if the engine does not report it."""

    @property
    def progress(self) -> int:
        """The engine's steps or responses, whose number rises while it works. Any thread may read it."""

    @property
    def failure(self) -> str | None:
        """The reason why the engine will serve no request any more, in one line; None while it serves."""

    def enqueue_request(self, request: Request, listener: Listener) -> int:
        """Takes a request and returns its id. An invalid request gets a response with an error."""

    def cancel_request(self, request_id: int) -> None:
        """Ends a request, whose listener gets a final `CANCELLED` response; ignores a finished request."""

    def shutdown(self) -> None:
        """Cancels all requests and frees the engine's memory."""


@runtime_checkable
class DrawsByToken(Protocol):
    """An engine whose randomness depends only on the number of a draw and the id of a token.

    Two such engines with different vocabularies are likely to draw the same tokens if one uses the other's
    ids for its draws.
    """

    def draw_as(self, token_ids: list[int]) -> None:
        """Draws token i from now on as if its id were `token_ids[i]`."""
