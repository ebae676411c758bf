"""Models how fast one replica works: all that the arithmetic and the simulation know of its engines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Turn:
    """One iteration of the engines for all running sequences: a step without drafts, or a round with them.

    It takes `seconds`, and gives each text one token of the target's own and the drafted ones that are
    accepted: more than i of them with the probability `survival[i]`, which never grows with i. It begins with
    `drafting_s` seconds of drafts, for which a text may still come.
    """

    seconds: float
    survival: tuple[float, ...] = ()
    drafting_s: float = 0.0

    @property
    def tokens(self) -> float:
        """The tokens that each text gets, on average."""
        return 1 + sum(self.survival)

    @property
    def variability(self) -> float:
        """The squared coefficient of variation of these tokens."""
        accepted = self.tokens - 1
        squares = sum((2 * place + 1) * share for place, share in enumerate(self.survival))
        return (squares - accepted**2) / self.tokens**2


class Tempo(Protocol):
    """The times of a replica's engines, in seconds."""

    def turn(self, texts: int, context: float) -> Turn:
        """Returns what `texts` at once do in one go, which have `context` tokens each on average."""
        ...

    def prompt_s(self, tokens: float, has_drafts: bool) -> float:
        """Returns by how much reading so many tokens of a prompt prolongs a turn for all.

        With drafts, their engine reads them too.
        """
        ...


@dataclass(frozen=True, slots=True)
class Replica:
    """A server and its limits: `places` texts at once, of so many tokens in all as the KV cache holds.

    `kv_tokens` is None where that is not known, and then not counted. `longest_draft` tokens are reserved
    behind each text. An iteration reads at most `most_rows` tokens of prompts. `gpus` is how many it has.
    """

    tempo: Tempo
    places: int
    kv_tokens: int | None
    longest_draft: int
    most_rows: int
    gpus: int

    def places_for(self, tokens: float) -> int:
        """Returns how many texts of so many tokens are at work at most, and at least one."""
        if self.kv_tokens is None:
            return self.places
        return max(1, min(self.places, int(self.kv_tokens / (tokens + self.longest_draft))))
