"""The sampling check: what it says that it would have found, it finds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tests.fakes.said import Said
from trtspec.measure.verify.distribution import FALSE_ALARMS, POWER, Drawn, DrawPlan, SamplingCheck
from trtspec.measure.verify.outcomes import Continuation
from trtspec.measure.verify.subject import Sides

DRAWS, RUNS, LIMIT = 500, 200, FALSE_ALARMS / 10


class Words:
    """A vocabulary whose tokens are letters."""

    def text(self, tokens: Sequence[int]) -> str:
        return "".join(chr(97 + token) for token in tokens)


def check() -> SamplingCheck:
    said, words = Said((5,), (), ()), Words()
    plan = DrawPlan(DRAWS, 1.0, [None], 1, 0)
    return SamplingCheck(Sides(said, said), words, [], plan, lambda number: None)  # type: ignore[arg-type]


def _continuations(tokens: Any) -> list[Continuation]:
    return [(int(token),) for token in tokens]


def drawn(variation: float, open_prompts: int, dice: Any) -> list[Drawn]:
    """Four prompts, so many of which leave a choice of ten tokens; drafts change it by this variation."""
    plain = np.full(10, 0.1)
    other = plain + np.repeat([variation / 5, -variation / 5], 5)
    found = []
    for number in range(4):
        shares = (plain, other) if number < open_prompts else (np.eye(10)[0],) * 2
        alone, drafted = (_continuations(dice.choice(10, DRAWS, p=share)) for share in shares)
        found.append((f"p{number}", alone, drafted))
    return found


@pytest.mark.parametrize("open_prompts", [pytest.param(4, marks=pytest.mark.sweep), 1])
def test_what_it_promises_to_find_in_every_prompt_it_finds(open_prompts: int) -> None:
    """Prompts that leave no choice can hide nothing, and count for nothing."""
    dice, sampling = np.random.default_rng(1), check()
    promised = sampling._view("text", drawn(0, open_prompts, dice), LIMIT).found_everywhere
    views = [sampling._view("text", drawn(promised, open_prompts, dice), LIMIT) for _ in range(RUNS)]
    found = sum(view.p_value < LIMIT for view in views) / RUNS
    assert found >= POWER - 3 * (POWER * (1 - POWER) / RUNS) ** 0.5
