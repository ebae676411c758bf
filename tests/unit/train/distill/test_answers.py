"""The target's answers: each asked for once, however often the run is killed."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Literal
from unittest.mock import Mock

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.unit.train.distill.conftest import Run
from trtspec.backends.table import load
from trtspec.base.errors import ServerError
from trtspec.base.progress import no_progress
from trtspec.client.endpoint import AskError, EndpointRequest, TimedAnswer
from trtspec.measure.workloads.workload import Prompt, read_recorded
from trtspec.train.distill.distillation import Answers, gather, record_deployed
from trtspec.train.distill.pair import read_pair
from trtspec.train.distill.settings import DistillationOptions, TargetDeployment
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


class Narrow(Parrot):
    """A server that refuses prompts that leave no room for the longest answer; a character is a token."""

    def __init__(self, longest: int) -> None:
        super().__init__(99)
        self.longest = longest

    async def ask(self, question: EndpointRequest) -> TimedAnswer:
        wanted = len(question.messages[0].text) + question.max_tokens
        if wanted > self.longest:
            raise AskError("rejected", f"400: {wanted} tokens are more than {self.longest}", 0.0)
        return await super().ask(question)


def gathered(toy: DistillationOptions, server: Narrow, lengths: Sequence[int]) -> Answers:
    workload = toy.recipe.with_name("prompts.txt")
    workload.write_text("".join(f"{chr(97 + at) * length}\n" for at, length in enumerate(lengths)))
    asked = replace(
        toy,
        answers=None,
        held_out=None,
        max_tokens=100,
        workload=str(workload),
        deployment=Mock(TargetDeployment, url=server.url, model=None, streams=2, connect=server.connect),
        settings=replace(toy.settings, max_length=10**6),
    )
    return gather(
        asked, read_pair(load(toy.recipe), no_progress), lambda *_: nullcontext(lambda *_: None), no_progress
    )


def test_a_long_prompt_gets_the_answer_that_it_leaves_room_for(toy: DistillationOptions) -> None:
    longest = read_pair(load(toy.recipe), no_progress).max_seq_len
    server = Narrow(longest)

    found = gathered(toy, server, [5, 6, longest - 20, longest - 5])

    assert found.left_out == 1, "the last has no room for an answer"
    assert sorted(question.max_tokens for question in server.asked) == [20, 100, 100]


def test_a_prompt_that_the_server_refuses_is_left_out(toy: DistillationOptions) -> None:
    found = gathered(toy, Narrow(150), [5, 6, 7, 60])
    assert (len(found.learned) + len(found.held_out), found.left_out) == (3, 1)

    with pytest.raises(ServerError, match=r"http://parrot: prompt \d+: 400: \d+ tokens are more than 90"):
        gathered(replace(toy, output=toy.output / "again"), Narrow(90), [5, 6, 7])


def test_only_what_is_missing_is_asked_for(tmp_path: Path) -> None:
    file, first, second, counted = tmp_path / "answers" / "a.jsonl", Parrot(21), Parrot(99), list[int]()
    with pytest.raises(ServerError, match=r"http://parrot: prompt \d+: is gone"):
        record_deployed(first.connect, 3, file, PROMPTS, ASKING, lambda *_: None)
    assert first.is_closed
    with file.open("ab") as stream:  # As if the power had failed while a line was written.
        stream.write(b'{"name": "39", "prompt": "say')

    found = record_deployed(
        second.connect, 3, file, PROMPTS, ASKING, lambda amount, *_: counted.append(amount)
    )

    assert [answer.text for answer in found] == [prompt.text for prompt in PROMPTS]
    asked = sorted(question.messages[0].text for question in (*first.asked, *second.asked))
    assert asked == sorted(prompt.text for prompt in PROMPTS)
    assert sum(counted) == 40
    assert {answer.name for answer in read_recorded(file)} == {prompt.name for prompt in PROMPTS}
    assert record_deployed(Parrot(0).connect, 3, file, PROMPTS, ASKING, lambda *_: None) == found


def test_each_prompt_is_drawn_with_numbers_of_its_own(tmp_path: Path) -> None:
    server = Parrot(99)
    asking = replace(ASKING, temperature=0.7)
    found = record_deployed(server.connect, 3, tmp_path / "a.jsonl", PROMPTS, asking, lambda *_: None)
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
