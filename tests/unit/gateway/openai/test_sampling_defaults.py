"""The defaults of sampling that a model brings along."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trtspec.gateway.openai.sampling_defaults import read_defaults, with_defaults
from trtspec.gateway.openai.schema import ChatRequest, CompletionBody

# What Qwen3 has, with what vLLM takes for usual.
QWEN = {"do_sample": True, "eos_token_id": [151645], "temperature": 0.6, "top_k": 20, "top_p": 0.95}


def read(folder: Path, said: Any) -> dict[str, float]:
    (folder / "generation_config.json").write_text(json.dumps(said))
    return read_defaults(folder)


def test_the_file_says_what_vllm_takes_of_it(tmp_path: Path) -> None:
    assert read_defaults(tmp_path) == {}
    assert read(tmp_path, QWEN) == {"temperature": 0.6, "top_k": 20, "top_p": 0.95}
    assert read(tmp_path, {"temperature": 1.0, "top_k": 50, "top_p": 1.0, "repetition_penalty": 1.05}) == {}
    assert read(tmp_path, {"temperature": None, "top_k": "many", "max_new_tokens": 9}) == {
        "max_new_tokens": 9
    }
    assert read(tmp_path, []) == {}


def test_transformers_agrees_on_what_is_usual(tmp_path: Path) -> None:
    from transformers import GenerationConfig

    usual = GenerationConfig()
    assert read(tmp_path, {name: getattr(usual, name) for name in ("temperature", "top_k", "top_p")}) == {}


def chat(**values: Any) -> ChatRequest:
    return ChatRequest.model_validate(
        {"model": "m", "messages": [{"role": "user", "content": "a"}], **values}
    )


def test_sampling_fields_of_a_request_override_the_defaults_of_the_model() -> None:
    made = with_defaults(chat(temperature=0.0), {"temperature": 0.6, "top_k": 20})
    assert (made.temperature, made.top_k, made.max_tokens) == (0.0, 20, None)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({}, (9, None)),
        ({"max_tokens": 20}, (9, None)),
        ({"max_completion_tokens": 3}, (None, 3)),
        ({"max_completion_tokens": 30}, (None, 9)),
    ],
)
def test_the_most_new_tokens_bound_every_answer(asked: dict[str, int], expected: tuple[Any, Any]) -> None:
    made = with_defaults(chat(**asked), {"max_new_tokens": 9})
    assert (made.max_tokens, made.max_completion_tokens) == expected


def test_a_completion_is_as_short_as_ever() -> None:
    body = CompletionBody.model_validate({"model": "m", "prompt": "a"})
    assert with_defaults(body, {"max_new_tokens": 9}).max_tokens is None
