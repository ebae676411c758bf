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

from tests.perf.chats import OTHERS, QUOTING
from tests.perf.quoting import LONGEST, Way, built, encoded
from trtspec.serving.executors.torch.device_thread import DeviceThread

MODEL = Path(os.environ.get("TRTSPEC_SMOLLM", ""))
TOKENS = 48
NAMES = ("rename", "JSON", "table", "correction", "capital", "letters")

pytestmark = pytest.mark.skipif("TRTSPEC_SMOLLM" not in os.environ, reason="TRTSPEC_SMOLLM names no model")


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("real"), MODEL)


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    return encoded(MODEL, [(QUOTING | OTHERS)[name] for name in NAMES])


@pytest.fixture(scope="module")
def expected(prompts: list[list[int]]) -> list[list[int]]:
    """What transformers says, without the end token."""
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
    way = Way(build, DeviceThread(), request.param, TOKENS)
    yield way
    way.close()


def test_greedy_text_is_that_of_transformers(
    way: Way, prompts: list[list[int]], expected: list[list[int]]
) -> None:
    said = [way(prompt) for prompt in prompts]
    assert said == expected
    assert len(set(map(tuple, said))) == len(said)
    accepted = sum(completion.speculation.num_accepted_draft_tokens for _, completion in way.answers)
    assert (accepted > 0) == (way.length != 0)
