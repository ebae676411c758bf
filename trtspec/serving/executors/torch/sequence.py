"""The state of one request on its way through the engine."""

from __future__ import annotations

from trtspec.serving.executor import FinishReason, Listener, Request, Response
from trtspec.serving.executors.validation import Valid


class Sequence:
    """`tokens` is the prompt and what was generated; the cache holds the first `computed` of them.

    `seed` is the number of the random stream's first token.
    """

    def __init__(
        self, request_id: int, request: Request, valid: Valid, seed: int, listener: Listener
    ) -> None:
        self.request_id, self.sampling, self.end_id = request_id, request.sampling, request.end_id
        self.tokens, self.draft, self.max_tokens = (
            valid.text[: valid.prompt_len],
            valid.draft,
            valid.max_tokens,
        )
        self.bad, self.seed = request.bad_token_ids, seed
        self.slot = -1
        self.computed = 0
        self._streaming, self._listener = request.streaming, listener
        self._prompt_len = self._sent = len(self.tokens)

    @property
    def generated(self) -> int:
        return len(self.tokens) - self._prompt_len

    @property
    def room(self) -> int:
        """How many tokens may still be generated."""
        return self.max_tokens - self.generated

    @property
    def missing(self) -> int:
        """How many tokens, with the draft, are not in the cache."""
        return len(self.tokens) - self.computed + len(self.draft)

    @property
    def is_decoding(self) -> bool:
        return self.generated > 0

    def report(self, reason: FinishReason) -> None:
        """Tells the listener what it has not heard, if it is to hear of it now."""
        final = reason is not FinishReason.NOT_FINISHED
        if final or self._streaming:
            new, self._sent = self.tokens[self._sent :], len(self.tokens)
            self._listener(Response(self.request_id, new, final, reason))

    def fail(self, error: str) -> None:
        self._listener(Response(self.request_id, [], is_final=True, error=error))
