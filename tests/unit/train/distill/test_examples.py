"""What is learned is the answers alone, by transformers' own loss."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM

from trtspec.backends.table import load
from trtspec.base.progress import no_progress
from trtspec.serving.tokenizer import Tokenizer
from trtspec.train.distill.examples import Example, collate, examples_of
from trtspec.train.distill.pair import read_pair, read_target
from trtspec.train.distill.settings import DistillationOptions
from trtspec.train.tune.answer import RecordedAnswer


def answer(prompt: int, said: int, *, stopped: bool = False) -> RecordedAnswer:
    return RecordedAnswer("", "", tuple(range(2, 2 + prompt)), tuple(range(50, 50 + said)), stopped)


def test_the_loss_is_that_of_the_answers(llama_folder: Callable[..., Path]) -> None:
    model = AutoModelForCausalLM.from_pretrained(llama_folder(), dtype=torch.float32)
    examples = [Example((5, 6, 7, 8, 9, 10), 2), Example((9, 8, 7), 2), Example((1, 2, 3, 4), 1)]

    found = model(**collate(examples)).loss

    losses = []
    for example in examples:
        ids = torch.tensor([example.token_ids])
        logits = model(ids).logits[0, example.num_prompt - 1 : -1]
        losses.append(cross_entropy(logits, ids[0, example.num_prompt :], reduction="none"))
    assert found.item() == pytest.approx(torch.cat(losses).mean().item(), rel=1e-5)


def test_the_end_is_learned_where_the_target_ended(llama_folder: Callable[..., Path]) -> None:
    tokenizer = Tokenizer.load(llama_folder())
    (end,) = tokenizer.end_ids
    cut, ended, too_long = examples_of(
        [answer(3, 2), answer(3, 2, stopped=True), answer(3, 9, stopped=True)], tokenizer, 8
    )

    assert cut == Example((2, 3, 4, 50, 51), 3)
    assert ended == Example((2, 3, 4, 50, 51, end), 3)
    assert too_long == Example((2, 3, 4, 50, 51, 52, 53, 54), 3)


def test_the_end_is_the_one_that_serving_reports(toy: DistillationOptions, tmp_path: Path) -> None:
    target = tmp_path / "target"
    (target / "generation_config.json").write_text('{"eos_token_id": [0, 1]}')
    own = Tokenizer.load(target).id_of("</s>")

    for read in (read_pair, read_target):
        tokenizer = read(load(toy.recipe), no_progress).tokenizer
        (example,) = examples_of([answer(3, 2, stopped=True)], tokenizer, 8)
        assert (example.token_ids[-1], set(tokenizer.end_ids)) == (own, {0, 1})
