"""Limits the prompts that run at once in an application, and with that its connections."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from trtspec.gateway.openai.errors import ApiError


class Places:
    """`most` slots; a request takes one, and one more for each prompt after its first."""

    def __init__(self, most: int) -> None:
        self._most, self._taken = most, 0

    def check(self, prompts: int) -> None:
        """Raises `ApiError` 400 for a request with more prompts than slots: it would never be served."""
        if prompts > self._most:
            message = f"prompt has {prompts} prompts, but this server runs at most {self._most} at once"
            raise ApiError(400, f"{message}; send them in several requests", param="prompt")

    @contextmanager
    def taken(self, number: int) -> Iterator[None]:
        """Takes slots for the block; raises `ApiError` 429 if fewer are free."""
        if self._taken + number > self._most:
            message = f"{self._taken} of {self._most} prompts are running, so {number} more are too many"
            raise ApiError(429, f"{message}; try again later", code="rate_limit_exceeded")
        self._taken += number
        try:
            yield
        finally:
            self._taken -= number
