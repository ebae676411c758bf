"""Defines the settings, requests and answers of a verification in plain types."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

from trtspec.serving.executor import SamplingConfig

END = -1
"""The end of a text in comparisons of tokens; no token id is negative."""

PLAIN = 0
"""The K of decoding with the target alone."""

Row = Mapping[int, float]
"""The likeliest tokens of one position, by id, each with the logarithm of the model's own probability."""
PROBED = (0,)
"""A prompt for finding out whether a server reports tokens: every vocabulary has token 0."""


Subject = Literal["drafts", "servers"]
"""What is compared: one deployment with drafts and without, or two servers, each as it is deployed."""


class Way(NamedTuple):
    """One way to ask all prompts: its K, and how many are asked at once."""

    num_draft_tokens: int | None
    concurrency: int


@dataclass(frozen=True, slots=True)
class VerificationSettings:
    """The options of a verification."""

    lengths: tuple[int | None, ...]
    """The Ks to try; None leaves K to the deployment."""
    max_tokens: int = 64
    concurrency: int = 8
    """The number of requests at once."""
    dtype: str | None = None
    """The type of the target's numbers; None if unknown."""
    near_tie: float | None = None
    """The bound in nats; None derives it from the type and the noise."""
    draws: int = 500
    """The continuations to sample of each prompt, on either side; 0 leaves the sampling check out."""
    temperature: float = 1.0
    seed: int = 0
    cases: tuple[str, ...] = ()
    """The names of the cases that are run."""
    subject: Subject = "drafts"

    @property
    def ways(self) -> list[Way]:
        """Every length with many requests at once, and the first length also one by one."""
        return [*(Way(length, self.concurrency) for length in self.lengths), Way(self.lengths[0], 1)]


@dataclass(frozen=True, slots=True)
class VerifyRequest:
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
    stop: tuple[str, ...] = ()
    """The strings to end before."""
    json_schema: str = ""
    """The schema of the JSON that the answer must be; empty for any text."""


@dataclass(frozen=True, slots=True)
class VerifyAnswer:
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


def first_difference(one: VerifyAnswer, other: VerifyAnswer) -> int | None:
    """Returns the index of the first token that differs; None if all are the same.

    An answer that stops without an end while the other continues has reached a limit earlier: that is a
    difference.
    """
    places = enumerate(zip_longest(one.token_ids, other.token_ids))
    return next((place for place, (a, b) in places if a != b), None)


def common_rows(one: VerifyAnswer, other: VerifyAnswer) -> Iterator[tuple[Row, Row]]:
    """Yields both rows at each position after the same text, including the first difference."""
    differs = first_difference(one, other)
    same = len(one.token_ids) if differs is None else differs + 1
    yield from list(zip(one.rows, other.rows, strict=False))[:same]


@dataclass(frozen=True, slots=True)
class ChatAnswer:
    """The answer to a chat of OpenAI's API, put together from its pieces."""

    text: str = ""
    reasoning: str = ""
    calls: tuple[tuple[str, str], ...] = ()
    """The name of each called tool, and its arguments."""
    is_cut: bool = False
    """True if it ended at the most tokens that were allowed."""


@runtime_checkable
class ChatSide(Protocol):
    """A side that can be asked by OpenAI's chats too."""

    async def chat(self, body: Mapping[str, Any], num_draft_tokens: int | None) -> ChatAnswer:
        """Returns the answer to a body of a chat; raises `TrtspecError`."""


class Side(Protocol):
    """A deployment, or engines in this process, that answers many requests at once."""

    name: str
    """The name for people."""

    @property
    def top_log_probs(self) -> int:
        """The number of likeliest tokens that it reports at a position; 0 without log-probabilities."""

    @property
    def longest(self) -> int | None:
        """The most tokens of a prompt and its answer; None if it does not report that."""

    @property
    def software(self) -> str | None:
        """The name and version of its software; None if it does not report that."""

    async def ask(self, question: VerifyRequest) -> VerifyAnswer:
        """Returns the whole answer; raises `TrtspecError` if there is none."""

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Sides:
    """The two compared sides; usually both are the same side."""

    plain: Side
    """The side that decodes plainly.

    If the server cannot do that on request, it is another server without drafts.
    """
    speculative: Side
    """The side that drafts."""
    plain_k: int | None = PLAIN
    """The K of plain requests; None for a server without drafts whose requests take no K."""

    @property
    def top_log_probs(self) -> int:
        """The number of likeliest tokens that both sides report."""
        return min(self.plain.top_log_probs, self.speculative.top_log_probs)

    @property
    def are_alike(self) -> bool:
        """False for two engines: each sums in its own order everywhere, so only their tokens are compared."""
        known = self.plain.software
        return self.plain is self.speculative or (known is not None and known == self.speculative.software)
