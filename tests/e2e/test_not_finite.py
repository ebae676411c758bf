"""Requests whose logits are NaN, under a real Triton: each fails alone, and every answer is JSON."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.e2e.conftest import Deploy, Deployer, wait_until

BROKEN = 65  # a token whose embedding is NaN


@pytest.fixture
def broken(build_copy: Path, tiny_recipe: Path, deployer: Deployer) -> Deploy:
    file = build_copy / "target/engine/rank0.safetensors"
    tensors = load_file(file)
    tensors["transformer.vocab_embedding.weight"][BROKEN] = torch.nan
    save_file(tensors, file)
    deploy = deployer(build_copy, recipe=tiny_recipe, with_api=True)
    wait_until(lambda: deploy.is_ready, "the server ready")
    return deploy


def strict(text: str) -> Any:
    """Reads JSON as its standard has it."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} in {text}")

    return json.loads(text, parse_constant=refuse)


def complete(deploy: Deploy, **values: Any) -> tuple[int, Any]:
    body = json.dumps({"model": deploy.model, "max_tokens": 8, **values}).encode()
    request = Request(f"{deploy.api}/completions", body, {"Content-Type": "application/json"})
    try:
        with urlopen(request) as answer:
            return answer.status, strict(answer.read().decode())
    except HTTPError as error:
        return error.code, strict(error.read().decode())


@pytest.mark.parametrize(
    ("tiny_recipe", "likeliest"),
    [("in_process", 5), pytest.param("bls", 0, marks=pytest.mark.sweep)],
    indirect=["tiny_recipe"],
)
def test_a_request_without_logits_fails_alone_with_json(broken: Deploy, likeliest: int) -> None:
    log_probs = {"return_log_probs": True, "top_log_probs": likeliest}
    with ThreadPoolExecutor(2) as pool:
        beside = pool.submit(broken.generate, "class A:\n", max_tokens=100)
        status, answer = broken.post({"input_ids": [70, BROKEN, 71], "max_tokens": 8, **log_probs})
        assert status == 500
        assert "logits are NaN or infinite" in answer["error"]
        assert beside.result() == broken.generate("class A:\n", max_tokens=100)
    # The model tells its metrics once a second.
    wait_until(lambda: broken.metric("request_errors", kind="not_finite") == 1, "the metric of the failure")
    for extra in ({}, {"stream": True}, {"logprobs": likeliest}):
        status, answer = complete(broken, prompt=[70, BROKEN, 71], **extra)
        assert status == 500
        assert "logits are NaN or infinite" in answer["error"]["message"]
    status, answer = complete(broken, prompt=[70, 71], logprobs=likeliest)
    assert status == 200, answer
    assert answer["choices"][0]["logprobs"]
    assert broken.metric("request_errors", kind="internal") == 0
