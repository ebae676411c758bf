"""Frameworks that build on OpenAI's API understand what it says: they run in an environment of their own."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from ruamel.yaml import YAML

from tests.e2e.conftest import ONLY_IN_PROCESS, Deploy
from tests.e2e.openai_requests import MODEL, serving
from tests.e2e.test_openai_serve import TOOL_TEMPLATE, tokenizer

pytestmark = [pytest.mark.clients, ONLY_IN_PROCESS]

ROOT = Path(__file__).parents[3]
PYTHON = Path(os.environ.get("TRTSPEC_CLIENTS_PYTHON", ROOT / ".venv-clients/bin/python"))
"""Set up by `make test-clients`."""
GUIDES = ROOT / "docs" / "how-to"
ADDRESS = "http://127.0.0.1:9000/v1"
"""Of the pages."""
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


def run(*words: str) -> str:
    # LiteLLM would ask GitHub for prices.
    environment = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    return subprocess.run(
        [str(PYTHON), *words], stdout=subprocess.PIPE, text=True, check=True, env=environment
    ).stdout


def shown(page: str, language: str, url: str) -> str:
    """Returns the one block of a guide in this language, with the address of this server."""
    text = (GUIDES / page).read_text(encoding="utf-8")
    found: str
    (found,) = re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert ADDRESS in found
    return found.replace(ADDRESS, url)


@pytest.fixture
def ask(url: str) -> Ask:
    def asked(script: str) -> dict[str, Any]:
        said = run(str(Path(__file__).with_name(script)), url, MODEL, PROMPT)
        found: dict[str, Any] = json.loads(said.splitlines()[-1])
        return found

    return asked


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


@pytest.mark.parametrize("page", ["langchain.md", "litellm.md"])
def test_a_guide_can_be_followed(url: str, text: str, page: str) -> None:
    assert run("-c", shown(page, "python", url)).startswith(text)


def test_the_configuration_of_litellms_proxy(url: str, text: str) -> None:
    """The proxy gives its `model_list` to this router."""
    models = YAML(typ="safe").load(shown("litellm.md", "yaml", url))["model_list"]
    said = f"[{{'role': 'user', 'content': {PROMPT!r}}}], max_tokens={TOKENS}, temperature=0"
    answer = f"litellm.Router(model_list={models!r}).completion('llama', {said})"
    assert run("-c", f"import litellm\nprint({answer}.choices[0].message.content)").startswith(text)


def test_what_open_webui_sends(url: str, text: str) -> None:
    """Its `routers/openai.py`: the list of models, an answer that is streamed, and a title that is not."""
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        (model,) = [model.id for model in client.models.list()]
        said: Any = {"model": model, "messages": [{"role": "user", "content": PROMPT}], "temperature": 0}
        usage: Any = {"include_usage": True}
        chunks = list(
            client.chat.completions.create(**said, max_tokens=TOKENS, stream=True, stream_options=usage)
        )
        title = client.chat.completions.create(**said, stream=False, max_completion_tokens=TOKENS)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == text
    assert [chunk.usage.completion_tokens for chunk in chunks if chunk.usage] == [TOKENS]
    assert title.choices[0].message.content == text
