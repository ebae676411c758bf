"""The target's answers: each asked for once, however often the run is killed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.unit.distill.conftest import Run
from trtspec.distill.sampling import Sampling, sample
from trtspec.distill.wanted import Wanted
from trtspec.errors import ServerError
from trtspec.workloads.prompt import Prompt
from trtspec.workloads.recorded import Recorded, read_recorded

PROMPTS = [Prompt(str(number), (f"say {number}",), "numbers") for number in range(40)]


class Parrot:
    """Repeats the prompt; after `patience` answers it is gone."""

    def __init__(self, patience: int) -> None:
        self.at_once, self.asked, self.patience, self.closed = 3, list[str](), patience, False

    async def open(self) -> Parrot:
        return self

    async def answer(self, prompt: Prompt, max_tokens: int, options: dict[str, float]) -> Recorded:
        if len(self.asked) >= self.patience:
            raise ServerError("parrot", "is gone")
        self.asked.append(prompt.name)
        return Recorded(prompt.name, prompt=prompt.text, text=prompt.text, sampling=options)

    async def close(self) -> None:
        self.closed = True


def test_only_what_is_missing_is_asked_for(tmp_path: Path) -> None:
    file, first, second, counted = tmp_path / "answers" / "a.jsonl", Parrot(21), Parrot(99), list[int]()
    with pytest.raises(ServerError):
        sample(PROMPTS, file, Sampling(), first.open, lambda *_: None)
    assert first.closed
    with file.open("ab") as stream:  # As if the power had failed while a line was written.
        stream.write(b'{"name": "39", "prompt": "say')

    found = sample(PROMPTS, file, Sampling(), second.open, lambda amount, *_: counted.append(amount))

    assert [answer.name for answer in found] == [prompt.name for prompt in PROMPTS]
    assert sorted([*first.asked, *second.asked], key=int) == [prompt.name for prompt in PROMPTS]
    assert sum(counted) == 40
    assert {answer.name for answer in read_recorded(file)} == {prompt.name for prompt in PROMPTS}
    third = Parrot(0)
    assert sample(PROMPTS, file, Sampling(), third.open, lambda *_: None) == found


def test_each_prompt_has_numbers_of_its_own() -> None:
    greedy, sampling = Sampling(), Sampling(temperature=0.7, seed=5)
    assert greedy.options(3) == {}
    assert sampling.options(0) == {"temperature": 0.7, "seed": 5}
    assert len({sampling.options(number)["seed"] for number in range(100)}) == 100


def test_the_target_answers_as_in_transformers(toy: Wanted, run: Run, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("one\ntwo words\nthree of them\nand a fourth\n")
    found = run(
        toy,
        answers=None,
        held_out=None,
        workload=str(prompts),
        sampling=Sampling(max_tokens=12),
        settings=replace(toy.settings, epochs=1),
    )

    assert len(found.answers.learned) + len(found.answers.held_out) == 4
    target = AutoModelForCausalLM.from_pretrained(tmp_path / "target", dtype=torch.float32)
    for answer in (*found.answers.learned, *found.answers.held_out):
        ids = torch.tensor([answer.prompt])
        said = target.generate(ids, max_new_tokens=12, do_sample=False, pad_token_id=1)[0, ids.shape[1] :]
        expected = [token for token in said.tolist() if token != 1]
        assert list(answer.tokens) == expected
        assert answer.stopped == (len(expected) < 12)
    (file,) = (toy.output / "answers").iterdir()
    size = file.stat().st_size
    run(
        toy,
        answers=None,
        held_out=None,
        workload=str(prompts),
        sampling=Sampling(max_tokens=12),
        settings=replace(toy.settings, epochs=1),
    )
    assert file.stat().st_size == size
