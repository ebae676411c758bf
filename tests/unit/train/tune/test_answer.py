"""Recorded answers in the tokens of the target."""

from __future__ import annotations

from pathlib import Path

import pytest
import tokenizers
from tokenizers import decoders, models, normalizers

from trtspec.base.errors import DatasetError
from trtspec.measure.workloads.workload import Recorded
from trtspec.serving.tokenizer import Tokenizer
from trtspec.train.tune.answer import in_tokens

TINY = Path(__file__).parents[4] / "recipes" / "tiny"


@pytest.mark.parametrize("sampling", [{"seed": 1.5}, {"temperature": float("nan")}, {"top_k": float("inf")}])
def test_options_that_no_request_can_have_are_told(sampling: dict[str, float]) -> None:
    recorded = Recorded("a", prompt="x", text="y", sampling=sampling)
    with pytest.raises(DatasetError, match=f"a: sampling has the invalid value {next(iter(sampling))}"):
        in_tokens([recorded], Tokenizer.load(TINY / "target"), Path("answers.jsonl"))


def test_whole_numbers_may_be_written_with_a_point() -> None:
    recorded = Recorded("a", prompt="x", text="y", sampling={"seed": 3.0, "temperature": 1})
    (found,) = in_tokens([recorded], Tokenizer.load(TINY / "target"), Path("answers.jsonl"))
    assert (repr(found.sampling.seed), found.sampling.temperature) == ("3", 1)


@pytest.mark.parametrize(
    "recorded", [Recorded("a", prompt="so \ud83d", text="x"), Recorded("a", prompt="x", text="\ude00")]
)
def test_half_a_character_is_told_with_its_place(recorded: Recorded) -> None:
    with pytest.raises(DatasetError, match=r"answers.jsonl: a: its text has half a character, '\\ud"):
        in_tokens([recorded], Tokenizer.load(TINY / "target"), Path("answers.jsonl"))


@pytest.mark.parametrize("said", [("Hi",), ("▁Hi",), ("Hi", "▁Hi", "▁", "▁Hi")])
def test_an_answers_text_continues_its_prompt(said: tuple[str, ...]) -> None:
    """A tokenizer of SentencePiece puts a space before a text; none comes between a prompt and its answer."""
    names = ["<unk>", "▁", "H", "i", "▁H", "▁Hi", "Hi"]
    merges = [("H", "i"), ("▁", "Hi")]
    inner = tokenizers.Tokenizer(models.BPE({name: at for at, name in enumerate(names)}, merges))
    inner.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    inner.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer = Tokenizer(inner)
    ids = tuple(names.index(name) for name in said)
    detokenizer = tokenizer.detokenizer()
    text = "".join(detokenizer.push(token) for token in ids)

    (found,) = in_tokens([Recorded("a", prompt="Hi", text=text)], tokenizer, Path("answers.jsonl"))

    assert found.tokens == ids
    assert found.prompt == (names.index("▁Hi"),)
