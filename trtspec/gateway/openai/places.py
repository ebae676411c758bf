"""The places of an application, which bound what is at work at once, and with that its connections."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from trtspec.gateway.openai.errors import ApiError


class Places:
    """So many places as `most`; a request takes one, and one more for each prompt after its first."""

    def __init__(self, most: int) -> None:
        self._most, self._taken = most, 0

    def check(self, prompts: int) -> None:
        """Raises `ApiError` 400 for a request with more prompts than places: it would never be served."""
        if prompts > self._most:
            message = f"prompt has {prompts} prompts, and this server has at most {self._most} at work"
            raise ApiError(400, f"{message}; send them in several requests", param="prompt")

    @contextmanager
    def taken(self, number: int) -> Iterator[None]:
        """Takes places for the block; raises `ApiError` 429 where fewer are free, whatever they are for."""
        if self._taken + number > self._most:
            message = f"{self._taken} of {self._most} prompts are at work, and {number} more are too many"
            raise ApiError(429, f"{message}; try again later", code="rate_limit_exceeded")
        self._taken += number
        try:
            yield
        finally:
            self._taken -= number
