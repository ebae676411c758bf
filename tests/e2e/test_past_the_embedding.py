"""Text whose token the model's embedding lacks, under a real Triton: the client's mistake, at each port."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import urlsplit

from tests.e2e.conftest import Deployer, wait_until
from tests.e2e.openai_requests import GOOD, ROUTES, ask, error_of
from tests.fakes.broken_recipes import add
from tests.support.command_line import trtspec

MARKER = "<image_soft_token>"


def test_a_prompt_with_a_token_past_the_embedding_is_a_400(pair_recipe: Path, deployer: Deployer) -> None:
    for file in pair_recipe.parent.glob("*/tokenizer.json"):
        add(str(file.relative_to(pair_recipe.parent)), special=True)(pair_recipe.parent)
    build = pair_recipe.parent / "out"
    done = trtspec("build", pair_recipe, "--output", build, folder=pair_recipe.parent)
    assert done.returncode == 0, done.stderr
    deploy = deployer(build, recipe=pair_recipe, with_api=True)
    wait_until(lambda: deploy.is_ready, "the server ready")

    status, answer = deploy.post({"text_input": f"see {MARKER}", "max_tokens": 8})
    assert status == 400
    assert MARKER in answer["error"]
    for extra in ({}, {"stream": True}):
        body = {**GOOD, "prompt": f"see {MARKER}", **extra}
        code, _, said = ask(urlsplit(deploy.api).port or 0, ROUTES[0], json.dumps(body).encode())
        assert code == 400
        assert MARKER in error_of(said)["message"]
    assert deploy.post({"text_input": "see", "max_tokens": 8})[0] == 200
