"""Recorded answers in the tokens of the target."""

from __future__ import annotations

from pathlib import Path

import pytest

from trtspec.base.errors import DatasetError
from trtspec.measure.workloads.recorded import Recorded
from trtspec.serving.tokenizer import Tokenizer
from trtspec.train.tune.answer import in_tokens

TINY = Path(__file__).parents[4] / "recipes" / "tiny"


@pytest.mark.parametrize("sampling", [{"seed": 1.5}, {"temperature": float("nan")}, {"top_k": float("inf")}])
def test_options_that_no_request_can_have_are_told(sampling: dict[str, float]) -> None:
    recorded = Recorded("a", prompt="x", text="y", sampling=sampling)
    with pytest.raises(DatasetError, match=f"a: sampling has the invalid value {next(iter(sampling))}"):
        in_tokens(recorded, Tokenizer.load(TINY / "target"), Path("answers.jsonl"))


def test_whole_numbers_may_be_written_with_a_point() -> None:
    recorded = Recorded("a", prompt="x", text="y", sampling={"seed": 3.0, "temperature": 1})
    found = in_tokens(recorded, Tokenizer.load(TINY / "target"), Path("answers.jsonl")).sampling
    assert (repr(found.seed), found.temperature) == ("3", 1)


@pytest.mark.parametrize(
    "recorded", [Recorded("a", prompt="so \ud83d", text="x"), Recorded("a", prompt="x", text="\ude00")]
)
def test_half_a_character_is_told_with_its_place(recorded: Recorded) -> None:
    with pytest.raises(DatasetError, match=r"answers.jsonl: a: its text has half a character, '\\ud"):
        in_tokens(recorded, Tokenizer.load(TINY / "target"), Path("answers.jsonl"))
