"""A request on its way through the engine."""

from __future__ import annotations

from trtspec.serving.executor import FinishReason, LogProb, Request, Response
from trtspec.serving.executors.torch.bias import Bias
from trtspec.serving.executors.torch.follower import GuidedText
from trtspec.serving.executors.torch.penalties import Penalties
from trtspec.serving.executors.validation import Valid
from trtspec.serving.guides.compiler import Grammar


class Sequence:
    """A sequence of tokens: the first `prompt_len` of `text`, and `new`, generated after them.

    `log_probs` are those of the new tokens, None if nobody asks for them, each with `top_log_probs` others.
    The `penalties` and the `bias` are None until they are applied.
    The cache holds the first `computed` tokens of both. `seed` is the number of the random stream's first
    token. The text may grow while the sequence runs, and is not read beyond the prompt. It is `guided` by
    a grammar, or not.
    """

    def __init__(
        self, request_id: int, request: Request, valid: Valid, seed: int, grammar: Grammar | None = None
    ) -> None:
        self.request_id, self.sampling, self.end_id = request_id, request.sampling, request.end_id
        self.text, self.prompt_len, self.draft = valid.text, valid.prompt_len, valid.draft
        self.max_tokens, self.seed = valid.max_tokens, seed
        self.bad_words, self.embedding_bias = request.bad_words, request.embedding_bias
        self.bias: Bias | None = None
        self.guided: GuidedText | None = None
        if grammar is not None:
            self.guided = GuidedText(request, grammar, valid.text, valid.prompt_len)
        self.new: list[int] = []
        self.penalties: Penalties | None = None
        self.log_probs: list[LogProb] | None = [] if request.return_log_probs else None
        self.top_log_probs = request.top_log_probs
        self._is_verification = bool(valid.draft)
        self.slot = -1
        self.computed = 0
        self._streaming, self._sent = request.streaming, 0

    @property
    def length(self) -> int:
        return self.prompt_len + len(self.new)

    @property
    def longest(self) -> int:
        """Returns how many tokens of the cache the sequence may need."""
        return self.prompt_len + (len(self.draft) or self.max_tokens)

    @property
    def room(self) -> int:
        """Returns how many tokens may still be generated."""
        return self.max_tokens - len(self.new)

    @property
    def num_endless(self) -> int:
        """Returns how many tokens from here on may not be an end; 0 or less for none."""
        return (self.sampling.min_tokens or 0) - len(self.new)

    @property
    def missing(self) -> int:
        """Returns how many tokens, with the draft, are not in the cache."""
        return self.length - self.computed + len(self.draft)

    def tokens(self, start: int, end: int) -> list[int]:
        """Returns the tokens from `start` to `end`, prompt and new ones together; copies no others."""
        prompt_len = self.prompt_len
        if start >= prompt_len:
            return self.new[start - prompt_len : end - prompt_len]
        if end <= prompt_len:
            return self.text[start:end]
        return self.text[start:prompt_len] + self.new[: end - prompt_len]

    def history(self, last: int) -> list[int]:
        """Returns a copy of the `last` tokens."""
        return self.tokens(max(0, self.length - last), self.length)

    def response(self, reason: FinishReason) -> Response | None:
        """Returns the response that the listener gets now, if any."""
        final = reason is not FinishReason.NOT_FINISHED
        if not final and not self._streaming:
            return None
        new = self.new[self._sent :]
        log_probs = None if self.log_probs is None else self.log_probs[self._sent :]
        self._sent = len(self.new)
        # A guide may have cut the draft.
        verified = len(self.draft) if self._is_verification else None
        return Response(self.request_id, new, final, reason, log_probs=log_probs, num_verified=verified)
