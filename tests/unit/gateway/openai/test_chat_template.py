"""Chat templates, held to what transformers makes of them, and within their bounds."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from trtspec.gateway.openai.chat_template import ChatTemplate, Renderer
from trtspec.gateway.openai.errors import ApiError
from trtspec.gateway.openai.model_request import continued, template_messages, template_values, with_tools
from trtspec.gateway.openai.schema import ChatRequest
from trtspec.models.tokenizer import BROKEN

TINY = Path(__file__).parents[4] / "recipes" / "tiny" / "target"
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "é": "<&>"}}}
]
CALL: Any = {"id": "123456789", "type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
MESSAGES: list[Any] = [
    {"role": "system", "content": "Be short."},
    {"role": "user", "content": "1 < 2?"},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "content": "3", "tool_call_id": "123456789"},
]
CALLS = """{%- for m in messages %}
    {%- for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}
{%- endfor %}"""
# In the manners of the families: Llama's headers, Qwen's tags, loop controls, sums and marks for training.
TEMPLATES = {
    "headers": CALLS
    + """{{- bos_token }}
{%- for message in messages %}
    {{- '<|h|>' + message['role'] + '<|e|>\n\n' + message['content'] | trim }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|h|>assistant' }}
{%- endif %}
""",
    "tags": CALLS
    + """{%- if tools %}
    {%- for tool in tools %}{{ tool | tojson }}
    {% endfor %}
{%- endif %}
{%- for m in messages %}
    {{- m.role }}
    {%- for c in m.tool_calls or [] %}{{ c.function.arguments | tojson(indent=2) }}{% endfor %}
    {{- m.content }}
{%- endfor %}""",
    "controls": CALLS
    + """{% for m in messages %}
    {% if loop.first %}{{ m.content }}{% continue %}{% endif %}
    {{ m.content }}
    {% if m.role == 'tool' %}{% break %}{% endif %}
{% endfor %}{{ eos_token }}""",
    "sums": CALLS
    + """{% set ns = namespace(n=0) %}
{% for m in messages %}{{ m.content }}{% set ns.n = ns.n + m.content | length %}{% endfor %}
{{ ns.n }}{% generation %}{{ messages[-1].content }}{% endgeneration %}""",
}


CHATML = """{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}"""


def sent(messages: list[Any]) -> list[Any]:
    """Returns transformers' messages as `template_messages` makes them: arguments are JSON."""

    def call(one: Any) -> Any:
        return {**one, "function": {**one["function"], "arguments": json.dumps(one["function"]["arguments"])}}

    return [
        {**message, "tool_calls": [call(one) for one in message["tool_calls"]]}
        if "tool_calls" in message
        else message
        for message in messages
    ]


def render(template: ChatTemplate, messages: list[Any], tools: list[Any] | None = None, **values: Any) -> str:
    async def run() -> str:
        renderer = Renderer(template)
        try:
            return await renderer.render(messages, tools, values)
        finally:
            await renderer.close()

    return asyncio.run(run())


@pytest.mark.parametrize("name", [*TEMPLATES, "tiny"])
def test_the_text_is_that_of_transformers(name: str, tmp_path: Path) -> None:
    for file in TINY.glob("*.json*"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    source = TEMPLATES.get(name) or CALLS + (TINY / "chat_template.jinja").read_text()
    (tmp_path / "chat_template.jinja").write_text(source)
    template = ChatTemplate.load(tmp_path)
    assert template
    expected = AutoTokenizer.from_pretrained(tmp_path).apply_chat_template(
        MESSAGES, tools=TOOLS, tokenize=False, add_generation_prompt=True
    )

    assert render(template, sent(MESSAGES), TOOLS) == expected
    assert expected


@pytest.mark.parametrize("source", [CHATML, CHATML.replace("message.content", "message.content | trim")])
@pytest.mark.parametrize("text", ["<", "end", " ```python\n ", "user", "1 < 2?"])
def test_a_prompt_that_goes_on_is_that_of_transformers(source: str, text: str) -> None:
    messages = [{"role": "user", "content": "1 < 2?"}, {"role": "assistant", "content": text}]
    asked = {"model": "m", "messages": messages, "continue_final_message": True}
    body = ChatRequest.model_validate(asked)
    made = render(ChatTemplate(source, {}), template_messages(body), None, **template_values(body, source))
    expected = AutoTokenizer.from_pretrained(TINY).apply_chat_template(
        messages, chat_template=source, tokenize=False, continue_final_message=True
    )

    assert continued(made, body) == expected


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (CHATML.replace("message.content", "message.content | upper"), "a"),
        (CHATML.replace("message.content", "message.content.split('</think>')[-1]"), "</think>a"),
        (CHATML, " "),
    ],
)
def test_a_message_that_the_template_changes_cannot_go_on(source: str, text: str) -> None:
    asked = {
        "model": "m",
        "messages": [{"role": "assistant", "content": text}],
        "continue_final_message": True,
    }
    body = ChatRequest.model_validate(asked)
    made = render(ChatTemplate(source, {}), template_messages(body), None, **template_values(body, source))
    with pytest.raises(ApiError, match="changes the last message"):
        continued(made, body)


def named(folder: Path, where: str) -> None:
    """Writes a tokenizer with a template for chats, and one for chats with tools, in one of the two ways."""
    for file in TINY.glob("*.json*"):
        (folder / file.name).write_bytes(file.read_bytes())
    chats, tools = "chats: " + CHATML, "tools: " + TEMPLATES["tags"]
    if where == "files":
        (folder / "additional_chat_templates").mkdir()
        (folder / "chat_template.jinja").write_text(chats)
        (folder / "additional_chat_templates" / "tool_use.jinja").write_text(tools)
        (folder / "additional_chat_templates" / "rag.jinja").write_text("rag")
        return
    config = json.loads((folder / "tokenizer_config.json").read_text())
    both = [{"name": "tool_use", "template": tools}, {"name": "default", "template": chats}]
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": both}))


@pytest.mark.parametrize("where", ["files", "a list"])
@pytest.mark.parametrize("tools", [None, TOOLS])
def test_chats_with_tools_have_the_template_for_tools(where: str, tools: Any, tmp_path: Path) -> None:
    named(tmp_path, where)
    template = ChatTemplate.load(tmp_path)
    assert template
    messages = MESSAGES if tools else MESSAGES[:2]
    expected = AutoTokenizer.from_pretrained(tmp_path).apply_chat_template(
        messages, tools=tools, tokenize=False, add_generation_prompt=True
    )

    assert render(template, sent(messages), tools) == expected
    assert expected.startswith("tools:" if tools else "chats:")
    # What reads the answer looks at the same one.
    assert ("tojson" in template.of(tools)) is bool(tools)


def test_the_processors_file_counts_last_and_a_folder_may_have_none(tmp_path: Path) -> None:
    assert ChatTemplate.load(tmp_path) is None
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "p"}))
    template = ChatTemplate.load(tmp_path)
    assert template
    assert template.source == "p"
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"chat_template": "d{{ eos_token }}", "eos_token": {"content": "</s>"}})
    )
    template = ChatTemplate.load(tmp_path)
    assert template
    assert render(template, []) == "d</s>"


@pytest.mark.parametrize("broken", [[{"name": "default"}], ["a"], [{"template": "a"}]])
def test_templates_without_names_are_broken(broken: Any, tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": broken}))
    with pytest.raises(BROKEN):
        ChatTemplate.load(tmp_path)


# DeepSeek-V3's manner: calls are of messages without content, and arguments are joined to text.
JOINING = """{%- for m in messages %}
    {%- if m['role'] == 'assistant' and m['content'] is none %}
        {%- for c in m['tool_calls'] %}{% set f = c['function'] %}
            {{- '<call>' + c['type'] + f['name'] + '\n' + f['arguments'] }}
        {%- endfor %}
    {%- elif m['role'] == 'assistant' %}{{ '<assistant>' + m['content'] + '<end>' }}
    {%- else %}{{ '<' + m['role'] + '>' + m['content'] }}
    {%- endif %}
{%- endfor %}{{ tools | tojson if tools }}"""
# Which has no calls and no results, as Granite 3's and a plain ChatML's.
TALKING = """{%- for m in messages %}{{ '<' + m.role + '>' + m.content }}{% endfor %}"""
SHAPES = {
    **TEMPLATES,
    "joining": JOINING,
    "talking": TALKING,
    "no content beside calls": """{%- for m in messages %}
    {%- if m.tool_calls %}{% set f = m.tool_calls[0].function %}
        {{- {"name": f.name, "parameters": f.arguments} | tojson }}
    {%- else %}{{ m.content }}{% endif %}
{%- endfor %}""",
    "one call": """{%- for m in messages %}
    {%- if m.tool_calls and m.tool_calls | length != 1 %}{{ raise_exception('one call at once') }}{% endif %}
    {{- m.content }}{% for c in m.tool_calls or [] %}{{ c.function | tojson }}{% endfor %}
{%- endfor %}""",
    "the first call": """{%- for m in messages %}
    {{- m.content }}{% if m.tool_calls %}{{ m.tool_calls[0].function | tojson }}{% endif %}
{%- endfor %}""",
    "writes what it gets": """{%- for m in messages %}
    {{- '<' ~ m.role ~ '>' ~ m.content }}
    {%- for c in m.tool_calls or [] %}{{ c.function.name ~ c.function.arguments }}{% endfor %}
{%- endfor %}""",
    "parameters": """None of these helps.{% for m in messages %}
    {{- m.content or '' }}
    {%- for c in m.tool_calls or [] %}<function={{ c.function.name }}>
        {%- for key, value in c.function.arguments.items() %}
            {{- '<' ~ key ~ '>' ~ (value if value is string else value | tojson) }}
        {%- endfor %}
    {%- endfor %}
{%- endfor %}""",
    "tests null": """{%- for m in messages %}
    {%- if m.content is not none %}<{{ m.role }}>{{ m.content }}{% endif %}
    {%- for c in m.tool_calls or [] %}{{ c.function | tojson }}{% endfor %}
{%- endfor %}""",
    "the last system": """{%- for m in messages %}
    {%- if m.role == 'user' and loop.last and messages[0].role == 'system' %}
        {{- messages[0].content }}
    {%- endif %}
    {%- if m.role != 'system' %}{{ m.content or '' }}{% endif %}
    {%- for c in m.tool_calls or [] %}{{ c.function | tojson }}{% endfor %}
{%- endfor %}""",
    "ids": """{%- for m in messages %}
    {{- m.content }}
    {%- for c in m.tool_calls or [] %}<|id|>{{ c.id }}{{ c.function.arguments | tojson }}{% endfor %}
{%- endfor %}""",
    "reads lists": """{%- for m in messages %}<{{ m.role }}>
    {%- if m.content is string %}{{ m.content | trim }}
    {%- else %}{% for part in m.content or [] %}{{ part.text | trim }}{% endfor %}{% endif %}
    {%- for c in m.tool_calls or [] %}{{ c.function | tojson }}{% endfor %}
{%- endfor %}""",
    "reads only lists": """{%- for m in messages %}<{{ m.role }}>
    {%- for part in m.content | selectattr('type', 'equalto', 'text') %}{{ part['text'] + ' ' }}{% endfor %}
    {%- for c in m.tool_calls or [] %}{{ c.function | tojson }}{% endfor %}
{%- endfor %}""",
    "reads the first part of a system": """{%- for m in messages %}<{{ m.role }}>
    {%- if m.role == 'system' %}{{ m.content if m.content is string else m.content[0].text }}
    {%- elif m.content is string %}{{ m.content }}
    {%- else %}{% for part in m.content or [] %}{{ part.text }}{% endfor %}{% endif %}
    {%- for c in m.tool_calls or [] %}{{ c.function | tojson }}{% endfor %}
{%- endfor %}""",
}


def call(name: str, arguments: str, number: int = 1) -> dict[str, Any]:
    return {
        "id": f"functions.{name}:{number}",
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def said(role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def result(name: str, content: Any, number: int = 1) -> dict[str, Any]:
    return said("tool", content, tool_call_id=f"functions.{name}:{number}")


PARTS = [{"type": "text", "text": "sierra"}, {"type": "text", "text": "tango"}]
CALLING = said("assistant", None, tool_calls=[call("alpha", '{"bravo": "charlie"}')])
BOTH = [call("alpha", '{"bravo": "charlie"}'), call("delta", '{"echo": ["foxtrot"]}', 2)]
CONVERSATIONS: dict[str, list[Any]] = {
    "a question": [said("user", "juliett")],
    "turns": [
        said("system", "kilo"),
        said("user", "juliett"),
        said("assistant", "lima"),
        said("user", "mike"),
    ],
    "a system in the middle": [said("user", "juliett"), said("system", "kilo"), said("user", "mike")],
    "a call": [said("user", "juliett"), CALLING, result("alpha", "november")],
    "a call and an empty content": [
        said("user", "juliett"),
        {**CALLING, "content": ""},
        result("alpha", "november"),
    ],
    "a call and a content": [
        said("user", "juliett"),
        {**CALLING, "content": "oscar"},
        result("alpha", "november"),
    ],
    "a call, and no more": [
        said("user", "juliett"),
        said("assistant", None, tool_calls=[call("alpha", "{}")]),
    ],
    "a system and a call": [
        said("system", "kilo"),
        said("user", "juliett"),
        CALLING,
        result("alpha", "november"),
    ],
    "a call and an answer": [
        said("user", "juliett"),
        CALLING,
        result("alpha", "november"),
        said("assistant", "lima"),
        said("user", "mike"),
    ],
    "two calls": [
        said("user", "juliett"),
        said("assistant", None, tool_calls=BOTH),
        result("alpha", "november"),
        result("delta", "papa", 2),
    ],
    "parts": [said("user", PARTS)],
    "parts of all": [
        said("system", PARTS),
        said("user", "juliett"),
        said("assistant", [{"type": "text", "text": "lima"}]),
        said("user", PARTS),
    ],
    "a refusal": [said("user", "juliett"), said("assistant", None, refusal="quebec"), said("user", "mike")],
    "old functions": [
        said("user", "juliett"),
        said("assistant", None, function_call={"name": "alpha", "arguments": '{"bravo": "charlie"}'}),
        said("function", "november", name="alpha"),
    ],
}
WORDS = {
    *("alpha", "bravo", "charlie", "delta", "echo", "foxtrot", "juliett", "kilo", "lima", "mike"),
    *("november", "oscar", "papa", "quebec", "sierra", "tango"),
}
FIRST, SECOND = (f"messages[1].tool_calls[{number}].function.name" for number in (0, 1))
REFUSED: dict[str, dict[str, str]] = {
    "controls": dict.fromkeys(("a call and an answer", "two calls"), "messages[3].content"),
    "joining": {"a call and a content": FIRST},
    "talking": {
        **{name: FIRST for name in CONVERSATIONS if "call" in name or "functions" in name},
        "a system and a call": FIRST.replace("1", "2"),
    },
    "no content beside calls": {"a call and a content": "messages[1].content", "two calls": SECOND},
    # The template's own refusal.
    "one call": {"two calls": "messages"},
    "the first call": {"two calls": SECOND},
    "the last system": {
        "a system in the middle": "messages[1].content",
        "a system and a call": "messages[0].content",
    },
    # The older form has no ids, which this template writes in place of names.
    "ids": {"old functions": FIRST},
}


def asked(messages: list[Any]) -> list[dict[str, Any]]:
    body = ChatRequest.model_validate({"model": "m", "messages": messages})
    return template_messages(with_tools(body))


@pytest.mark.parametrize("shape", SHAPES)
def test_nothing_that_was_said_is_lost_between_the_client_and_the_prompt(shape: str) -> None:
    """Each word of a conversation is in the prompt, or the refusal names one that would not be."""
    template, refused = ChatTemplate(SHAPES[shape], {}), {}

    async def run() -> None:
        renderer = Renderer(template)
        try:
            for name, messages in CONVERSATIONS.items():
                try:
                    check(name, await renderer.render(asked(messages), TOOLS, {}))
                except ApiError as error:
                    refused[name] = (error.status, error.param)
        finally:
            await renderer.close()

    def check(name: str, prompt: str) -> None:
        there = {word for word in WORDS if word in json.dumps(CONVERSATIONS[name])}
        assert {word for word in there if word not in prompt} == set(), (name, prompt)
        # Neither null nor a dictionary is told as Python writes it, nor JSON as a string of JSON.
        assert not [raw for raw in ("{'", '\\"', ">None") if raw in prompt], (name, prompt)

    asyncio.run(run())
    assert refused == {name: (400, field) for name, field in REFUSED.get(shape, {}).items()}


def parsed(messages: list[Any]) -> list[Any]:
    """Returns messages of the API as transformers wants them: arguments are what their JSON says."""

    def of(one: Any) -> Any:
        return {**one, "function": {**one["function"], "arguments": json.loads(one["function"]["arguments"])}}

    return [
        {**message, "tool_calls": [of(one) for one in message["tool_calls"]]}
        if "tool_calls" in message
        else message
        for message in messages
    ]


@pytest.mark.parametrize(
    ("shape", "name", "how"),
    [
        ("joining", "a call", list),
        ("joining", "two calls", list),
        ("tests null", "a call", parsed),
        ("parameters", "two calls", parsed),
        ("reads lists", "parts of all", list),
        ("reads only lists", "parts", list),
    ],
)
def test_a_template_gets_what_transformers_would_give_it(shape: str, name: str, how: Any) -> None:
    messages = CONVERSATIONS[name]
    expected = AutoTokenizer.from_pretrained(TINY).apply_chat_template(
        how(messages), tools=TOOLS, chat_template=SHAPES[shape], tokenize=False, add_generation_prompt=True
    )
    assert render(ChatTemplate(SHAPES[shape], {}), asked(messages), TOOLS) == expected


@pytest.mark.parametrize("content", [PARTS, [*PARTS, {"type": "text", "text": " "}]])
def test_parts_that_a_template_reads_as_text_are_lines(content: Any) -> None:
    """`parse_chat_message_content_parts` of TensorRT-LLM's server joins them so, and vLLM's too."""
    made = render(ChatTemplate(CHATML, {}), asked([said("user", content)]), None)
    text = "\n".join(part["text"] for part in content)
    assert made == f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize("shape", ["reads lists", "talking"])
def test_a_list_of_texts_goes_on_as_that_of_transformers(shape: str) -> None:
    source, messages = SHAPES[shape], [said("user", "a"), said("assistant", PARTS)]
    asked = {"model": "m", "messages": messages, "continue_final_message": True}
    body = ChatRequest.model_validate(asked)
    made = render(ChatTemplate(source, {}), template_messages(body), None, **template_values(body, source))
    expected = AutoTokenizer.from_pretrained(TINY).apply_chat_template(
        messages if shape == "reads lists" else [messages[0], said("assistant", "sierra\ntango")],
        chat_template=source,
        tokenize=False,
        continue_final_message=True,
    )
    assert continued(made, body) == expected


def test_a_file_that_is_not_json_says_so(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(ValueError, match="Expecting"):
        ChatTemplate.load(tmp_path)


# What is hostile happens for the message "bomb" alone.
BOMB = "{%% if messages[0].content == 'bomb' %%}%s{%% else %%}fine{%% endif %%}{{ messages[0].content }}"
FINE = "fine{{ messages[0].content }}"
LIMIT_S = 1.0


def use(source: str, work: Callable[[Renderer], Awaitable[Any]], timeout_s: float = LIMIT_S) -> Any:
    async def run() -> Any:
        renderer = Renderer(ChatTemplate(source, {"bos_token": "<s>"}), timeout_s)
        try:
            return await work(renderer)
        finally:
            await renderer.close()

    return asyncio.run(run())


async def render_by(renderer: Renderer, content: str = "a", **more: Any) -> str:
    """Returns what the template writes before the message."""
    made = await renderer.render([{"role": "user", "content": content}], None, more)
    return made.removesuffix(content)


def refusal(source: str) -> ApiError:
    async def work(renderer: Renderer) -> ApiError:
        with pytest.raises(ApiError) as caught:
            await render_by(renderer)
        return caught.value

    error: ApiError = use(source, work)
    assert (error.status, error.param) == (400, "messages")
    return error


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages[7].content }}",
        "{{ 1 / 0 }}",
        "{{ none.x.y }}",
        "{% include 'secrets' %}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{{ '%c' % 55296 }}{{ messages[0].content }}",
        "{% for i in range(10 ** 9) %}{% endfor %}",
    ],
)
def test_a_chat_template_that_fails_or_is_forbidden_refuses_the_messages(source: str) -> None:
    assert "refuses these messages" in refusal(source).message


def test_a_broken_template_says_so() -> None:
    assert "template cannot be read: " in refusal("{% for %}").message


@pytest.mark.parametrize(
    "bomb",
    [
        "{{ 'a' * 10 ** 9 }}",
        "{{ 'a'.ljust(10 ** 9) }}",
        "{{ 'a' | center(10 ** 9) }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ '{:1000000000}'.format(1) }}",
        "{{ (['a' * 10 ** 6] * 2000) | join }}",
        "{{ (messages * 10 ** 9) | length }}",
        "{% set n = namespace(x='ab') %}{% for i in range(40) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
        "{{ 9 ** (9 ** (8 + messages | length)) }}",
        "{% for a in range(99999) %}{% for b in range(99999) %}{% set c = b %}{% endfor %}{% endfor %}",
        "{% for a in range(99999) %}{{ 'a' * 999 }}{% endfor %}",
    ],
)
def test_a_template_that_makes_too_much_is_stopped_and_the_next_prompt_is_made(bomb: str) -> None:
    async def work(renderer: Renderer) -> None:
        for _ in range(2):
            with pytest.raises(ApiError, match="too long a prompt of these messages") as caught:
                await render_by(renderer, "bomb")
            assert (caught.value.status, caught.value.param) == (400, "messages")
            assert await render_by(renderer) == "fine"

    use(BOMB % bomb, work)
    # It was another process that made it.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 4 << 20


def test_a_prompt_that_waits_behind_one_that_is_stopped_is_made() -> None:
    async def work(renderer: Renderer) -> list[Any]:
        asked = [render_by(renderer, content) for content in ("a", "bomb", "b", "bomb", "c")]
        return await asyncio.gather(*asked, return_exceptions=True)

    said = use(BOMB % "{{ 9 ** (9 ** (8 + messages | length)) }}", work)
    assert said[::2] == ["fine"] * 3
    assert [type(error) for error in said[1::2]] == [ApiError, ApiError]


def test_no_short_prompt_waits_behind_a_long_one() -> None:
    async def work(renderer: Renderer) -> str:
        long = asyncio.ensure_future(render_by(renderer, "bomb", blob="a" * 300_000))
        said = await render_by(renderer)
        assert not long.done()
        long.cancel()
        return said

    slow = "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}slow"
    assert use(BOMB % slow, work, timeout_s=60) == "fine"


def test_nobody_gets_the_prompt_of_one_who_left() -> None:
    async def work(renderer: Renderer) -> str:
        await render_by(renderer)
        left = asyncio.ensure_future(render_by(renderer, "bomb"))
        while not renderer._short._turn.locked():
            await asyncio.sleep(0)
        left.cancel()
        with pytest.raises(asyncio.CancelledError):
            await left
        return await render_by(renderer)

    slow = "{% for a in range(9999) %}{% for b in range(300) %}{% endfor %}{% endfor %}slow"
    assert use(BOMB % slow, work, timeout_s=30) == "fine"


def test_who_leaves_in_the_middle_of_a_short_prompt_costs_no_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("trtspec.gateway.openai.chat_template._RESTART_S", 30)

    async def work(renderer: Renderer) -> None:
        await render_by(renderer)
        process = renderer._short._process
        left = asyncio.ensure_future(render_by(renderer))
        while not renderer._short._turn.locked():
            await asyncio.sleep(0)
        left.cancel()
        with pytest.raises(asyncio.CancelledError):
            await left
        assert await render_by(renderer) == "fine"
        assert renderer._short._process is process

    use(FINE, work, timeout_s=30)


def test_a_process_that_is_stopped_holds_the_chats_no_longer_than_its_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Another process must have begun by then, on a busy machine too.
    monkeypatch.setattr("trtspec.gateway.openai.chat_template._BESIDES_S", 5)

    async def work(renderer: Renderer) -> Any:
        await render_by(renderer)
        assert renderer._short._process
        os.kill(renderer._short._process.pid, signal.SIGSTOP)
        return await asyncio.gather(*(render_by(renderer) for _ in range(3)), return_exceptions=True)

    first, *others = use(FINE, work)
    assert isinstance(first, ApiError)
    assert (first.status, first.message) == (
        504,
        "the process that renders the chat template does not answer; try again",
    )
    assert others == ["fine", "fine"]


STARTER = """
import asyncio
from trtspec.gateway.openai.chat_template import Renderer
from trtspec.gateway.openai.chat_template import ChatTemplate

async def run():
    source = "{% if messages %}{{ 9 ** (9 ** (8 + messages | length)) }}{% endif %}"
    renderer = Renderer(ChatTemplate(source, {}), 2)
    await renderer.render([], None, {})
    print(renderer._short._process.pid, flush=True)
    await renderer.render([{"role": "user", "content": "a"}], None, {})

asyncio.run(run())
"""


def _is_there(process: Path) -> bool:
    """Says whether it runs; one that has ended has no command line, and then no folder."""
    try:
        return bool((process / "cmdline").read_bytes())
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_the_chat_template_process_ends_when_its_starter_is_killed() -> None:
    """Even in the middle of something, since its time is up then too."""
    with subprocess.Popen([sys.executable, "-c", STARTER], stdout=subprocess.PIPE) as starter:
        assert starter.stdout
        process = Path("/proc", starter.stdout.readline().decode().strip())
        assert b"trtspec.gateway.openai.chat_template_process" in (process / "cmdline").read_bytes()
        starter.kill()
    deadline = time.monotonic() + 120
    while _is_there(process):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_the_bounds_let_ordinary_work_through() -> None:
    source = "{{ '-' * 40 }}{{ 3 * 4 }}{{ 2 ** 10 }}{{ '%s' % 1 }}{{ messages[0].content | length }}"
    long = "é😀" + "a" * 15_000_000
    whole = source + "{{ messages[0].content | trim }}"
    made = use(whole, lambda renderer: render_by(renderer, long), 30)
    assert made == "-" * 40 + f"1210241{len(long)}"


def test_more_values_do_not_replace_the_messages() -> None:
    source = "{{ enable_thinking }}{{ number }}{{ messages | length }}{{ bos_token }}"
    more: Any = {"enable_thinking": False, "number": 10**30, "messages": [1, 2], "bos_token": "x"}
    made = use(source, lambda renderer: renderer.render([], None, more))
    assert made == f"False{10**30}0<s>"
