"""Defines the requests and answers of a verification: token ids and log-probabilities, plain types."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Protocol

from trtspec.base.errors import ServerError
from trtspec.client.endpoint import AskError
from trtspec.serving.executor import SamplingConfig

END = -1
"""The end of a text in comparisons of tokens; no token id is negative."""

PLAIN = 0
"""The K of decoding with the target alone."""

Row = Mapping[int, float]
"""The likeliest tokens of one position, by id, each with the logarithm of the model's own probability."""
PROBED = (0,)
"""A prompt for finding out whether a server reports tokens: every vocabulary has token 0."""


@dataclass(frozen=True, slots=True)
class SubjectRequest:
    """A request to continue a prompt."""

    prompt: str | tuple[int, ...]
    """Text or token ids."""
    max_tokens: int
    num_draft_tokens: int | None = PLAIN
    """K; 0 decodes with the target alone, and None leaves K to the deployment."""
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    top_log_probs: int = 0
    """The number of likeliest tokens to report at each position."""
    bias: Mapping[int, float] = field(default_factory=dict)
    """Values that are added to the logits of these token ids."""
    ignores_end: bool = False
    """True lets no end token end the text. One may then be among the tokens."""


@dataclass(frozen=True, slots=True)
class SubjectAnswer:
    """The answer to a request."""

    token_ids: tuple[int, ...]
    """The token ids; `END` is the last if an end token ended the text."""
    text: str
    rows: tuple[Row, ...] = ()
    """One row for each token except `END`; empty if none were requested."""
    num_input_tokens: int | None = None
    """The number of the prompt's tokens; None if the server does not report it."""
    drafted: int | None = None
    """The number of drafted tokens; None if the server does not report it."""
    accepted: int | None = None
    """The number of accepted draft tokens; None if the server does not report it."""


def first_difference(one: SubjectAnswer, other: SubjectAnswer) -> int | None:
    """Returns the index of the first token that differs; None if all are the same.

    An answer that stops without an end while the other continues has reached a limit earlier: that is a
    difference.
    """
    places = enumerate(zip_longest(one.token_ids, other.token_ids))
    return next((place for place, (a, b) in places if a != b), None)


def common_rows(one: SubjectAnswer, other: SubjectAnswer) -> Iterator[tuple[Row, Row]]:
    """Yields both rows at each position after the same text, including the first difference."""
    differs = first_difference(one, other)
    same = len(one.token_ids) if differs is None else differs + 1
    yield from list(zip(one.rows, other.rows, strict=False))[:same]


class Subject(Protocol):
    """A deployment, or engines in this process, that answers many requests at once."""

    name: str
    """The name for people."""
    longest_draft: int | None
    """The largest K that it takes; None if unknown."""

    @property
    def top_log_probs(self) -> int:
        """The number of likeliest tokens that it reports at a position; 0 without log-probabilities."""
        ...

    async def ask(self, question: SubjectRequest) -> SubjectAnswer:
        """Returns the whole answer; raises `TrtspecError` if there is none."""
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Sides:
    """The two compared sides; usually both are the same subject."""

    plain: Subject
    """The side that decodes plainly.

    If the server cannot do that on request, it is another server without drafts.
    """
    speculative: Subject
    """The side that drafts."""
    plain_k: int | None = PLAIN
    """The K of plain requests; None for a server without drafts whose requests take no K."""

    @property
    def top_log_probs(self) -> int:
        """The number of likeliest tokens that both sides report."""
        return min(self.plain.top_log_probs, self.speculative.top_log_probs)


@asynccontextmanager
async def told(name: str) -> AsyncIterator[None]:
    """Turns an endpoint's errors into `ServerError`."""
    try:
        yield
    except AskError as error:
        raise ServerError(name, error.problem) from error
