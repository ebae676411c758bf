"""NVIDIA's own OpenAI front end before a deployment, where its source is at hand.

`TRITON_OPENAI_FRONTEND` names the folder `python/openai/openai_frontend` of triton-inference-server/server.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.e2e.conftest import IN_PROCESS, Deploy, Until
from tests.e2e.test_openai import CHAT, MESSAGES, PROMPT
from tests.support.ports import free_port

FRONT_END = os.environ.get("TRITON_OPENAI_FRONTEND")
pytestmark = [
    IN_PROCESS,
    pytest.mark.skipif(not FRONT_END, reason="TRITON_OPENAI_FRONTEND names no source of NVIDIA's front end"),
]


@pytest.fixture(scope="module")
def client(
    server: Deploy, tiny_build: Path, until: Until, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[openai.OpenAI]:
    port, said = free_port(), tmp_path_factory.mktemp("front_end") / "said"
    command = [sys.executable, "-m", "tests.fakes.in_process_api", str(FRONT_END), str(server.ports[1])]
    with said.open("wb") as file:
        process = subprocess.Popen(
            [*command, str(tiny_build / "tokenizer"), str(port)], stdout=file, stderr=subprocess.STDOUT
        )
    try:
        with openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0) as client:
            until(lambda: process.poll() is not None or answers(client), "the front end")
            assert process.poll() is None, said.read_text()
            yield client
    finally:
        process.kill()
        process.wait()


def answers(client: openai.OpenAI) -> bool:
    try:
        return bool(client.models.list().data)
    except openai.APIError:
        return False


def text_of(message: Any) -> str:
    content = message["content"]
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def test_the_openai_front_end_of_nvidia_lists_the_deployed_model(
    client: openai.OpenAI, server: Deploy
) -> None:
    assert [model.id for model in client.models.list()] == [server.model]


def test_completions(client: openai.OpenAI, server: Deploy) -> None:
    asked: Any = {"model": server.model, "prompt": PROMPT, "max_tokens": 40, "temperature": 0}
    expected = server.generate(PROMPT, max_tokens=40)
    made = client.completions.create(**asked)
    assert made.choices[0].text == expected
    assert made.usage is None or made.usage.completion_tokens == 40
    chunks = list(client.completions.create(**asked, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == expected
    assert len(chunks) > 3
    assert client.completions.create(**asked, stop=[expected[10:14]]).choices[0].text == expected[:10]
    assert client.completions.create(**asked, echo=True).choices[0].text == PROMPT + expected


def test_chats(client: openai.OpenAI, server: Deploy) -> None:
    # Content in parts it hands to the template as it is, which takes text.
    messages = [{**said, "content": text_of(said)} for said in MESSAGES]
    asked: Any = {"model": server.model, "messages": messages, "max_tokens": 24, "temperature": 0}
    expected = server.generate(CHAT, max_tokens=24, add_special_tokens=False)
    assert client.chat.completions.create(**asked).choices[0].message.content == expected
    chunks = client.chat.completions.create(**asked, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == expected


def test_the_openai_front_end_of_nvidia_passes_the_sampling_parameters_on(
    client: openai.OpenAI, server: Deploy
) -> None:
    asked: Any = {"prompt": PROMPT, "max_tokens": 20, "temperature": 0.8, "top_p": 0.9, "seed": 7}
    expected = server.generate(
        PROMPT, max_tokens=20, temperature=0.8, top_p=0.9, seed=7, presence_penalty=0.5, frequency_penalty=0.5
    )
    made = client.completions.create(model=server.model, **asked, presence_penalty=0.5, frequency_penalty=0.5)
    assert made.choices[0].text == expected


def test_an_error_is_one(client: openai.OpenAI, server: Deploy) -> None:
    with pytest.raises(openai.APIStatusError):
        client.completions.create(model=server.model, prompt="x = 1\n" * 4000, max_tokens=4)
