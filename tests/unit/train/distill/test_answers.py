"""The target's answers: each asked for once, however often the run is killed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.unit.train.distill.conftest import Run
from trtspec.base.errors import ServerError
from trtspec.client.endpoint import AskError, EndpointRequest, TimedAnswer
from trtspec.measure.workloads.recorded import read_recorded
from trtspec.measure.workloads.workload import Prompt
from trtspec.train.distill.deployment import record
from trtspec.train.distill.settings import DistillationOptions
from trtspec.train.tune.recording import Asking

PROMPTS = [Prompt(str(number), (f"say {number}",), "numbers") for number in range(40)]


ASKING = Asking("parrot", lambda text: [1], 12, 0.0)


class Parrot:
    """A server that repeats the prompt; after `patience` answers it is gone."""

    url, model, plain_per_request = "http://parrot", "parrot", True
    api: Literal["triton", "openai"] = "triton"

    def __init__(self, patience: int) -> None:
        self.asked, self.patience, self.is_closed = list[EndpointRequest](), patience, False

    async def connect(self) -> Parrot:
        return self

    async def ask(self, question: EndpointRequest) -> TimedAnswer:
        if len(self.asked) >= self.patience:
            raise AskError("unreachable", "is gone", 0.0)
        self.asked.append(question)
        return TimedAnswer(0.0, question.messages[0].text, finish_reason="stop")

    async def close(self) -> None:
        self.is_closed = True


def test_only_what_is_missing_is_asked_for(tmp_path: Path) -> None:
    file, first, second, counted = tmp_path / "answers" / "a.jsonl", Parrot(21), Parrot(99), list[int]()
    with pytest.raises(ServerError, match=r"http://parrot: prompt \d+: is gone"):
        record(first.connect, 3, file, PROMPTS, ASKING, lambda *_: None)
    assert first.is_closed
    with file.open("ab") as stream:  # As if the power had failed while a line was written.
        stream.write(b'{"name": "39", "prompt": "say')

    found = record(second.connect, 3, file, PROMPTS, ASKING, lambda amount, *_: counted.append(amount))

    assert [answer.text for answer in found] == [prompt.text for prompt in PROMPTS]
    asked = sorted(question.messages[0].text for question in (*first.asked, *second.asked))
    assert asked == sorted(prompt.text for prompt in PROMPTS)
    assert sum(counted) == 40
    assert {answer.name for answer in read_recorded(file)} == {prompt.name for prompt in PROMPTS}
    assert record(Parrot(0).connect, 3, file, PROMPTS, ASKING, lambda *_: None) == found


def test_each_prompt_is_drawn_with_numbers_of_its_own(tmp_path: Path) -> None:
    server = Parrot(99)
    asking = replace(ASKING, temperature=0.7)
    found = record(server.connect, 3, tmp_path / "a.jsonl", PROMPTS, asking, lambda *_: None)
    assert {question.temperature for question in server.asked} == {0.7}
    assert len({question.seed for question in server.asked}) == 40
    assert [answer.sampling for answer in found] == [asking.sampling(prompt.text) for prompt in PROMPTS]


def test_the_target_answers_as_in_transformers(toy: DistillationOptions, run: Run, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("one\ntwo words\nthree of them\nand a fourth\n")
    found = run(
        toy,
        answers=None,
        held_out=None,
        workload=str(prompts),
        max_tokens=12,
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
        max_tokens=12,
        settings=replace(toy.settings, epochs=1),
    )
    assert file.stat().st_size == size
