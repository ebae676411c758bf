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
    """A request to continue `prompt`, which is text or token ids.

    `num_draft_tokens` is K: 0 decodes with the target alone, None takes what the deployment does by itself.
    `top_log_probs` asks for so many of the likeliest tokens at each place. `bias` is added to the logits of
    its token ids. With `ignores_end` no end token ends the text, and one may be among the tokens.
    """

    prompt: str | tuple[int, ...]
    max_tokens: int
    num_draft_tokens: int | None = PLAIN
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    top_log_probs: int = 0
    bias: Mapping[int, float] = field(default_factory=dict)
    ignores_end: bool = False


@dataclass(frozen=True, slots=True)
class SubjectAnswer:
    """The answer to a request: `token_ids`, closed with `END` where an end token ended the text.

    `rows` has one row for each token without `END`, and is empty where none were asked for.
    `num_input_tokens` is None where the server does not say what it made of the prompt, and so are `drafted`
    and `accepted`, counts of draft tokens.
    """

    token_ids: tuple[int, ...]
    text: str
    rows: tuple[Row, ...] = ()
    num_input_tokens: int | None = None
    drafted: int | None = None
    accepted: int | None = None


class Subject(Protocol):
    """A deployment, or engines in this process, that answers many questions at once.

    `name` is how a person is told of it. `top_log_probs` is the most likely tokens that it tells at a place:
    0 for engines that say no log-probabilities. `longest_draft` is the greatest K that it takes, None where
    that is not known.
    """

    name: str
    longest_draft: int | None

    @property
    def top_log_probs(self) -> int: ...

    async def ask(self, question: SubjectRequest) -> SubjectAnswer:
        """Returns the whole answer; raises `TrtspecError` where there is none."""
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Sides:
    """The two sides that are compared: who decodes plainly, and who speculates; mostly the same.

    `plain` of a server that cannot be asked for plain decoding is another server, without drafts, of which K
    is not asked (None).
    """

    plain: Subject
    speculative: Subject
    plain_k: int | None = PLAIN

    @property
    def top_log_probs(self) -> int:
        """The most likely tokens that both tell."""
        return min(self.plain.top_log_probs, self.speculative.top_log_probs)
