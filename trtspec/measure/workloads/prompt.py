"""A prompt of a workload: what a user says, in one turn or several."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt; `name` identifies it in its workload, `category` says what kind it is.

    `turns` are what the user says, one after another, each after the answer to the one before. `max_tokens`
    is how long the answer may be; None leaves that to who asks.
    """

    name: str
    turns: tuple[str, ...]
    category: str = ""
    max_tokens: int | None = None

    @property
    def text(self) -> str:
        """The first turn, which is the whole prompt of most workloads."""
        return self.turns[0]
