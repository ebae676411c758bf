"""The bodies of requests: OpenAI's fields, and those of vLLM's extensions that the server can follow.

A field that the server cannot follow is refused, and so is one that nobody knows. Those that ask for nothing
that shows in the answer (`user`, `store`, `prediction` and the like) are taken and have no effect.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    ValidationError,
    model_validator,
)

from trtspec.gateway.openai.errors import ApiError
from trtspec.gateway.openai.output_parser import read_json
from trtspec.serving.executor import MAX_TOP_LOG_PROBS

_MOST_MESSAGES, _MOST_PARTS, _MOST_TOOLS, _MOST_CALLS, _MOST_PROMPTS = 4096, 4096, 128, 1024, 128
_MOST_WORDS, _MOST_BIASES, _MOST_NOTES, _MOST_CHOICES = 256, 1024, 64, 1024
_UINT64 = 2**64


class Body(BaseModel):
    """The base of all parts of a body: types are strict, and unknown keys are refused.

    Whatever is sent makes few errors, since each takes memory: a list stops at its first one.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _one_stranger(cls, given: Any) -> Any:
        """Returns what is given with one unknown key alone, where there are many."""
        if not isinstance(given, dict) or len(given) <= len(cls.model_fields):
            return given
        known = {field.alias or name for name, field in cls.model_fields.items()}
        stranger = next(key for key in given if key not in known)
        return {key: value for key, value in given.items() if key in known or key == stranger}


def _at_most(number: int) -> BeforeValidator:
    """Returns a bound on the keys of a dictionary; pydantic's own comes after the errors of all values."""

    def check(given: Any) -> Any:
        if isinstance(given, dict) and len(given) > number:
            raise ValueError(f"has {len(given)} keys, but at most {number} are allowed")
        return given

    return BeforeValidator(check)


_TokenIds = Annotated[list[Annotated[int, Field(ge=0, lt=2**31)]], Field(fail_fast=True, max_length=64)]
_Words = Annotated[list[str], Field(fail_fast=True, max_length=_MOST_WORDS)]
_Biases = Annotated[dict[str, Annotated[float, Field(ge=-100, le=100)]], _at_most(_MOST_BIASES)]
_Notes = Annotated[dict[str, str], _at_most(_MOST_NOTES)]


class StreamOptions(Body):
    include_usage: bool = False
    include_obfuscation: bool | None = None
    continuous_usage_stats: bool | None = None


class JsonSchema(Body):
    name: str = ""
    description: str | None = None
    schema_: dict[str, Any] = Field(default_factory=dict, alias="schema")
    strict: bool | None = None


class ResponseFormat(Body):
    """The form of the answer; `json_schema` has what is asked for where the type is `json_schema`."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _has_schema(self) -> ResponseFormat:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError("json_schema needs the type json_schema")
        return self


class StructuredOutputs(Body):
    """The form of the answer as vLLM's clients ask for it, in one way."""

    json_: str | dict[str, Any] | None = Field(default=None, alias="json")
    regex: str | None = None
    choice: Annotated[list[str], Field(fail_fast=True, min_length=1, max_length=_MOST_CHOICES)] | None = None
    grammar: str | None = None

    @model_validator(mode="after")
    def _has_one(self) -> StructuredOutputs:
        if sum(value is not None for value in (self.json_, self.regex, self.choice, self.grammar)) != 1:
            raise ValueError("structured_outputs needs exactly one of json, regex, choice and grammar")
        return self


class SharedBody(Body):
    """The fields that both routes have."""

    model: str
    max_tokens: int | None = Field(default=None, ge=1, lt=2**31)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, ge=0, le=1)
    n: int | None = Field(default=None, ge=1, le=128)
    stop: str | _Words | None = None
    seed: int | None = Field(default=None, ge=-(2**63), lt=_UINT64)
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    logit_bias: _Biases | None = None
    # Without an effect on the answer; a roll-out treats the requests of one user alike.
    user: str | None = None
    safety_identifier: str | None = None
    # vLLM's extensions.
    top_k: int | None = Field(default=None, ge=-1, lt=2**31)
    min_p: float | None = Field(default=None, ge=0, le=1)
    repetition_penalty: float | None = Field(default=None, gt=0)
    min_tokens: int | None = Field(default=None, ge=0, lt=2**31)
    ignore_eos: bool | None = None
    bad_words: _Words | None = None
    return_tokens_as_token_ids: bool | None = None
    stop_token_ids: _TokenIds | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: str | dict[str, Any] | None = None
    guided_regex: str | None = None
    guided_choice: Annotated[list[str], Field(fail_fast=True, max_length=_MOST_CHOICES)] | None = None
    guided_grammar: str | None = None
    prompt_logprobs: int | None = Field(default=None, ge=0, le=MAX_TOP_LOG_PROBS)
    # Requests of one salt are drafted from one another's answers, and from no others'.
    cache_salt: str | None = Field(default=None, min_length=1, max_length=1024)
    # Without an effect: requests are served in the order in which they come.
    priority: int | None = None
    # Of this server: K, the tokens that are drafted a round.
    num_draft_tokens: int | None = Field(default=None, ge=0, lt=2**31)

    @model_validator(mode="after")
    def _streams(self) -> SharedBody:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options needs stream: true")
        return self


def _prompts(given: Any) -> list[str | list[int]]:
    """Returns the prompts that OpenAI's `prompt` is: a text, token ids, or a list of one or the other."""
    is_list = isinstance(given, list) and bool(given) and isinstance(given[0], (str, list))
    prompts = given if is_list else [given]
    if len(prompts) > _MOST_PROMPTS:
        raise ValueError(f"has {len(prompts)} prompts, but a request may have at most {_MOST_PROMPTS}")
    if not all(isinstance(prompt, str) or _are_tokens(prompt) for prompt in prompts):
        raise ValueError(
            "must be a string, a list of token ids, or a list of strings or of lists of token ids"
        )
    return list(prompts)


def _no_suffix(given: Any) -> None:
    if given not in (None, ""):
        raise ValueError("the model continues a prompt, and cannot fill a gap before a suffix; leave it out")


def _are_tokens(prompt: Any) -> bool:
    return (
        isinstance(prompt, list)
        and bool(prompt)
        and all(type(token) is int and 0 <= token < 2**31 for token in prompt)
    )


class CompletionBody(SharedBody):
    """A body of `/v1/completions`."""

    prompt: Annotated[list[str | list[int]], PlainValidator(_prompts)]
    suffix: Annotated[None, PlainValidator(_no_suffix)] = None
    max_tokens: int | None = Field(default=None, ge=0, lt=2**31)
    echo: bool | None = None
    logprobs: int | None = Field(default=None, ge=0, le=5)
    best_of: int | None = Field(default=None, ge=1)


def _only_text(given: Any) -> Any:
    """Refuses images, sounds and files by their names."""
    if isinstance(given, str) and "text" not in given:
        raise ValueError(f"this server reads text alone, and no {given:.40}")
    return given


ONLY_TEXT = BeforeValidator(_only_text)


class TextPart(Body):
    type: Annotated[Literal["text"], ONLY_TEXT]
    text: str


class CalledFunction(Body):
    name: str
    arguments: str
    parsed_arguments: Any = None


class ToolCall(Body):
    id: str
    type: Literal["function"] = "function"
    function: CalledFunction
    index: int | None = None


_Parts = Annotated[list[TextPart], Field(fail_fast=True, max_length=_MOST_PARTS)]


class MessageBody(Body):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | _Parts | None = None
    name: str | None = None
    refusal: str | None = None
    tool_calls: Annotated[list[ToolCall], Field(fail_fast=True, max_length=_MOST_CALLS)] | None = None
    tool_call_id: str | None = None
    # Clients send answers back as they got them.
    annotations: list[Any] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    audio: None = None
    parsed: Any = None
    # Of OpenAI's form before tools; the role `function` is too.
    function_call: CalledFunction | None = None

    @model_validator(mode="after")
    def _has_a_name(self) -> MessageBody:
        if self.role == "function" and self.name is None:
            raise ValueError("a message of the role function has the function's name")
        return self


class Function(Body):
    name: str = Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolBody(Body):
    type: Literal["function"]
    function: Function


class NamedFunction(Body):
    name: str


class NamedTool(Body):
    type: Literal["function"]
    function: NamedFunction


class Prediction(Body):
    type: Literal["content"]
    content: str | _Parts


Messages = Annotated[list[MessageBody], Field(fail_fast=True, min_length=1, max_length=_MOST_MESSAGES)]
Tools = Annotated[list[ToolBody], Field(fail_fast=True, max_length=_MOST_TOOLS)]


class TemplateBody(Body):
    """vLLM's extensions for what the chat template makes: more values for it, and what its prompt ends in."""

    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None

    @model_validator(mode="after")
    def _ends(self) -> TemplateBody:
        if self.continue_final_message and self.add_generation_prompt:
            raise ValueError("continue_final_message cannot be combined with add_generation_prompt")
        return self


class ChatRequest(SharedBody, TemplateBody):
    """A body of `/v1/chat/completions`."""

    messages: Messages
    max_completion_tokens: int | None = Field(default=None, ge=1, lt=2**31)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=20)
    tools: Tools | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    # OpenAI's form before tools.
    functions: (
        Annotated[list[Function], Field(fail_fast=True, min_length=1, max_length=_MOST_TOOLS)] | None
    ) = None
    function_call: Literal["none", "auto"] | NamedFunction | None = None
    # For the chat template.
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    verbosity: Literal["low", "medium", "high"] | None = None
    # Without an effect on the answer.
    store: bool | None = None
    metadata: _Notes | None = None
    service_tier: Literal["auto", "default"] | None = None
    prediction: Prediction | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: Literal["in_memory", "24h"] | None = None
    prompt_cache_options: _Notes | None = None
    modalities: Annotated[list[Literal["text"]], Field(fail_fast=True)] | None = None

    @model_validator(mode="after")
    def _has_tools(self) -> ChatRequest:
        tools, choice = self.tools or (), self.tool_choice
        chosen = choice.function.name if isinstance(choice, NamedTool) else None
        _check_choice("tool_choice", choice, chosen, "tools", [tool.function.name for tool in tools])
        functions, call = self.functions or (), self.function_call
        chosen = call.name if isinstance(call, NamedFunction) else None
        _check_choice("function_call", call, chosen, "functions", [one.name for one in functions])
        if functions and (tools or choice):
            raise ValueError("functions is the older form of tools; send one of the two")
        return self


def _check_choice(field: str, choice: object, chosen: str | None, source: str, names: list[str]) -> None:
    """Raises ValueError for a choice of what a request has not; `chosen` is the name that it chooses."""
    if chosen is not None and chosen not in names:
        raise ValueError(f"{field} names a function that is not among the {source}")
    if choice in ("auto", "required") and not names:
        raise ValueError(f"{field} is {choice}, but there are no {source}")


_MOST_TOKENS = 1 << 20
# Those that a prompt is made from.
_OF_CHATS = ("messages", "tools", "add_generation_prompt", "continue_final_message", "chat_template_kwargs")


class TokenizeBody(TemplateBody):
    """A body of `/tokenize`: a text, or a chat of which the template makes one."""

    model: str | None = None
    prompt: str | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    messages: Messages | None = None
    tools: Tools | None = None

    @model_validator(mode="after")
    def _has_one(self) -> TokenizeBody:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("send either a prompt or messages")
        return self

    @property
    def chat(self) -> ChatRequest:
        values = {name: getattr(self, name) for name in _OF_CHATS}
        return ChatRequest.model_validate({"model": "", **values})

    @property
    def has_special_tokens(self) -> bool:
        """True if the tokenizer puts its own tokens around the text; a template writes them itself."""
        return self.messages is None if self.add_special_tokens is None else self.add_special_tokens


class DetokenizeBody(Body):
    """A body of `/detokenize`."""

    model: str | None = None
    tokens: Annotated[
        list[Annotated[int, Field(ge=0, lt=2**31)]], Field(fail_fast=True, max_length=_MOST_TOKENS)
    ]


_MAX_DEPTH = 100
_LONGEST_PATH = 200
R = TypeVar("R", bound=BaseModel)


def parse_body(body: bytes, kind: type[R]) -> R:
    """Returns the request in a body; raises `ApiError` that names a wrong field."""
    content = _parse(body)
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        # Where a value may be one of several things, the deepest error is of what it was meant to be, and
        # what is too long was of the right kind.
        errors = error.errors(include_url=False, include_context=False, include_input=False)
        first = max(errors, key=lambda one: (len(one["loc"]), one["type"] == "too_long"))
        path, problem = _path(first["loc"], content, first["type"])[:_LONGEST_PATH], first["msg"]
        if first["type"] == "extra_forbidden":
            problem = "is not a field that this server knows" + _hint(first["loc"], kind)
        problem = problem.removeprefix("Value error, ")
        message = f"{path}: {problem}" if path else problem
        raise ApiError(400, message, path or None) from None


def _parse(body: bytes) -> dict[str, Any]:
    try:
        content = read_json(body)
    except RecursionError:
        raise ApiError(400, "the JSON is nested too deeply") from None
    except ValueError as error:
        raise ApiError(400, f"the body is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise ApiError(400, "the body must be a JSON object")
    _check_text(content)
    return content


def _check_text(content: dict[str, Any]) -> None:
    """Refuses what is nested too deeply, and text that UTF-8 cannot hold (lone surrogates)."""
    level: list[Any] = [content]
    for _ in range(_MAX_DEPTH):
        below: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                below += value.keys()
                below += value.values()
            elif isinstance(value, list):
                below += value
            elif isinstance(value, str) and not value.isascii():
                try:
                    value.encode()
                except UnicodeEncodeError:
                    raise ApiError(400, "the body has text that is not valid Unicode") from None
        if not below:
            return
        level = below
    raise ApiError(400, "the JSON is nested too deeply")


def _path(steps: Sequence[int | str], content: Any, kind: str) -> str:
    """Returns the place of an error, such as `messages[0].content`, without pydantic's names of types."""
    path, part = "", content
    for number, step in enumerate(steps, 1):
        is_missing = kind == "missing" and number == len(steps)
        if isinstance(part, dict) and isinstance(step, str) and (step in part or is_missing):
            path += f".{step}" if path else step
            part = part.get(step)
        elif isinstance(part, list) and isinstance(step, int) and step < len(part):
            path += f"[{step}]"
            part = part[step]
    return path


def _hint(steps: Sequence[int | str], kind: type[BaseModel]) -> str:
    """Returns the field that was meant by the last step, of the model that the steps before it lead to."""
    models: list[Any] = [kind]
    for step in steps[:-1]:
        models = [one for model in models for one in _models(model.model_fields.get(step))] or models
    nearest = get_close_matches(str(steps[-1]), [name for one in models for name in one.model_fields], n=1)
    return f"; did you mean {nearest[0]}?" if nearest else ""


def _models(part: Any) -> list[Any]:
    part = getattr(part, "annotation", part)
    is_model = isinstance(part, type) and issubclass(part, BaseModel)
    return [part] if is_model else [model for inner in get_args(part) for model in _models(inner)]
