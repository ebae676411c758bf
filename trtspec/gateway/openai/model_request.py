"""The request for the model that a request of OpenAI's API is; pure."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from trtspec.gateway.openai.errors import ApiError
from trtspec.gateway.openai.output_parser import (
    NO_PARSER,
    NamedCallArguments,
    OutputParsing,
    RequiredCalls,
    calls_schema,
    choose_parsing,
    is_json,
)
from trtspec.gateway.openai.schema import (
    ChatRequest,
    CompletionBody,
    MessageBody,
    NamedFunction,
    NamedTool,
    SharedBody,
    ToolBody,
    ToolCall,
)
from trtspec.serving.completion import NO_END
from trtspec.serving.tokenizer import Tokenizer

_ENDLESS = 2**31 - 1
_USUAL_VERBOSITY = "medium"
_KINDS = {"json": "json_schema", "regex": "regex", "choice": "ebnf_grammar", "grammar": "ebnf_grammar"}
_GUIDES = ("structured_outputs", *(f"guided_{kind}" for kind in _KINDS))
# Characters are as they are: grammars read an escaped surrogate as a character.
_text = partial(json.dumps, ensure_ascii=False)
# Its blank shows whether the template keeps those at the end of a message.
_LAST_END = "END-OF-THE-LAST-MESSAGE "


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """A request for the model, and the form of its answer."""

    inputs: tuple[dict[str, Any], ...]
    """The inputs of `speculative_llm`, for each of the prompts."""
    num_sequences: int
    stream: bool
    include_usage: bool
    log_probs: bool
    tokens_as_ids: bool = False
    """Log-probabilities name tokens by their ids."""
    parsing: OutputParsing | None = None
    """None where all text is content."""
    several_calls: bool = True
    guided_by: str = "response_format"
    guide_kind: str = ""
    """The `type` of `response_format`, if that asks for the form."""
    echoes_scores: bool = False
    """The prompt's text and log-probabilities come before those of the answer."""
    echoes_alone: bool = False
    """The answer is the prompt: the one token that the model makes of it is left out."""
    prompt_log_probs: int | None = None
    """The number of likeliest tokens in vLLM's `prompt_logprobs`; None where it is not asked for."""
    prompt_tokens: tuple[int, ...] = ()
    """The tokens of each prompt, where every chunk tells the usage so far."""

    @property
    def num_choices(self) -> int:
        return len(self.inputs) * self.num_sequences


def completion(body: CompletionBody, tenant: str, tokenizer: Tokenizer | None) -> ModelRequest:
    """Returns the request of a body of `/v1/completions`; raises `ApiError` for an impossible request."""
    if body.best_of not in (None, body.n or 1):
        raise ApiError(400, "best_of must equal n or be left out: every completion is returned", "best_of")
    shared = _shared(body, tenant, tokenizer, body.logprobs)
    echoes_alone = body.max_tokens == 0
    if echoes_alone and not body.echo:
        raise ApiError(400, "max_tokens must be at least 1 without echo", "max_tokens")
    shared["max_tokens"] = 1 if echoes_alone else body.max_tokens or 16
    if body.echo:
        if body.logprobs is not None:
            # The prompt's text is that of its tokens, as the log-probabilities name them.
            shared["prompt_log_probs"] = max(body.logprobs, body.prompt_logprobs or 0)
            if body.n not in (None, 1):
                raise ApiError(400, "n must be 1 with echo and logprobs", "n")
        elif all(isinstance(prompt, str) for prompt in body.prompt):
            shared["exclude_input_in_output"] = echoes_alone
        else:
            message = "echo needs a prompt of text, or logprobs: token ids alone are not echoed"
            raise ApiError(400, message, "echo")
    names = ("text_input" if isinstance(prompt, str) else "input_ids" for prompt in body.prompt)
    inputs = [{**shared, name: prompt} for name, prompt in zip(names, body.prompt, strict=True)]
    echoes_scores = bool(body.echo) and body.logprobs is not None
    return replace(_request(body, inputs), echoes_scores=echoes_scores, echoes_alone=echoes_alone)


def chat(
    body: ChatRequest,
    prompt: str,
    template: str,
    tenant: str,
    tokenizer: Tokenizer | None,
    parser: str | None = None,
) -> ModelRequest:
    """Returns the request of a body of `/v1/chat/completions`, whose messages `template` has made a `prompt`.

    `parser` is the recipe's `serving.reasoning_parser`.
    """
    if body.top_logprobs is not None and not body.logprobs:
        raise ApiError(400, "top_logprobs needs logprobs: true", "top_logprobs")
    shared = _shared(body, tenant, tokenizer, body.top_logprobs or 0 if body.logprobs else None)
    shared["max_tokens"] = body.max_completion_tokens or body.max_tokens or _ENDLESS
    # The template writes the beginning of the text itself.
    shared |= {"text_input": prompt, "add_special_tokens": False}
    # A grammar holds from the first token on, so the answer has no reasoning.
    own = NO_PARSER if "guided_decoding_guide_type" in shared else parser
    how = choose_parsing(template, own, prompt, _schemas(body), tokenizer)
    if isinstance(choice := body.tool_choice, NamedTool) or choice == "required":
        if "guided_decoding_guide_type" in shared:
            raise ApiError(400, "response_format cannot be combined with a required tool call", "tool_choice")
        name = choice.function.name if isinstance(choice, NamedTool) else None
        schema = calls_schema(_tools(body), name, several=body.parallel_tool_calls is not False)
        shared |= _guide("json", schema)
        how = OutputParsing(RequiredCalls if name is None else partial(NamedCallArguments, name))
    if how and how.counter:
        shared["return_output_ids"] = True
    if how and how.needs_special_tokens:
        shared["skip_special_tokens"] = False
    return _request(body, [shared], how, several_calls=body.parallel_tool_calls is not False)


def counted(request: ModelRequest, tokenizer: Tokenizer) -> ModelRequest:
    """Returns a request whose chunks tell the usage so far."""
    asked = [(one.get("text_input", ""), one.get("add_special_tokens", True)) for one in request.inputs]
    texts = [tokenizer.encode(text, added) for text, added in asked]
    numbers = [len(one.get("input_ids", text)) for one, text in zip(request.inputs, texts, strict=True)]
    inputs = tuple({**one, "return_output_ids": True} for one in request.inputs)
    return replace(request, inputs=inputs, prompt_tokens=tuple(numbers))


def with_tools(body: ChatRequest) -> ChatRequest:
    """Returns the same request with tools instead of functions, also in its messages."""
    changes: dict[str, Any] = {"messages": _with_calls(body.messages)}
    if body.functions:
        choice: Any = body.function_call
        if isinstance(choice, NamedFunction):
            choice = NamedTool(type="function", function=choice)
        changes |= {
            "tools": [ToolBody(type="function", function=function) for function in body.functions],
            "tool_choice": choice,
            "parallel_tool_calls": False,
        }
    return body.model_copy(update=changes)


def _with_calls(said: list[MessageBody]) -> list[MessageBody]:
    """Returns messages whose calls have ids, as templates want them; a function answers the last call."""
    messages, last = [], ""
    for number, message in enumerate(said):
        changes: dict[str, Any] = {}
        if message.function_call is not None:
            last = f"{number:09d}"
            changes = {"tool_calls": [ToolCall(id=last, function=message.function_call)]}
        elif message.role == "function":
            changes = {"role": "tool", "tool_call_id": last}
        messages.append(message.model_copy(update=changes) if changes else message)
    return messages


def template_tools(body: ChatRequest) -> list[dict[str, Any]] | None:
    """Returns the tools for the chat template; None if the model gets none."""
    return _tools(body) or None if body.tool_choice != "none" else None


def template_values(body: ChatRequest, template: str) -> dict[str, Any]:
    """Returns the other values for the chat template; raises `ApiError` for values that it would ignore.

    As in vLLM an effort also sets whether the model thinks at all (`enable_thinking`), and
    `chat_template_kwargs` overrides it. A model that does not think obeys the effort `none`.
    """
    values: dict[str, Any] = {}
    if (effort := body.reasoning_effort) is not None:
        values |= {"reasoning_effort": effort, "enable_thinking": effort != "none"}
        if effort != "none" and not any(name in template for name in values):
            raise ApiError(400, "this model's chat template has no reasoning_effort", "reasoning_effort")
    if body.verbosity is not None:
        values["verbosity"] = body.verbosity
        if body.verbosity != _USUAL_VERBOSITY and "verbosity" not in template:
            raise ApiError(400, "this model's chat template has no verbosity", "verbosity")
    if body.continue_final_message or body.add_generation_prompt is False:
        values["add_generation_prompt"] = False
    return {**values, **(body.chat_template_kwargs or {})}


def continued(prompt: str, body: ChatRequest) -> str:
    """Returns a prompt up to the end of its last message, if the answer is to continue that.

    As in transformers blanks at that end stay, unless the template takes them away. Raises `ApiError` if the
    template has changed the message.
    """
    if not body.continue_final_message:
        return prompt
    said = template_messages(body)[-1]["content"]
    text = (said[-1]["text"] if isinstance(said, list) else said).removesuffix(_LAST_END).strip()
    begun, _, rest = prompt.rpartition(_LAST_END.rstrip())
    if not text or not begun.rstrip().endswith(text):
        message = "the chat template changes the last message, so it cannot be continued"
        raise ApiError(400, message, "continue_final_message")
    return begun if rest.startswith(" ") else begun.rstrip()


def template_messages(body: ChatRequest) -> list[dict[str, Any]]:
    """Returns the messages as they are fitted to a chat template (`chat_template_process.py`).

    Content is text, or a list of several texts, and a call's arguments are JSON. A developer is the system to
    templates, and a refusal is what an assistant said. The last message ends in a mark if the answer is to
    continue it.
    """
    messages = []
    for number, said in enumerate(body.messages):
        parts = said.content or said.refusal or ""
        texts = [parts] if isinstance(parts, str) else [part.text for part in parts]
        if body.continue_final_message and said is body.messages[-1]:
            texts[-1] += _LAST_END
        content = texts[0] if len(texts) == 1 else [{"type": "text", "text": text} for text in texts]
        role = "system" if said.role == "developer" else said.role
        message: dict[str, Any] = {"role": role, "content": content}
        named = {name: getattr(said, name) for name in ("name", "tool_call_id")}
        message |= {name: value for name, value in named.items() if value is not None}
        if thought := said.reasoning or said.reasoning_content:
            # Qwen's name, vLLM's, and that of gpt-oss.
            message |= dict.fromkeys(("reasoning_content", "reasoning", "thinking"), thought)
        if said.tool_calls:
            where = f"messages[{number}].tool_calls"
            message["tool_calls"] = calls = []
            for call in said.tool_calls:
                arguments = call.function.arguments or "{}"
                if not is_json(arguments):
                    raise ApiError(400, f"{where}: the arguments of a call must be JSON", where)
                function = {"name": call.function.name, "arguments": arguments}
                calls.append({"id": call.id, "type": "function", "function": function})
        messages.append(message)
    return messages


def _request(
    body: SharedBody,
    inputs: list[dict[str, Any]],
    how: OutputParsing | None = None,
    *,
    several_calls: bool = True,
) -> ModelRequest:
    n = body.n or 1
    if n > 1:
        inputs = [{**values, "num_return_sequences": n} for values in inputs]
    if n * len(inputs) == 1:
        inputs[0]["return_perf_metrics"] = True
    options = body.stream_options
    is_required = getattr(body, "tool_choice", None) not in (None, "none", "auto")
    fields = (name for name in _GUIDES if getattr(body, name) is not None)
    return ModelRequest(
        inputs=tuple(inputs),
        num_sequences=n,
        stream=bool(body.stream),
        include_usage=bool(options and options.include_usage),
        log_probs="return_log_probs" in inputs[0],
        tokens_as_ids=bool(body.return_tokens_as_token_ids),
        parsing=how,
        several_calls=several_calls,
        guided_by="tool_choice" if is_required else next(fields, "response_format"),
        guide_kind="" if body.response_format is None else body.response_format.type,
        prompt_log_probs=body.prompt_logprobs,
    )


def _shared(
    body: SharedBody, tenant: str, tokenizer: Tokenizer | None, log_probs: int | None
) -> dict[str, Any]:
    """Returns the inputs that both routes set; missing ones have OpenAI's default, or the model's.

    `log_probs` is the number of likeliest tokens to report with each log-probability; None for no
    log-probabilities.
    """
    values: dict[str, Any] = {
        "stream": bool(body.stream),
        "return_num_input_tokens": True,
        "return_num_output_tokens": True,
        "temperature": 1.0 if body.temperature is None else float(body.temperature),
    }
    if body.top_k is not None and body.top_k > 0:
        values["top_k"] = body.top_k
    if body.top_p == 0:
        values["top_k"] = 1
    elif body.top_p is not None and body.top_p < 1:
        values["top_p"] = float(body.top_p)
    for name in (
        *("presence_penalty", "frequency_penalty", "min_p", "min_tokens"),
        *("bad_words", "stop_token_ids", "include_stop_str_in_output"),
    ):
        if value := getattr(body, name):
            values[name] = value
    if body.repetition_penalty not in (None, 1):
        values["repetition_penalty"] = body.repetition_penalty
    if body.seed is not None:
        values["seed"] = body.seed % 2**64
    stops = [body.stop] if isinstance(body.stop, str) else body.stop or []
    if stops:
        values["stop_words"] = stops
    if body.num_draft_tokens is not None:
        values["num_draft_tokens"] = body.num_draft_tokens
    if body.ignore_eos:
        values["end_id"] = NO_END
    if log_probs is not None:
        if tokenizer is None:
            message = "logprobs need the model's tokenizer, which this server does not have"
            raise ApiError(400, message, "logprobs")
        values["return_log_probs"] = True
    if log_probs:
        values["top_log_probs"] = log_probs
    if body.prompt_logprobs is not None:
        if body.stream or tokenizer is None:
            why = "cannot be streamed" if body.stream else "need the model's tokenizer, which is not here"
            raise ApiError(400, f"prompt_logprobs {why}", "prompt_logprobs")
        values["prompt_log_probs"] = body.prompt_logprobs
    if body.skip_special_tokens is False:
        values["skip_special_tokens"] = False
    if body.cache_salt:
        tenant = hashlib.sha256(f"{tenant} {body.cache_salt}".encode()).hexdigest()
    if tenant:
        values["tenant"] = tenant
    if user := body.user or body.safety_identifier:
        values["user"] = user
    return values | _guide_of(body) | _bias(body.logit_bias or {})


def _bias(bias: dict[str, float]) -> dict[str, Any]:
    if not bias:
        return {}
    for token in bias:
        if not (token.isascii() and token.isdecimal() and len(token) < 10):
            raise ApiError(400, f"logit_bias: {token[:20]!r} is not a token id", "logit_bias")
    return {"embedding_bias_ids": [int(token) for token in bias], "embedding_bias_weights": [*bias.values()]}


def _guide_of(body: SharedBody) -> dict[str, Any]:
    """Returns the model's inputs; raises `ApiError` for a body that asks in several ways."""
    outputs, wanted = body.structured_outputs, body.response_format
    asked = [(kind, getattr(body, f"guided_{kind}")) for kind in _KINDS]
    asked += [(kind, getattr(outputs, "json_" if kind == "json" else kind, None)) for kind in _KINDS]
    if wanted and wanted.type != "text":
        asked.append(("json", wanted.json_schema.schema_ if wanted.json_schema else {"type": "object"}))
    found = [_guide(kind, value) for kind, value in asked if value is not None]
    if len(found) > 1:
        message = "response_format, structured_outputs and guided_* exclude each other; send only one of them"
        raise ApiError(400, message, "response_format")
    return found[0] if found else {}


def _guide(kind: str, value: Any) -> dict[str, Any]:
    """Returns the inputs for one of the `_KINDS` of answers; a JSON schema may be written as text."""
    if kind == "choice":
        value = f"root ::= {' | '.join(map(_text, value))}"
    text = value if isinstance(value, str) else _text(value)
    return {"guided_decoding_guide_type": _KINDS[kind], "guided_decoding_guide": text}


def _schemas(body: ChatRequest) -> dict[str, dict[str, Any]] | None:
    """Returns the parameters of the tools that may be called; None where there are none."""
    tools = {tool.function.name: tool.function.parameters or {} for tool in body.tools or ()}
    return tools if template_tools(body) else None


def _tools(body: ChatRequest) -> list[dict[str, Any]]:
    return [tool.model_dump(exclude_none=True, exclude={"function": {"strict"}}) for tool in body.tools or ()]
