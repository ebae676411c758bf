"""Shared parts of the servers that are verified over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from trtspec.base.errors import ServerError
from trtspec.client.endpoint import AskError

PROBED = (0,)
"""A prompt for finding out whether a server reports tokens: every vocabulary has token 0."""


@asynccontextmanager
async def told(name: str) -> AsyncIterator[None]:
    """Turns an endpoint's errors into `ServerError`."""
    try:
        yield
    except AskError as error:
        raise ServerError(name, error.problem) from error
