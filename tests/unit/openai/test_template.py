"""Chat templates, held to what transformers makes of them, and within their bounds."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from trtspec.openai.errors import ApiError
from trtspec.openai.template import ChatTemplate

TINY = Path(__file__).parents[3] / "recipes" / "tiny" / "target"
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


def render(template: ChatTemplate, messages: list[Any], tools: list[Any] | None = None) -> str:
    return asyncio.run(template.render(messages, tools, {}))


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


def test_a_named_default_counts_and_a_folder_may_have_none(tmp_path: Path) -> None:
    assert ChatTemplate.load(tmp_path) is None
    named = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d{{ eos_token }}"}]
    config = {"chat_template": named, "eos_token": {"content": "</s>"}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))

    template = ChatTemplate.load(tmp_path)
    assert template
    assert render(template, []) == "d</s>"


def test_a_broken_template_says_so(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("{% for %}")
    with pytest.raises(ValueError, match="chat template cannot be read"):
        ChatTemplate.load(tmp_path)


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
    ],
)
def test_what_a_template_may_not_or_will_not_do_is_the_clients_error(source: str) -> None:
    with pytest.raises(ApiError) as caught:
        render(ChatTemplate(source, {}), [{"role": "user", "content": "a"}])
    assert (caught.value.status, caught.value.param) == (400, "messages")


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'a' * 10 ** 9 }}",
        "{{ 9 ** 9 ** 9 }}",
        "{{ (messages * 10 ** 9) | length }}",
        "{% for a in range(99999) %}{% for b in range(99999) %}{% set c = b %}{% endfor %}{% endfor %}",
        "{% for a in range(99999) %}{{ 'a' * 999 }}{% endfor %}",
    ],
)
def test_a_template_that_makes_too_much_is_stopped(source: str) -> None:
    template = ChatTemplate(source, {}, limit_s=0.5)
    begin = time.monotonic()
    with pytest.raises(ApiError, match="too much"):
        render(template, [{"role": "user", "content": "a"}])
    assert time.monotonic() - begin < 10


def test_the_bounds_let_ordinary_work_through() -> None:
    source = "{{ '-' * 40 }}{{ 3 * 4 }}{{ 2 ** 10 }}{{ '%s' % 1 }}"
    assert render(ChatTemplate(source, {}), []) == "-" * 40 + "1210241"


def test_more_values_do_not_replace_the_messages() -> None:
    template = ChatTemplate(
        "{{ enable_thinking }}{{ messages | length }}{{ bos_token }}", {"bos_token": "<s>"}
    )
    more = {"enable_thinking": False, "messages": [1, 2], "bos_token": "x"}
    assert asyncio.run(template.render([], None, more)) == "False0<s>"
