"""Defines the requests and answers of a verification: token ids and log-probabilities, plain types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from trtspec.serving.executor import SamplingConfig

END = -1
"""Stands for the end of a text where tokens are compared; no token id is below zero."""

PLAIN = 0
"""The K of decoding with the target alone."""

Row = Mapping[int, float]
"""The likeliest tokens of one place, by id, with the logarithm of the model's own probability for each."""


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
    """The number of likeliest tokens to report at each place."""
    bias: Mapping[int, float] = field(default_factory=dict)
    """Added to the logits of its token ids."""
    ignores_end: bool = False
    """True lets no end token end the text. One may then be among the tokens."""


@dataclass(frozen=True, slots=True)
class SubjectAnswer:
    """The answer to a request."""

    token_ids: tuple[int, ...]
    """Closed with `END` where an end token ended the text."""
    text: str
    rows: tuple[Row, ...] = ()
    """One row for each token without `END`; empty where none were asked for."""
    num_input_tokens: int | None = None
    """None where the server does not say what it made of the prompt."""
    drafted: int | None = None
    """The number of drafted tokens; None where the server does not say."""
    accepted: int | None = None
    """The number of accepted draft tokens; None where the server does not say."""


class Subject(Protocol):
    """A deployment, or engines in this process, that answers many requests at once."""

    name: str
    """The name for people."""
    longest_draft: int | None
    """The greatest K that it takes; None where that is not known."""

    @property
    def top_log_probs(self) -> int:
        """The number of likeliest tokens that it reports at a place; 0 without log-probabilities."""
        ...

    async def ask(self, question: SubjectRequest) -> SubjectAnswer:
        """Returns the whole answer; raises `TrtspecError` where there is none."""
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Sides:
    """The two sides that are compared, which are mostly the same subject."""

    plain: Subject
    """The side that decodes plainly.

    For a server that cannot be asked for plain decoding, it is another server, without drafts.
    """
    speculative: Subject
    """The side that drafts."""
    plain_k: int | None = PLAIN
    """The K of plain requests; None for a server without drafts that cannot be asked for K."""

    @property
    def top_log_probs(self) -> int:
        """The most likely tokens that both tell."""
        return min(self.plain.top_log_probs, self.speculative.top_log_probs)
