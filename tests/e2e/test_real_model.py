"""Prompt lookup with a real model says what the model says alone, and what transformers says.

`TRTSPEC_SMOLLM` names the model's folder; `tests/perf/smollm.py` says how to make one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.perf.methods import LONGEST, LOOKUP, Way, built_of
from tests.perf.workloads import Question, of_chat
from trtspec.serving.drafters.source import LOOKUP as FOUND

MODEL = Path(os.environ.get("TRTSPEC_SMOLLM", ""))
TOKENS = 48
NAMES = ("rename", "JSON", "table", "correction", "capital", "explanation")

pytestmark = pytest.mark.skipif("TRTSPEC_SMOLLM" not in os.environ, reason="TRTSPEC_SMOLLM names no model")


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_of(tmp_path_factory.mktemp("real"), MODEL)


@pytest.fixture(scope="module")
def questions() -> list[Question]:
    asked = [question for questions in of_chat(MODEL, 8, TOKENS).values() for question in questions]
    return [next(question for question in asked if question.name == name) for name in NAMES]


@pytest.fixture(scope="module")
def expected(questions: list[Question]) -> list[list[int]]:
    """What transformers says, without the end token."""
    prompts = [list(question.request.prompt_token_ids or ()) for question in questions]
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    said = [
        model.generate(torch.tensor([prompt]), max_new_tokens=TOKENS, do_sample=False)[0, len(prompt) :]
        for prompt in prompts
    ]
    assert model.generation_config is not None
    end_id = model.generation_config.eos_token_id
    return [[token_id for token_id in tokens.tolist() if token_id != end_id] for tokens in said]


@pytest.fixture(params=[0, LONGEST, None], ids=["alone", "fixed", "adaptive"])
def way(request: pytest.FixtureRequest, build: Path) -> Iterator[Way]:
    way = Way(build, LOOKUP, request.param)
    yield way
    way.close()


def test_greedy_text_is_that_of_transformers(
    way: Way, questions: list[Question], expected: list[list[int]]
) -> None:
    said, accepted = [], 0
    for question in questions:
        said.append(way.answer(question))
        accepted += way.drafts[FOUND][2]
    assert said == expected
    assert len(set(map(tuple, said))) == len(said)
    assert (accepted > 0) == (way.length != 0)
