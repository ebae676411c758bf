"""Makes OpenAI's answers, whole and in chunks, from the model's pieces."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Protocol

import orjson

from trtspec.gateway.openai.model_output import ChoicePiece, PromptTokens, TokenCounts
from trtspec.gateway.openai.model_request import ModelRequest
from trtspec.gateway.openai.output_parser import OutputParser, ParsedCall, ParsedText, ReasoningTokens
from trtspec.serving.executor import LogProb
from trtspec.serving.tokenizer import Tokenizer


class Names(Protocol):
    """Names tokens: a tokenizer does, or `TokenIds`."""

    def bytes_of(self, token_id: int) -> bytes: ...

    def name_of(self, token_id: int) -> str: ...


class TokenIds:
    """Names tokens as vLLM does for `return_tokens_as_token_ids`, so that no two read alike."""

    def bytes_of(self, token_id: int) -> bytes:
        return self.name_of(token_id).encode()

    def name_of(self, token_id: int) -> str:
        return f"token_id:{token_id}"


def chat_log_probs(tokenizer: Names, piece: ChoicePiece) -> dict[str, Any]:
    """Returns `choices[].logprobs` of a chat answer; U+FFFD is in a token whose bytes alone are no text."""
    content = [
        {
            **_entry(tokenizer, token_id, said.value),
            "top_logprobs": [_entry(tokenizer, other, value) for other, value in said.top],
        }
        for token_id, said in zip(piece.token_ids, piece.log_probs, strict=True)
    ]
    return {"content": content, "refusal": None}


def completion_log_probs(tokenizer: Names, piece: ChoicePiece, offset: int) -> dict[str, Any]:
    """Returns `choices[].logprobs` of a completion, whose tokens begin at the character `offset`.

    The chosen token is always among the likeliest ones. Of several tokens with equal text, such as torn
    characters, the chosen one counts, or else the likeliest. The first token of an echoed prompt has no
    log-probability.
    """
    token_ids: tuple[int, ...] = piece.token_ids
    log_probs: tuple[LogProb | None, ...] = piece.log_probs
    if piece.prompt:
        token_ids = piece.prompt.token_ids + token_ids
        log_probs = (None, *piece.prompt.log_probs, *log_probs)
    tokens = [tokenizer.bytes_of(token_id).decode(errors="replace") for token_id in token_ids]
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token)
    top: list[dict[str, float] | None] = []
    for token, said in zip(tokens, log_probs, strict=True):
        if said is None:
            top.append(None)
            continue
        likeliest: dict[str, float] = {}
        for other, value in said.top:
            likeliest.setdefault(_text(tokenizer, other), value)
        top.append({**likeliest, token: said.value})
    return {
        "tokens": tokens,
        "token_logprobs": [said and said.value for said in log_probs],
        "top_logprobs": top if any(said and said.top for said in log_probs) else None,
        "text_offset": offsets,
    }


def prompt_log_probs(tokenizer: Names, prompt: PromptTokens, most: int) -> list[dict[str, Any] | None]:
    """Returns vLLM's `prompt_logprobs`: of each token after the first the likeliest ones, and its own."""
    found: list[dict[str, Any] | None] = [None]
    for token_id, said in zip(prompt.token_ids[1:], prompt.log_probs, strict=True):
        values = {token_id: said.value, **dict(said.top[:most])}
        ranks = {other: rank for rank, (other, _) in enumerate(said.top, 1)}
        found.append(
            {
                str(other): {
                    "logprob": value,
                    "rank": ranks.get(other),
                    "decoded_token": _text(tokenizer, other),
                }
                for other, value in values.items()
            }
        )
    return found


def _entry(tokenizer: Names, token_id: int, value: float) -> dict[str, Any]:
    """Returns a token of a chat; a special one has its name, and no bytes, since it is not in the text."""
    said = tokenizer.bytes_of(token_id)
    return {"token": _text(tokenizer, token_id), "logprob": value, "bytes": list(said) if said else None}


def _text(tokenizer: Names, token_id: int) -> str:
    return tokenizer.bytes_of(token_id).decode(errors="replace") or tokenizer.name_of(token_id)


DONE = b"data: [DONE]\n\n"


class Chat:
    """The names and the form of a choice of `/v1/chat/completions`."""

    prefix, whole, chunk = "chatcmpl-", "chat.completion", "chat.completion.chunk"
    called = "tool_calls"
    """The reason for an end with calls."""

    def plain(self, choice: int, text: str) -> bytes:
        """Returns a chunk's choice that has only text, in JSON."""
        said = orjson.dumps(text)
        return b'{"index":%d,"delta":{"content":%b},"logprobs":null,"finish_reason":null}' % (choice, said)

    def part(self, piece: ChoicePiece, found: ParsedText, log_probs: Any, first: int) -> dict[str, Any]:
        """Returns a chunk's choice; `first` is the number of its first call among the choice's calls."""
        delta = {"content": found.content} if found.content else {}
        delta |= _reasoning(found)
        return _choice(piece, log_probs, delta={**delta, **self.some_calls(found, first)})

    def choice(self, piece: ChoicePiece, found: ParsedText, log_probs: Any) -> dict[str, Any]:
        """Returns a choice of a whole answer."""
        message: dict[str, Any] = {"role": "assistant", "content": found.content, "refusal": None}
        if found.calls:
            message |= {"content": found.content or None, **self.all_calls(found.calls)}
        return _choice(piece, log_probs, message=message | _reasoning(found))

    def some_calls(self, found: ParsedText, first: int) -> dict[str, Any]:
        """Returns the fields of a chunk's delta for calls."""
        calls = [{"index": number, **_call(call)} for number, call in enumerate(found.calls, first)]
        if found.more:
            calls.insert(0, {"index": first - 1, "function": {"arguments": found.more}})
        return {"tool_calls": calls} if calls else {}

    def all_calls(self, calls: list[ParsedCall]) -> dict[str, Any]:
        """Returns the fields of a whole message for calls."""
        return {"tool_calls": [_call(call) for call in calls]}

    def log_probs(self, tokenizer: Names, piece: ChoicePiece, offset: int) -> dict[str, Any]:
        return chat_log_probs(tokenizer, piece)


class Completions:
    """The same of `/v1/completions`."""

    prefix, whole, chunk = "cmpl-", "text_completion", "text_completion"
    called = "stop"

    def plain(self, choice: int, text: str) -> bytes:
        said = orjson.dumps(text)
        return b'{"index":%d,"text":%b,"logprobs":null,"finish_reason":null}' % (choice, said)

    def part(self, piece: ChoicePiece, found: ParsedText, log_probs: Any, first: int) -> dict[str, Any]:
        return self.choice(piece, found, log_probs)

    def choice(self, piece: ChoicePiece, found: ParsedText, log_probs: Any) -> dict[str, Any]:
        return _choice(piece, log_probs, text=found.content)

    def log_probs(self, tokenizer: Names, piece: ChoicePiece, offset: int) -> dict[str, Any]:
        return completion_log_probs(tokenizer, piece, offset)


class ResponseBuilder:
    """Builds the answer to the request of that name; log-probabilities need the `tokenizer`."""

    def __init__(
        self,
        route: Chat | Completions,
        request: ModelRequest,
        model: str,
        tokenizer: Tokenizer | None,
        name: str,
    ) -> None:
        self._route, self._request, self._tokenizer = route, request, tokenizer
        self._head = {
            "id": route.prefix + name,
            "object": route.chunk if request.stream else route.whole,
            "created": int(time.time()),
            "model": model,
        }
        head = orjson.dumps(self._head)[:-1]
        self._before = b"data: " + head + b',"choices":['
        self._after = b'],"usage":null}\n\n' if request.include_usage else b"]}\n\n"
        self._parsers: dict[int, OutputParser] = {}
        self._counters: dict[int, ReasoningTokens] = {}
        if request.parsing:
            choices, counter = range(request.num_choices), request.parsing.counter
            self._parsers = {choice: request.parsing.parser() for choice in choices}
            self._counters = {choice: counter() for choice in choices} if counter else {}
        self._num_calls = [0] * request.num_choices
        self._offsets = [0] * request.num_choices
        self._made = [0] * request.num_choices
        self._has_begun = [not isinstance(route, Chat)] * request.num_choices
        self._counts: dict[int, TokenCounts] = {}
        self._speculation: dict[str, Any] | None = None

    # In chunks.

    def chunk(self, pieces: Iterable[ChoicePiece]) -> bytes:
        """Returns the events of some pieces."""
        return b"".join(self._events(piece) for piece in pieces)

    def end(self) -> bytes:
        """Returns the last events, when every piece has come."""
        if not self._request.include_usage:
            return DONE
        last = {**self._head, "choices": [], "usage": self._usage(), **self._metrics()}
        return b"data: " + orjson.dumps(last) + b"\n\n" + DONE

    def _events(self, piece: ChoicePiece) -> bytes:
        if piece.prompt or self._request.echoes_alone:
            piece = self._echoed(piece)
        begun = b"" if self._has_begun[piece.choice] else self._beginning(piece.choice)
        self._tell_usage(piece)
        if not (piece.finish_reason or self._parsers or self._request.log_probs):
            return begun + self._before + self._route.plain(piece.choice, piece.text) + self._after
        first = self._num_calls[piece.choice]
        found = self._found(piece)
        if found.is_empty and not (piece.finish_reason or piece.log_probs):
            return begun
        choice = self._route.part(self._ended(piece), found, self._log_probs(piece), first)
        event = self._before + orjson.dumps(choice) + self._after
        if piece.finish_reason and self._metrics() and not self._request.include_usage:
            whole = {**self._head, "choices": [choice], **self._metrics()}
            event = b"data: " + orjson.dumps(whole) + b"\n\n"
        return begun + event

    def _tell_usage(self, piece: ChoicePiece) -> None:
        """Puts the usage of a choice so far into its next chunk, if chunks tell it."""
        if prompts := self._request.prompt_tokens:
            made = self._made[piece.choice] + len(piece.token_ids)
            self._made[piece.choice] = made = piece.counts.num_output_tokens if piece.counts else made
            given = prompts[piece.choice // self._request.num_sequences]
            self._after = b'],"usage":%b}\n\n' % orjson.dumps(TokenCounts(given, made).usage())

    def _beginning(self, choice: int) -> bytes:
        self._has_begun[choice] = True
        self._tell_usage(ChoicePiece(choice, ""))
        delta = {"role": "assistant", "content": "", "refusal": None}
        return self._before + orjson.dumps(_choice(ChoicePiece(choice, ""), None, delta=delta)) + self._after

    # Whole.

    def whole(self, pieces: Iterable[ChoicePiece]) -> bytes:
        """Returns the whole answer; there is one piece for each choice."""
        choices = []
        scores: dict[str, Any] = {}
        for piece in sorted(pieces, key=lambda piece: piece.choice):
            piece = self._echoed(piece)
            found = self._found(piece)
            choices.append(self._route.choice(self._ended(piece), found, self._log_probs(piece)))
            if piece.prompt and self._tokenizer and (most := self._request.prompt_log_probs) is not None:
                scores["prompt_logprobs"] = prompt_log_probs(self._tokenizer, piece.prompt, most)
            if not isinstance(self._route, Chat):
                choices[-1] |= scores
        scores = scores if isinstance(self._route, Chat) else {}
        body = {**self._head, "choices": choices, "usage": self._usage(), **self._metrics(), **scores}
        return orjson.dumps(body)

    # Both.

    def _echoed(self, piece: ChoicePiece) -> ChoicePiece:
        """Returns the piece with the text of the prompt before its own, if the answer repeats the prompt."""
        request, said = self._request, ""
        if request.echoes_scores and piece.prompt and self._tokenizer:
            said = b"".join(map(self._tokenizer.bytes_of, piece.prompt.token_ids)).decode(errors="replace")
        if not request.echoes_alone:
            return replace(piece, text=said + piece.text) if said else piece
        if piece.finish_reason and not request.echoes_scores:
            said = request.inputs[piece.choice // request.num_sequences]["text_input"]
        reason, counts = piece.finish_reason and "length", piece.counts
        alone = replace(piece, text=said, finish_reason=reason, token_ids=(), log_probs=())
        return replace(alone, counts=counts and replace(counts, num_output_tokens=0))

    def _found(self, piece: ChoicePiece) -> ParsedText:
        """Returns the parts of the piece's text: content, and what its parser finds."""
        if piece.counts:
            self._counts[piece.choice] = piece.counts
            self._speculation = piece.speculation
        if counter := self._counters.get(piece.choice):
            counter.push(piece.token_ids)
        parser = self._parsers.get(piece.choice)
        if parser is None:
            return ParsedText(piece.text)
        found = parser.push(piece.text)
        if piece.finish_reason:
            found = found.followed_by(parser.flush())
        if not self._request.several_calls:
            found.calls = found.calls[: max(1 - self._num_calls[piece.choice], 0)]
        self._num_calls[piece.choice] += len(found.calls)
        return found

    def _ended(self, piece: ChoicePiece) -> ChoicePiece:
        """Returns the piece with OpenAI's reason for an end with calls."""
        if piece.finish_reason == "stop" and self._num_calls[piece.choice]:
            return ChoicePiece(piece.choice, piece.text, self._route.called)
        return piece

    def _log_probs(self, piece: ChoicePiece) -> Any:
        if not (self._request.log_probs and self._tokenizer):
            return None
        names = TokenIds() if self._request.tokens_as_ids else self._tokenizer
        own = piece if self._request.echoes_scores else replace(piece, prompt=None)
        made = self._route.log_probs(names, own, self._offsets[piece.choice])
        self._offsets[piece.choice] += len(piece.text)
        return made

    def _usage(self) -> dict[str, Any]:
        reasoning = sum(counter.number for counter in self._counters.values()) if self._counters else None
        return TokenCounts.of_all(self._counts, self._request.num_sequences, reasoning).usage()

    def _metrics(self) -> dict[str, Any]:
        if self._speculation is None:
            return {}
        return {"metrics": {"speculative_decoding": self._speculation}}


def _choice(piece: ChoicePiece, log_probs: Any, **said: Any) -> dict[str, Any]:
    return {"index": piece.choice, **said, "logprobs": log_probs, "finish_reason": piece.finish_reason}


def _reasoning(found: ParsedText) -> dict[str, str]:
    """Returns the reasoning under the name that DeepSeek gave it, and under vLLM's newer one."""
    if not found.reasoning:
        return {}
    return {"reasoning_content": found.reasoning, "reasoning": found.reasoning}


def _call(call: ParsedCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


class FunctionChat(Chat):
    """`/v1/chat/completions` for a request with functions."""

    called = "function_call"

    def some_calls(self, found: ParsedText, first: int) -> dict[str, Any]:
        if found.more:
            return {"function_call": {"arguments": found.more}}
        return self.all_calls(found.calls) if found.calls else {}

    def all_calls(self, calls: list[ParsedCall]) -> dict[str, Any]:
        (call,) = calls
        return {"function_call": {"name": call.name, "arguments": call.arguments}}
