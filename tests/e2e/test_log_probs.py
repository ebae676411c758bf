"""Log-probabilities of a real server's answers, held to transformers on the same weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.e2e.conftest import IN_PROCESS, Deploy

pytestmark = IN_PROCESS

TINY = Path(__file__).parents[2] / "recipes" / "tiny"
PROMPT = "def fib(n):\n    "
LENGTH = 24
CLOSE = 1e-3


@pytest.fixture(scope="module")
def expected() -> list[float]:
    """Of the target's own greedy text."""
    model = AutoModelForCausalLM.from_pretrained(TINY / "target", dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(TINY / "target")
    row = tokenizer(PROMPT, return_tensors="pt")["input_ids"]
    made = model.generate(row, attention_mask=torch.ones_like(row), max_new_tokens=LENGTH, do_sample=False)
    with torch.inference_mode():
        logged = model(made).logits[0].log_softmax(-1)
    tokens = made[0].tolist()
    return [float(logged[place - 1, tokens[place]]) for place in range(row.shape[1], len(tokens))]


def numbers(answer: dict[str, Any]) -> list[float]:
    """Triton writes one number alone where there is only one."""
    found = answer.get("output_log_probs", [])
    return found if isinstance(found, list) else [found]


@pytest.mark.parametrize("num_draft_tokens", [0, 4])
def test_are_those_of_transformers(server: Deploy, expected: list[float], num_draft_tokens: int) -> None:
    body = {
        "text_input": PROMPT,
        "max_tokens": LENGTH,
        "num_draft_tokens": num_draft_tokens,
        "return_log_probs": True,
    }
    status, whole = server.post(body)
    assert status == 200, whole
    assert numbers(whole) == pytest.approx(expected, abs=CLOSE)

    status, events = server.post({**body, "stream": True}, "generate_stream")
    assert status == 200, events
    assert [value for event in events for value in numbers(event)] == pytest.approx(expected, abs=CLOSE)


def test_grpc_has_them_as_a_list(server: Deploy, expected: list[float]) -> None:
    client = server.client()
    (answer,) = client.generate({"text_input": PROMPT, "max_tokens": LENGTH, "return_log_probs": True})
    client.close()
    assert answer["output_log_probs"] == pytest.approx(expected, abs=CLOSE)


def test_come_only_when_asked_for(server: Deploy) -> None:
    status, answer = server.post({"text_input": PROMPT, "max_tokens": 3})
    assert (status, "output_log_probs" in answer) == (200, False)
