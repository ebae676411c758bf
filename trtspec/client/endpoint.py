"""Defines requests to any server and its answers, as plain types that no API shapes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

Api = Literal["triton", "openai"]
Role = Literal["system", "user", "assistant"]


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message of a conversation."""

    role: Role
    text: str


@dataclass(frozen=True, slots=True)
class EndpointRequest:
    """A request for the completion of its messages."""

    messages: tuple[ChatMessage, ...]
    """The last one is the user's."""
    max_tokens: int
    num_draft_tokens: int | None = None
    """0 asks for plain decoding; None leaves it to the server."""
    temperature: float = 0.0
    seed: int | None = None
    ignore_eos: bool = False
    """Makes the answer as long as `max_tokens`, if the server can do that."""
    tenant: str | None = None
    """Drafts come only from earlier answers of the same tenant."""
    top_k: int | None = None
    top_p: float | None = None
    stop: tuple[str, ...] = ()
    """The strings to end before."""
    stream: bool = True
    """False has Triton send the text whole. OpenAI's API always sends it as it comes."""

    @property
    def options(self) -> dict[str, Any]:
        """The options that were chosen, by the names of OpenAI's API and of vLLM's extensions."""
        chosen = {
            "max_tokens": self.max_tokens,
            "num_draft_tokens": self.num_draft_tokens,
            "temperature": self.temperature,
            "seed": self.seed,
            "top_k": self.top_k,
            "top_p": self.top_p,
            "stop": list(self.stop) or None,
            "ignore_eos": self.ignore_eos or None,
        }
        return {name: value for name, value in chosen.items() if value is not None}

    @property
    def text(self) -> str:
        """The conversation as one text, with an empty line between what one side and the other says."""
        return "\n\n".join(message.text for message in self.messages)


@dataclass(frozen=True, slots=True)
class DraftCounts:
    """The server's counts of the drafts of one answer."""

    verifications: int
    drafted: int
    accepted: int
    histogram: tuple[int, ...]
    """`histogram[j]` counts the verifications that accepted exactly j tokens."""
    undrafted: str = ""
    """The reason in words where nothing was drafted, if the server says it."""


@dataclass(slots=True)
class TimedAnswer:
    """An answer, piece by piece.

    Times are in seconds of `perf_counter`. Token counts are the server's; None if it reports none.
    """

    sent: float
    """The time when sending the request began."""
    text: str = ""
    times: list[float] = field(default_factory=list)
    """The time when each piece of text came."""
    ended: float = 0.0
    """The time when the answer was complete."""
    num_input_tokens: int | None = None
    num_output_tokens: int | None = None
    finish_reason: str | None = None
    drafts: DraftCounts | None = None
    """None if the server does not report drafts."""
    tensors: dict[str, Any] = field(default_factory=dict)
    """The other outputs of Triton's model, by their names; empty over HTTP."""

    @property
    def seconds(self) -> float:
        """The time from the request to the end of the answer."""
        return self.ended - self.sent

    @property
    def first_text_s(self) -> float | None:
        """The time from the request to the first piece; None if there is no text."""
        return self.times[0] - self.sent if self.times else None

    @property
    def tokens_per_second(self) -> float | None:
        """None if the server does not count its tokens."""
        return self.num_output_tokens / self.seconds if self.num_output_tokens else None


class AskError(Exception):
    """A request that got no complete answer.

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
    """Ignores a piece of text."""


class Endpoint(Protocol):
    """A server that answers questions, many at once."""

    url: str
    api: Api
    model: str
    """The name of the model in requests."""
    plain_per_request: bool
    """True if the server understands `num_draft_tokens`, so that 0 is plain decoding."""

    async def ask(self, question: EndpointRequest) -> TimedAnswer:
        """Returns the whole answer; raises `AskError`. A task that is cancelled ends its request."""
        ...

    async def close(self) -> None: ...
