"""The loop that runs rounds for many requests at once."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from trtspec.serving.completion import CompletionRequest, Delta
from trtspec.serving.executor import Executor
from trtspec.serving.stats import Stats
from trtspec.serving.tokenizer import Tokenizer


class Coordinator:
    """Completes text with a target and, where there is one, a draft.

    All methods are called on the thread of one asyncio loop. `stats` may be read from any thread.
    """

    def __init__(self, target: Executor, draft: Executor | None, tokenizer: Tokenizer) -> None:
        self.target, self.draft, self.tokenizer = target, draft, tokenizer
        self.stats = Stats()

    def stream(self, request: CompletionRequest) -> AsyncGenerator[Delta, None]:
        """A `Delta` for each round; the last one has the `Completion`.

        Raises `RequestError` at once, before anything runs; iterating raises `EngineFailure` when the target fails.
        Closing the generator, or cancelling the task that iterates it, cancels what runs on both engines.
        """
        raise NotImplementedError

    async def complete(self, request: CompletionRequest) -> Delta:
        """The whole completion as one `Delta`; raises as `stream` does."""
        raise NotImplementedError
