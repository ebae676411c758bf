"""Defines requests to any server and its answers, as plain types that no API shapes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol

Api = Literal["triton", "openai"]
Role = Literal["system", "user", "assistant"]


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message of a conversation."""

    role: Role
    text: str


@dataclass(frozen=True, slots=True)
class EndpointRequest:
    """A request for text that goes on after `messages`, the last of which is the user's.

    `num_draft_tokens` 0 asks for plain decoding, None for what the server does by itself. With `ignore_eos`
    the answer is as long as `max_tokens`, where the server can do that. `tenant` keeps requests apart where
    drafts come from earlier answers. `stop` has strings to end before.
    """

    messages: tuple[ChatMessage, ...]
    max_tokens: int
    num_draft_tokens: int | None = None
    temperature: float = 0.0
    seed: int | None = None
    ignore_eos: bool = False
    tenant: str | None = None
    top_k: int | None = None
    top_p: float | None = None
    stop: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The conversation as one text, with an empty line between what one side and the other says."""
        return "\n\n".join(message.text for message in self.messages)


@dataclass(frozen=True, slots=True)
class DraftCounts:
    """The server's counts of the drafts of one answer.

    `histogram[j]` counts the verifications that accepted exactly j tokens.
    """

    verifications: int
    drafted: int
    accepted: int
    histogram: tuple[int, ...]


@dataclass(slots=True)
class TimedAnswer:
    """An answer, piece by piece: `times` has when each piece of text came, in seconds of `perf_counter`.

    `sent` is when the request began to be sent, `ended` when the answer was whole. Token counts are the
    server's; None where it says none. `counts` is None where it says nothing of drafts.
    """

    sent: float
    text: str = ""
    times: list[float] = field(default_factory=list)
    ended: float = 0.0
    input_tokens: int | None = None
    output_tokens: int | None = None
    finish_reason: str | None = None
    counts: DraftCounts | None = None


class AskError(Exception):
    """A request that got no whole answer.

    `kind` is one of "refused" (429, 503), "rejected" (another 4xx), "failed" (5xx, or an error in the
    stream), "unreachable", "broken_off", "timed_out", "unreadable"; `sent` is when it began, and `problem`
    the server's words.
    """

    def __init__(self, kind: str, problem: str, sent: float) -> None:
        super().__init__(f"{kind}: {problem}")
        self.kind, self.problem, self.sent = kind, problem, sent


Hear = Callable[[str], None]
"""Is called with each piece of text as it comes."""


def unheard(piece: str) -> None:
    """Takes no notice of a piece of text."""


class Endpoint(Protocol):
    """A server that answers questions, many at once.

    `plain_per_request` says whether `num_draft_tokens` is understood, so that 0 is plain decoding.
    `model` is the name that requests give.
    """

    url: str
    api: Api
    model: str
    plain_per_request: bool

    async def ask(self, question: EndpointRequest) -> TimedAnswer:
        """Returns the whole answer; raises `AskError`. A task that is cancelled ends its request."""
        ...

    async def close(self) -> None: ...
