"""Frameworks that build on OpenAI's API understand what it says: they run in an environment of their own."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.e2e.conftest import ONLY_IN_PROCESS, Deploy
from tests.e2e.openai_requests import MODEL, serving
from tests.e2e.test_openai_serve import TOOL_TEMPLATE, tokenizer

pytestmark = [pytest.mark.clients, ONLY_IN_PROCESS]

ROOT = Path(__file__).parents[3]
PYTHON = Path(os.environ.get("TRTSPEC_CLIENTS_PYTHON", ROOT / ".venv-clients/bin/python"))
"""Set up by `make test-clients`."""
PROMPT, TOKENS = "Write a stack.", 100
Ask = Callable[[str], dict[str, Any]]


@pytest.fixture(scope="module")
def url(server: Deploy, tiny_build: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """OpenAI's API in front of the tiny pair, with a template that takes tools."""
    folder = tmp_path_factory.mktemp("serve")
    texts = tokenizer(tiny_build, folder / "tokenizer", TOOL_TEMPLATE)
    triton = f"http://127.0.0.1:{server.ports[0]}"
    with serving(triton, "--tokenizer", texts, said=folder / "said") as port:
        yield f"http://127.0.0.1:{port}/v1"


@pytest.fixture(scope="module")
def text(url: str) -> str:
    """What OpenAI's own client gets."""
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        messages: Any = [{"role": "user", "content": PROMPT}]
        made = client.chat.completions.create(
            model=MODEL, messages=messages, max_tokens=TOKENS, temperature=0
        )
    assert made.choices[0].message.content
    return made.choices[0].message.content


@pytest.fixture
def ask(url: str) -> Ask:
    def run(script: str) -> dict[str, Any]:
        done = subprocess.run(
            [PYTHON, Path(__file__).with_name(script), url, MODEL, PROMPT],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            # LiteLLM would ask GitHub for prices.
            env={**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
        )
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found

    return run


def is_light(value: dict[str, Any]) -> bool:
    return value["colour"] in ("red", "green") and isinstance(value["is_on"], bool) and len(value) == 2


def test_openais_agents(ask: Ask) -> None:
    told = ask("ask_agents.py")
    assert is_light(told["text"])
    assert told["streamed"] == told["text"]
    assert len(told["pieces"]) > 1
    assert json.loads("".join(told["pieces"])) == told["text"]
    assert told["usage"] > 0
    (called,) = told["called"]
    assert isinstance(called["twice"], bool)
    assert told["painted"] == f"the wall is {called['colour']}"


def test_langchain(ask: Ask, text: str) -> None:
    told = ask("ask_langchain.py")
    assert told["text"] == "".join(told["pieces"]) == told["responses"] == text
    assert told["finish_reason"] == "length"
    assert told["usage"] == TOKENS
    assert told["streamed_usage"] == [TOKENS]
    assert is_light(told["light"])
    assert is_light(told["responses_light"])
    ((name, arguments),) = told["calls"]
    assert (name, arguments.keys()) == ("paint", {"colour", "twice"})


def test_litellm(ask: Ask, text: str) -> None:
    told = ask("ask_litellm.py")
    assert told["text"] == "".join(told["pieces"]) == told["hosted"] == told["responses"] == text
    assert told["usage"] == TOKENS
    assert told["completion"]
    name, arguments = told["call"]
    assert (name, arguments.keys()) == ("paint", {"colour"})
