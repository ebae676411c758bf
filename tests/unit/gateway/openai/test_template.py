"""Chat templates, held to what transformers makes of them, and within their bounds."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from trtspec.gateway.openai.errors import ApiError
from trtspec.gateway.openai.job import continued, template_messages, template_values
from trtspec.gateway.openai.renderer import Renderer
from trtspec.gateway.openai.schema import ChatRequest
from trtspec.gateway.openai.template import ChatTemplate

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
# In the manners of the families: Llama's headers, Qwen's tags, loop controls, sums and marks for training.
TEMPLATES = {
    "headers": """{{- bos_token }}
{%- for message in messages %}
    {{- '<|h|>' + message['role'] + '<|e|>\n\n' + message['content'] | trim }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|h|>assistant' }}
{%- endif %}
""",
    "tags": """{%- if tools %}
    {%- for tool in tools %}{{ tool | tojson }}
    {% endfor %}
{%- endif %}
{%- for m in messages %}
    {{- m.role }}
    {%- for c in m.tool_calls or [] %}{{ c.function.arguments | tojson(indent=2) }}{% endfor %}
    {{- m.content }}
{%- endfor %}""",
    "controls": """{% for m in messages %}
    {% if loop.first %}{% continue %}{% endif %}
    {{ m.content }}
    {% if m.role == 'tool' %}{% break %}{% endif %}
{% endfor %}{{ eos_token }}""",
    "sums": """{% set ns = namespace(n=0) %}
{% for m in messages %}{% set ns.n = ns.n + m.content | length %}{% endfor %}
{{ ns.n }}{% generation %}{{ messages[-1].content }}{% endgeneration %}""",
}


CHATML = """{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}"""


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
    source = TEMPLATES.get(name) or (TINY / "chat_template.jinja").read_text()
    (tmp_path / "chat_template.jinja").write_text(source)
    template = ChatTemplate.load(tmp_path)
    assert template
    expected = AutoTokenizer.from_pretrained(tmp_path).apply_chat_template(
        MESSAGES, tools=TOOLS, tokenize=False, add_generation_prompt=True
    )

    assert render(template, MESSAGES, TOOLS) == expected
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


def test_a_named_default_counts_and_a_folder_may_have_none(tmp_path: Path) -> None:
    assert ChatTemplate.load(tmp_path) is None
    named = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d{{ eos_token }}"}]
    config = {"chat_template": named, "eos_token": {"content": "</s>"}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))

    template = ChatTemplate.load(tmp_path)
    assert template
    assert render(template, []) == "d</s>"


def test_a_file_that_is_not_json_says_so(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(ValueError, match="Expecting"):
        ChatTemplate.load(tmp_path)
