"""OpenAI's API in front of a server elsewhere, and of a deployment: keys, limits, tools, its end."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletion

from tests.e2e.conftest import DEADLINE_S, IN_PROCESS, ONLY_IN_PROCESS, Deploy, Deployer, Until
from tests.e2e.openai_requests import CHAT, GOOD, LONG, MODEL, ROUTES, ask, begin, error_of, read, serving
from tests.support.ports import free_port
from tests.support.processes import command_lines, numbers_of
from trtspec.client.scrape import parse

# Qwen's form, with nothing but what the tests need.
TOOL_TEMPLATE = (
    "{{ bos_token }}{% if reasoning_effort %}# Effort: {{ reasoning_effort }}\n{% endif %}"
    "{% for tool in tools or [] %}{{ tool | tojson }}\n{% endfor %}"
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n"
    "{% for call in message.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>\n"
    "{% endfor %}{% endfor %}"
)
THINKING_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message.content.split('</think>')[-1] }}{% endfor %}"
    "<think>"
)
TOOL: Any = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Looks a word up.",
        "parameters": {
            "type": "object",
            "properties": {"number": {"type": "integer", "minimum": 0, "maximum": 99}},
            "required": ["number"],
            "additionalProperties": False,
        },
    },
}


def _refused(port: int) -> dict[str, float]:
    """What the API's own metrics say of requests that it did not pass on, by why."""
    status, _, text = ask(port, "/metrics", None, "GET")
    assert status == 200
    rows = parse(text.decode(), 0).of("trtspec:front_refusals", api="openai", model=MODEL)
    return {labels["reason"]: number for labels, number in rows if number}


@IN_PROCESS
def test_keys_open_the_api_and_are_told_to_nobody(server: Deploy, tmp_path: Path) -> None:
    keys, said = tmp_path / "keys.txt", tmp_path / "said"
    keys.write_text("# for tests\nsk-first\n\nsk-second\n")
    url = f"http://127.0.0.1:{server.ports[0]}"
    with serving(url, "--api-keys", keys, said=said) as port:
        body = json.dumps(GOOD).encode()
        for headers in ({}, {"Authorization": "Bearer sk-wrong"}, {"Authorization": "Basic sk-first"}):
            for path in (*ROUTES, "/v1/models"):
                status, _, answer = ask(port, path, body, "GET" if "models" in path else "POST", **headers)
                assert (status, error_of(answer)["code"]) == (401, "invalid_api_key")
        for key in ("sk-first", "sk-second"):
            with openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key=key) as client:
                assert client.completions.create(model=MODEL, prompt="a", max_tokens=1).choices
        assert ask(port, "/health", None, "GET")[0] == 200
        assert _refused(port) == {"unauthorized": 6}
        (pid,) = [
            int(path.name)
            for path in Path("/proc").glob("[0-9]*")
            if f"--port\0{port}\0".encode() in read(path / "cmdline")
        ]
        assert b"sk-" not in read(Path(f"/proc/{pid}/cmdline")) + read(Path(f"/proc/{pid}/environ"))
    assert "sk-" not in said.read_text()


@IN_PROCESS
def test_too_many_at_once_are_told_when_to_try_again(server: Deploy, tmp_path: Path, until: Until) -> None:
    url = f"http://127.0.0.1:{server.ports[0]}"
    with (
        serving(url, "--max-requests", 2, said=tmp_path / "said") as port,
        begin(port, {**LONG, "stream": True}),
        begin(port, LONG) as whole,
    ):
        until(lambda: server.metric("num_requests_running") == 2, "two running")
        status, headers, said = ask(port, ROUTES[0], json.dumps(GOOD).encode())

        assert (status, headers["retry-after"]) == (429, "1")
        assert error_of(said)["type"] == "rate_limit_error"
        assert _refused(port) == {"too_many_requests": 1}
        assert ask(port, "/health", None, "GET")[0] == 200
        # Who leaves is missed on the other side of the deployment's front too, and makes place.
        whole.close()
        until(lambda: server.metric("num_requests_running") == 1, "one running")
        assert ask(port, ROUTES[0], json.dumps(GOOD).encode())[0] == 200


def test_a_server_that_is_gone_is_unavailable(tmp_path: Path) -> None:
    with serving(f"http://127.0.0.1:{free_port()}", said=tmp_path / "said") as port:
        assert "does not answer" in (tmp_path / "said").read_text()
        for path, body, method in (
            (ROUTES[0], json.dumps(GOOD).encode(), "POST"),
            (ROUTES[0], json.dumps({**GOOD, "stream": True}).encode(), "POST"),
            ("/health", None, "GET"),
        ):
            status, headers, said = ask(port, path, body, method)
            assert (status, headers["retry-after"]) == (503, "1")
            assert error_of(said)["type"] == "server_error"
        assert _refused(port) == {"not_ready": 2}
        # Nothing is known of the model's text.
        for path, content, says in (
            (ROUTES[1], CHAT, "no chat template"),
            (ROUTES[0], {**GOOD, "logprobs": 0}, "tokenizer"),
        ):
            status, _, said = ask(port, path, json.dumps(content).encode())
            assert status == 400
            assert says in error_of(said)["message"]


def test_who_asks_without_reading_answers_holds_neither_memory_nor_others(tmp_path: Path) -> None:
    with serving(f"http://127.0.0.1:{free_port()}", said=tmp_path / "said") as port:
        pid = _server(port)
        before = _resident(pid)
        with socket.create_connection(("127.0.0.1", port), timeout=1) as line:
            try:
                line.sendall(b"GET / HTTP/1.1\r\n\r\n" * (12 << 20 >> 4))
                pytest.fail("the server reads on though no answer is read")
            except TimeoutError:
                pass
            assert ask(port, "/v1/models", None, "GET")[0] == 200
            assert _resident(pid) - before < 32 << 20


def test_a_head_without_an_end_holds_nobody(tmp_path: Path) -> None:
    with (
        serving(f"http://127.0.0.1:{free_port()}", said=tmp_path / "said") as port,
        socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S) as line,
    ):
        before = _resident(pid := _server(port))
        with suppress(ConnectionError):
            line.sendall(b"GET / HTTP/1.1\r\nx: " + b"a" * (88 << 20))
        assert ask(port, "/v1/models", None, "GET")[0] == 200
        assert _resident(pid) - before < 32 << 20


def _server(port: int) -> int:
    """The process of `serve`."""
    (pid,) = [pid for pid, line in command_lines() if "serve" in line and str(port) in line]
    return pid


def _resident(pid: int) -> int:
    """The most bytes of memory that a process has had (proc_pid_status(5))."""
    return numbers_of(pid)["VmHWM"] << 10


def tokenizer(build: Path, folder: Path, template: str) -> Path:
    """A copy of a build's tokenizer with this chat template."""
    shutil.copytree(build / "tokenizer", folder)
    (folder / "chat_template.jinja").write_text(template)
    return folder


@IN_PROCESS
def test_a_template_that_makes_too_much_spoils_its_own_chats_alone(
    server: Deploy, tiny_build: Path, tmp_path: Path
) -> None:
    bomb = "{% set said = messages[0].content %}{{ said.ljust(10 ** 9) if said == 'bomb' else said }}"
    folder = tokenizer(tiny_build, tmp_path / "tokenizer", bomb)
    url = f"http://127.0.0.1:{server.ports[0]}"
    with serving(url, "--tokenizer", folder, said=tmp_path / "said") as port:
        for content, status in (("bomb", 400), ("a", 200), ("bomb", 400), ("b", 200)):
            body = json.dumps({**CHAT, "messages": [{"role": "user", "content": content}]}).encode()
            found, _, said = ask(port, ROUTES[1], body)
            assert found == status, said
            if status == 400:
                assert "too long a prompt of these messages" in error_of(said)["message"]
        assert ask(port, ROUTES[0], json.dumps(GOOD).encode())[0] == 200
        assert ask(port, "/health", None, "GET")[0] == 200


@IN_PROCESS
def test_a_template_with_tools(server: Deploy, tiny_build: Path, tmp_path: Path) -> None:
    folder = tokenizer(tiny_build, tmp_path / "tokenizer", TOOL_TEMPLATE)
    url = f"http://127.0.0.1:{server.ports[0]}"
    with (
        serving(url, "--tokenizer", folder, said=tmp_path / "said") as port,
        openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0) as client,
    ):
        asked: Any = {"model": MODEL, "messages": CHAT["messages"], "tools": [TOOL], "max_tokens": 120}
        named: Any = {"type": "function", "function": {"name": "look_up"}}
        made = client.chat.completions.create(**asked, tool_choice=named, temperature=0)
        (call,) = made.choices[0].message.tool_calls or []
        assert call.type == "function"
        assert call.function.name == "look_up"
        assert 0 <= json.loads(call.function.arguments)["number"] <= 99
        assert made.choices[0].finish_reason == "tool_calls"

        # What the model said goes back to it, with the tool's answer.
        back = [
            *CHAT["messages"],
            made.choices[0].message.model_dump(exclude_none=True),
            {"role": "tool", "tool_call_id": call.id, "content": "7"},
        ]
        again = client.chat.completions.create(**{**asked, "messages": back, "max_tokens": 8}, temperature=0)
        assert again.usage
        assert made.usage
        assert again.usage.prompt_tokens > made.usage.prompt_tokens

        streamed = list(
            client.chat.completions.create(**asked, tool_choice=named, temperature=0, stream=True)
        )
        calls = [call for chunk in streamed for call in chunk.choices[0].delta.tool_calls or ()]
        arguments = [call.function.arguments or "" for call in calls if call.function]
        assert "".join(arguments) == call_arguments(made)
        # Named once, in however many pieces they come.
        names = [(call.function and call.function.name, bool(call.id)) for call in calls]
        assert names == [("look_up", True), *[(None, False)] * (len(calls) - 1)]
        with client.chat.completions.stream(**asked, tool_choice=named, temperature=0) as events:
            (final,) = events.get_final_completion().choices[0].message.tool_calls or []
        assert final.function.arguments == call_arguments(made)
        assert streamed[-1].choices[0].finish_reason == "tool_calls"


def counts(made: ChatCompletion) -> tuple[int, int]:
    """The tokens of the prompt and of the answer; what the cache had depends on earlier requests."""
    assert made.usage
    return made.usage.prompt_tokens, made.usage.completion_tokens


@IN_PROCESS
def test_older_functions_and_an_effort_are_served_as_tools_and_template_values(
    server: Deploy, tiny_build: Path, tmp_path: Path
) -> None:
    """Functions, which are tools of before; an effort; and what only changes speed."""
    folder = tokenizer(tiny_build, tmp_path / "tokenizer", TOOL_TEMPLATE)
    url = f"http://127.0.0.1:{server.ports[0]}"
    with (
        serving(url, "--tokenizer", folder, said=tmp_path / "said") as port,
        openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0) as client,
    ):
        create, messages = client.chat.completions.create, CHAT["messages"]
        shared: Any = {"model": MODEL, "max_tokens": 120, "temperature": 0}
        old: Any = {"functions": [TOOL["function"]], "function_call": {"name": "look_up"}}
        new: Any = {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "look_up"}}}
        asked = {**shared, "messages": messages}
        made, expected = create(**asked, **old), create(**asked, **new)
        call = made.choices[0].message.function_call
        assert call
        assert (call.name, call.arguments) == ("look_up", call_arguments(expected))
        assert made.choices[0].finish_reason == "function_call"
        assert counts(made) == counts(expected)
        assert not made.choices[0].message.tool_calls

        chunks = list(create(**asked, **old, stream=True))
        told = [called for chunk in chunks if (called := chunk.choices[0].delta.function_call)]
        assert "".join(part.arguments or "" for part in told) == call.arguments
        assert [part.name for part in told] == ["look_up", *[None] * (len(told) - 1)]
        assert chunks[-1].choices[0].finish_reason == "function_call"

        said = made.choices[0].message.model_dump(exclude_none=True)
        back = [*messages, said, {"role": "function", "name": "look_up", "content": "7"}]
        tool = {"role": "tool", "tool_call_id": "1", "content": "7"}
        calls = [*messages, expected.choices[0].message.model_dump(exclude_none=True), tool]
        again = create(**shared, messages=back, functions=old["functions"])
        assert counts(again) == counts(create(**shared, messages=calls, tools=[TOOL]))

        prompt = f"<|endoftext|># Effort: low\nuser: {messages[0]['content']}\n"
        effort = create(**{**asked, "max_tokens": 8}, reasoning_effort="low")
        assert effort.choices[0].message.content == server.generate(
            prompt, max_tokens=8, add_special_tokens=False
        )
        plain = create(**{**asked, "max_tokens": 8}).choices[0].message.content
        free: Any = {"prediction": {"type": "content", "content": "abc"}, "prompt_cache_retention": "24h"}
        assert create(**{**asked, "max_tokens": 8}, **free).choices[0].message.content == plain
        with pytest.raises(openai.BadRequestError, match="no verbosity") as caught:
            create(**asked, verbosity="low")
        assert caught.value.param == "verbosity"
        with pytest.raises(openai.NotFoundError, match="/v1/chat/completions") as missing:
            client.embeddings.create(model=MODEL, input="a")
        assert missing.value.type == "invalid_request_error"


@IN_PROCESS
def test_text_behind_a_reasoning_mark_that_the_template_opens_is_reasoning(
    server: Deploy, tiny_build: Path, tmp_path: Path
) -> None:
    """DeepSeek-R1's template ends in the mark that begins the reasoning, and the tiny model never ends it."""
    folder = tokenizer(tiny_build, tmp_path / "tokenizer", THINKING_TEMPLATE)
    url = f"http://127.0.0.1:{server.ports[0]}"
    with (
        serving(url, "--tokenizer", folder, said=tmp_path / "said") as port,
        openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0) as client,
    ):
        messages = CHAT["messages"]
        said = server.generate(
            f"<|endoftext|>{messages[0]['content']}<think>", max_tokens=24, add_special_tokens=False
        )
        asked: Any = {"model": MODEL, "messages": messages, "max_tokens": 24, "temperature": 0}
        message = client.chat.completions.create(**asked).choices[0].message.model_dump()
        assert (message["reasoning_content"], message["reasoning"]) == (said, said)
        assert not message["content"]
        deltas = [
            chunk.choices[0].delta.model_dump()
            for chunk in client.chat.completions.create(**asked, stream=True)
            if chunk.choices
        ]
        assert "".join(delta.get("reasoning_content") or "" for delta in deltas) == said
        assert not any(delta["content"] for delta in deltas)


def call_arguments(made: Any) -> str:
    arguments: str = made.choices[0].message.tool_calls[0].function.arguments
    return arguments


@IN_PROCESS
def test_a_deployment_has_the_api_from_its_start_to_its_end(
    deployer: Deployer, build_copy: Path, tiny_recipe: Path, tmp_path: Path, until: Until
) -> None:
    keys = tmp_path / "keys.txt"
    keys.write_text("sk-one\n")
    deploy = deployer(build_copy, "--api-keys", str(keys), recipe=tiny_recipe, with_api=True)

    def answers() -> bool:
        with socket.socket() as line:
            return line.connect_ex(("127.0.0.1", deploy.api_port)) == 0

    until(answers, "somebody who listens")
    until(lambda: deploy.is_ready, "the server ready")
    assert f"OpenAI   http://127.0.0.1:{deploy.api_port}/v1" in deploy.said.read_text()
    with openai.OpenAI(base_url=deploy.api, api_key="sk-one", max_retries=0) as client:
        assert client.completions.create(model=MODEL, prompt="a", max_tokens=1).choices

        # A process that dies is started again, and knows where the model is.
        os.kill(_api(deploy), signal.SIGKILL)
        until(lambda: ask(deploy.api_port, "/health", None, "GET")[0] == 200, "the API again")
        chunks = client.completions.create(
            model=MODEL, prompt="class A:\n", max_tokens=200, stream=True, extra_body={"ignore_eos": True}
        )
        texts = [next(chunks).choices[0].text]

        # What runs may end, and nothing new begins.
        deploy.process.send_signal(signal.SIGTERM)
        texts += [chunk.choices[0].text for chunk in chunks]
    assert len("".join(texts)) > 200
    assert deploy.ended() == 0
    assert not answers()
    assert "sk-one" not in deploy.said.read_text() + (build_copy / "openai.log").read_text()


@pytest.mark.sweep
@ONLY_IN_PROCESS
def test_a_stopped_process_of_the_api_is_followed_by_another(
    deployer: Deployer, build_copy: Path, tiny_recipe: Path, until: Until
) -> None:
    deploy = deployer(build_copy, recipe=tiny_recipe, with_api=True)
    until(lambda: deploy.is_ready, "the server ready")
    log = build_copy / "tritonserver.log"
    # Before it was told where the model is, it was asked.
    until(lambda: ask(deploy.api_port, "/health", None, "GET")[0] == 200, "the API")

    os.kill(first := _api(deploy), signal.SIGSTOP)

    until(lambda: "has not answered 6 times in a row; another one begins" in log.read_text(), "its end", 60)
    assert ask(deploy.api_port, "/health", None, "GET")[0] == 200
    assert _api(deploy) != first
    with openai.OpenAI(base_url=deploy.api, api_key="none", max_retries=0) as client:
        assert client.completions.create(model=MODEL, prompt="a", max_tokens=1).choices
    assert deploy.stop() == 0


def _api(deploy: Deploy) -> int:
    (pid,) = [
        int(path.name)
        for path in Path("/proc").glob("[0-9]*")
        if b"trtspec.gateway.openai\0" in (line := read(path / "cmdline"))
        and str(deploy.said.parent).encode() in line
    ]
    return pid
