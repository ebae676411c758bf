"""A subject of a verification that says what a table says, with margins to be chosen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from trtspec.measure.verify.sides import END, Row, VerifyAnswer, VerifyRequest

LEAST = -20.0


@dataclass
class Said:
    """Says `plain` without drafts and `drafted` with them; `rows` are what it thinks, by place.

    A question behind the prompt, in token ids, is answered from the row of its place.
    """

    prompt: tuple[int, ...]
    plain: Sequence[int]
    drafted: Sequence[int]
    rows: Mapping[int, Row] = field(default_factory=dict)
    top_log_probs: int = 20
    drafts: int = 5
    name: str = "a table"
    longest: int | None = None
    software: str | None = None

    async def ask(self, question: VerifyRequest) -> VerifyAnswer:
        asked = question.prompt
        if (isinstance(asked, tuple) and len(asked) > len(self.prompt)) or question.ignores_end:
            return self._thinks(len(asked) - len(self.prompt), question.bias)
        tokens = tuple(self.plain if question.num_draft_tokens == 0 else self.drafted)
        count = self.drafts if question.num_draft_tokens != 0 else 0
        rows: tuple[Row, ...] = ()
        text = "".join(chr(97 + token) for token in tokens if token != END)
        return VerifyAnswer(tokens, text, rows, len(self.prompt), count, count)

    async def close(self) -> None:
        pass

    def _thinks(self, place: int, bias: Mapping[int, float]) -> VerifyAnswer:
        row = {token: value + bias.get(token, 0.0) for token, value in self.rows[place].items()}
        likeliest = max(row, key=row.__getitem__)
        return VerifyAnswer(
            (likeliest,), "", (self.rows[place],) if self.top_log_probs else (), len(self.prompt)
        )
