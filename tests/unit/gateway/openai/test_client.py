"""OpenAI's own client and the application: what the client keeps of an answer, and sends back."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import httpx2
import openai
import pytest
import uvloop
from pydantic import BaseModel

from trtspec.gateway.openai.app import ModelText, make_app
from trtspec.gateway.openai.chat_template import ChatTemplate, Renderer
from trtspec.gateway.openai.keys import Keys
from trtspec.gateway.openai.model_output import failure
from trtspec.gateway.openai.upstream import Upstream
from trtspec.gateway.refusals import Refusals
from trtspec.serving.tokenizer import Tokenizer

TINY = Path(__file__).parents[4] / "recipes" / "tiny" / "target"
# Of Hermes's manner.
SOURCE = """{%- for m in messages %}<{{ m.role }}>{{ m.content }}
    {%- for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}
{%- endfor %}{{ tools | tojson if tools }}"""
FUNCTION: Any = {
    "name": "f",
    "parameters": {"type": "object", "properties": {}, "additionalProperties": False},
}
TOOL: Any = {"type": "function", "function": {**FUNCTION, "strict": True}}
QUESTION: Any = {"role": "user", "content": "a"}
LACKS = "400 guided_decoding_guide_type is json_schema; it must be left out"
LACKS += ", since the target engine follows no guide"
COUNTS = {"num_input_tokens": 7, "num_output_tokens": 5, "finish_reason": "stop"}
T = TypeVar("T")


class Model(Upstream):
    """Says what it is told to say, and keeps what it is asked."""

    def __init__(self, said: list[dict[str, Any]]) -> None:
        super().__init__("m", Refusals("openai", "m"))
        self._said, self.asked = said, list[dict[str, Any]]()

    async def ask(self, inputs: dict[str, Any], *_: Any) -> AsyncGenerator[list[dict[str, Any]], None]:
        self.asked.append(inputs)
        for one in self._said:
            if "error" in one:
                raise failure(one["error"], 400)
            yield [one]


def use(model: Model, work: Callable[[openai.AsyncOpenAI], Awaitable[T]], *, names: bool = True) -> T:
    async def run() -> T:
        template = ChatTemplate(SOURCE, {})
        renderer, texts = Renderer(template), ModelText(template, Tokenizer.load(TINY) if names else None)
        app = make_app(model, texts, renderer, Keys([]), Refusals("openai", "m"), max_requests=9)
        transport = httpx2.ASGITransport(app)
        try:
            async with httpx2.AsyncClient(transport=transport) as http:
                client = openai.AsyncOpenAI(
                    base_url="http://api/v1", api_key="none", http_client=http, max_retries=0
                )
                return await work(client)
        finally:
            await renderer.close()

    return uvloop.run(run())


class Answer(BaseModel):
    number: int


def test_an_answer_that_the_client_has_parsed_comes_back_as_it_keeps_it() -> None:
    told = json.dumps({"number": 7})
    model = Model(
        [{"text_output": f'{told}<tool_call>{{"name": "f", "arguments": {{}}}}</tool_call>', **COUNTS}]
    )

    async def work(client: openai.AsyncOpenAI) -> None:
        made = await client.chat.completions.parse(
            model="m", messages=[QUESTION], tools=[TOOL], response_format=Answer
        )
        message = made.choices[0].message
        assert message.parsed == Answer(number=7)
        assert message.tool_calls
        dumps: Any = (message.model_dump(), message.model_dump(exclude_none=True), message.to_dict())
        for kept in dumps:
            kept["tool_calls"][0] |= {"index": 0}
            result = {"role": "tool", "tool_call_id": kept["tool_calls"][0]["id"], "content": "8"}
            again: Any = [QUESTION, {**kept, "annotations": [], "reasoning_content": "hm"}, result]
            await client.chat.completions.create(model="m", messages=again, tools=[TOOL])
            assert told in model.asked[-1]["text_input"]
            assert '<tool_call>{"name": "f", "arguments": {}}' in model.asked[-1]["text_input"]

    use(model, work)


def test_the_items_of_a_parsed_response_come_back_as_the_client_keeps_them() -> None:
    told = json.dumps({"number": 7})
    model = Model(
        [{"text_output": f'{told}<tool_call>{{"name": "f", "arguments": {{}}}}</tool_call>', **COUNTS}]
    )

    async def work(client: openai.AsyncOpenAI) -> None:
        tools: Any = [{"type": "function", **FUNCTION, "strict": True}]
        made = await client.responses.parse(model="m", input="a", tools=tools, text_format=Answer)
        assert made.output_parsed == Answer(number=7)
        items: Any = [item.model_dump() for item in made.output]
        result: Any = {"type": "function_call_output", "call_id": items[-1]["call_id"], "output": "8"}
        await client.responses.create(model="m", input=[QUESTION, *items, result])
        assert told in model.asked[-1]["text_input"]

    use(model, work)


@pytest.mark.parametrize("route", ["chat", "text", "ids"])
def test_each_chunk_tells_the_usage_so_far_where_it_is_asked_for(route: str) -> None:
    """As vLLM's `continuous_usage_stats`, by which GuideLLM measures; the last count is the model's own."""
    said: Any = [{"text_output": "a", "output_ids": 5}, {"text_output": "b", "output_ids": [5, 6]}]
    model = Model([*said, {"text_output": "c", "output_ids": [7, 8], **COUNTS}])
    options: Any = {"include_usage": True, "continuous_usage_stats": True}
    prompt: Any = {"text": "def f", "ids": [1, 2, 3]}.get(route)

    async def work(client: openai.AsyncOpenAI) -> list[Any]:
        asked: Any = {"model": "m", "stream": True, "stream_options": options}
        if route == "chat":
            return [one async for one in await client.chat.completions.create(messages=[QUESTION], **asked)]
        return [one async for one in await client.completions.create(prompt=prompt, **asked)]

    chunks = use(model, work)
    (inputs,) = model.asked
    given = len(prompt) if route == "ids" else len(Tokenizer.load(TINY).encode(inputs["text_input"]))
    if route == "chat":
        given = len(Tokenizer.load(TINY).encode(inputs["text_input"], add_special_tokens=False))
    assert inputs["return_output_ids"]
    *parts, last = [chunk.usage for chunk in chunks]
    made = [0, 1, 3, 5] if route == "chat" else [1, 3, 5]
    assert [(part.prompt_tokens, part.completion_tokens, part.total_tokens) for part in parts] == [
        (given, number, given + number) for number in made
    ]
    # The stand-in's own.
    assert (last.prompt_tokens, last.completion_tokens) == (7, 5)


def test_no_chunk_tells_usage_where_the_last_one_is_not_to() -> None:
    model = Model([{"text_output": "a"}, {"text_output": "c", **COUNTS}])

    async def work(client: openai.AsyncOpenAI) -> list[Any]:
        options: Any = {"continuous_usage_stats": True}
        asked: Any = {"model": "m", "stream": True, "stream_options": options, "prompt": "a"}
        return [one async for one in await client.completions.create(**asked)]

    assert [chunk.usage for chunk in use(model, work)] == [None, None]


def test_the_usage_so_far_needs_a_tokenizer() -> None:
    async def work(client: openai.AsyncOpenAI) -> None:
        options: Any = {"include_usage": True, "continuous_usage_stats": True}
        with pytest.raises(openai.BadRequestError, match="no tokenizer"):
            await client.completions.create(model="m", prompt="a", stream=True, stream_options=options)

    use(Model([]), work, names=False)


NAMED: Any = {"type": "function", "function": {"name": "f"}}
SCHEMA: Any = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}


@pytest.mark.parametrize(
    ("asked", "field", "says"),
    [
        ({"tools": [TOOL], "tool_choice": "required"}, "tool_choice", "cannot promise"),
        ({"tools": [TOOL], "tool_choice": NAMED}, "tool_choice", "cannot promise"),
        ({"functions": [FUNCTION], "function_call": {"name": "f"}}, "function_call", "cannot promise"),
        (
            {"response_format": SCHEMA},
            "response_format",
            "asks for json_schema, .* follows no guide: leave it",
        ),
        ({"response_format": {"type": "json_object"}}, "response_format", "asks for json_object, and"),
        ({"extra_body": {"guided_json": {"type": "object"}}}, "guided_json", "follows no guide"),
        (
            {"extra_body": {"structured_outputs": {"json": {"type": "object"}}}},
            "structured_outputs",
            "follows no guide",
        ),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_server_without_guides_names_the_field_that_needs_them(
    asked: dict[str, Any], field: str, says: str, stream: bool
) -> None:
    async def work(client: openai.AsyncOpenAI) -> None:
        with pytest.raises(openai.BadRequestError, match=says) as caught:
            await client.chat.completions.create(model="m", messages=[QUESTION], stream=stream, **asked)
        assert caught.value.param == field
        assert field in caught.value.message
        assert (says == "cannot promise") != ("guide" in caught.value.message.replace(field, ""))

    use(Model([{"error": LACKS}]), work)


def test_a_response_names_its_own_field_for_the_form_of_its_text() -> None:
    async def work(client: openai.AsyncOpenAI) -> None:
        form: Any = {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}}
        with pytest.raises(openai.BadRequestError) as caught:
            await client.responses.create(model="m", input="a", text=form)
        assert caught.value.param == "text.format"

    use(Model([{"error": LACKS}]), work)


def test_a_chat_of_the_older_form_is_tokenized_with_its_calls() -> None:
    call = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": '{"x": 1}'}}
    messages = [QUESTION, call, {"role": "function", "name": "f", "content": "8"}]

    async def work(client: openai.AsyncOpenAI) -> str:
        told: Any = await client.post("http://api/tokenize", cast_to=object, body={"messages": messages})
        tokens = {"tokens": told["tokens"]}
        return str(await client.post("http://api/detokenize", cast_to=object, body=tokens))

    assert '{"name": "f", "arguments": {"x": 1}}' in json.dumps(use(Model([]), work)).replace(
        "\\\\\\", ""
    ).replace("\\", "")
