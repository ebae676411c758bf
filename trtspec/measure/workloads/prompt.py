"""Describes a prompt of a workload: a user's messages, in one turn or several."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt of a workload."""

    name: str
    """Identifies the prompt in its workload."""
    turns: tuple[str, ...]
    """The messages of the user. Each is sent after the answer to the one before."""
    category: str = ""
    """The kind of prompt."""
    max_tokens: int | None = None
    """The most tokens of the answer; None leaves that to the caller."""

    @property
    def text(self) -> str:
        """The first turn, which is the whole prompt of most workloads."""
        return self.turns[0]
