"""The sequence of one request in the engine."""

from __future__ import annotations

from trtspec.serving.executor import FinishReason, LogProb, Request, Response
from trtspec.serving.executors.torch.follower import GuidedText
from trtspec.serving.executors.torch.penalties import Bias, Penalties
from trtspec.serving.executors.validation import Valid
from trtspec.serving.guides.compiler import Grammar


class Sequence:
    """A sequence of tokens: the first `prompt_len` of `text`, and the generated ones in `new`.

    `text` may grow meanwhile, but is not read beyond the prompt. `seed` is the number of the first token's
    draw. Without a `grammar` the sequence is not guided.
    """

    def __init__(
        self, request_id: int, request: Request, valid: Valid, seed: int, grammar: Grammar | None = None
    ) -> None:
        self.request_id, self.sampling, self.end_id = request_id, request.sampling, request.end_id
        self.text, self.prompt_len, self.draft = valid.text, valid.prompt_len, valid.draft
        self.max_tokens, self.seed = valid.max_tokens, seed
        self.bad_words, self.embedding_bias = request.bad_words, request.embedding_bias
        self.bias: Bias | None = None
        """None until it is first applied."""
        self.guided: GuidedText | None = None
        if grammar is not None:
            self.guided = GuidedText(request, grammar, valid.text, valid.prompt_len)
        self.new: list[int] = []
        self.penalties: Penalties | None = None
        """None until they are first applied."""
        self.log_probs: list[LogProb] | None = [] if request.return_log_probs else None
        """Those of `new`; None if the request has no `return_log_probs`."""
        self.top_log_probs = request.top_log_probs
        self._is_verification = bool(valid.draft)
        self.slot = -1
        self.computed = 0
        """The number of tokens, from the first, that the cache holds."""
        self.reused = 0
        """The number of tokens that the cache held when the sequence began."""
        self._streaming, self._sent = request.streaming, 0

    @property
    def length(self) -> int:
        return self.prompt_len + len(self.new)

    @property
    def longest(self) -> int:
        """The largest number of tokens that the cache needs to hold."""
        return self.prompt_len + (len(self.draft) or self.max_tokens)

    @property
    def room(self) -> int:
        """The number of tokens that may still be generated."""
        return self.max_tokens - len(self.new)

    @property
    def num_endless(self) -> int:
        """The number of next tokens that may not be an end token; 0 or less for none."""
        return (self.sampling.min_tokens or 0) - len(self.new)

    @property
    def missing(self) -> int:
        """The number of tokens that the cache lacks, the draft included."""
        return self.length - self.computed + len(self.draft)

    def tokens(self, start: int, end: int) -> list[int]:
        """Returns the tokens from `start` to `end` of the prompt and `new` together, without other copies."""
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
        """Returns the response to send now; None if there is none."""
        final = reason is not FinishReason.NOT_FINISHED
        if not final and not self._streaming:
            return None
        new = self.new[self._sent :]
        log_probs = None if self.log_probs is None else self.log_probs[self._sent :]
        self._sent = len(self.new)
        # A guide may have cut the draft.
        verified = len(self.draft) if self._is_verification else None
        return Response(
            self.request_id,
            new,
            final,
            reason,
            log_probs=log_probs,
            num_verified=verified,
            num_reused=self.reused,
        )
