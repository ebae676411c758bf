"""Makes the answers of `/v1/responses`: items of reasoning, text and calls, whole and as OpenAI's events."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import orjson

from trtspec.gateway.openai.job import ModelRequest
from trtspec.gateway.openai.parsed import ParsedCall, ParsedText
from trtspec.gateway.openai.pieces import ChoicePiece
from trtspec.gateway.openai.responses_body import ResponsesBody

# For each kind of item: its events, and the place of its text.
_EVENTS = {
    "reasoning": ("response.reasoning_text", "reasoning_text"),
    "message": ("response.output_text", "output_text"),
    "function_call": ("response.function_call_arguments", ""),
}


class ItemsBuilder:
    """One answer, to the request of that name; events are counted from 0."""

    def __init__(self, body: ResponsesBody, job: ModelRequest, name: str) -> None:
        self._job, self._name = job, name
        self._reader = job.reading.reader() if job.reading else None
        self._counter = job.reading.counter() if job.reading and job.reading.counter else None
        self._number, self._blanks, self._num_calls = 0, "", 0
        self._open: dict[str, Any] | None = None
        self._said = ""
        self._response: dict[str, Any] = {
            "id": f"resp_{name}",
            "object": "response",
            "created_at": int(time.time()),
            "status": "in_progress",
            "error": None,
            "incomplete_details": None,
            "output": [],
            "usage": None,
            "previous_response_id": None,
            **_echoed(body),
        }

    def whole(self, pieces: Iterable[ChoicePiece]) -> bytes:
        """Returns the whole answer."""
        self.chunk(pieces)
        return orjson.dumps(self._response)

    def chunk(self, pieces: Iterable[ChoicePiece]) -> bytes:
        """Returns the events that some pieces are."""
        begun = b""
        if not self._number:
            begun = self._event("response.created", response=self._response)
            begun += self._event("response.in_progress", response=self._response)
        return begun + b"".join(self._events(piece) for piece in pieces)

    def end(self) -> bytes:
        """Returns the last event, when every piece has come."""
        return self._event(f"response.{self._response['status']}", response=self._response)

    def _events(self, piece: ChoicePiece) -> bytes:
        if self._counter:
            self._counter.push(piece.token_ids)
        found = self._reader.push(piece.text) if self._reader else ParsedText(piece.text)
        if piece.finish_reason and self._reader:
            found = found.followed_by(self._reader.flush())
        told = self._told(found)
        if piece.finish_reason:
            told += self._close(is_whole=piece.finish_reason != "length")
            self._finish(piece)
        return told

    def _told(self, found: ParsedText) -> bytes:
        told = self._more(found.more) if found.more else b""
        if found.reasoning:
            told += self._text("reasoning", found.reasoning)
        if found.content:
            text, self._blanks = self._blanks + found.content, ""
            if text.strip() or (self._open and self._open["type"] == "message"):
                told += self._text("message", text)
            else:
                # Blanks before a call are not content.
                self._blanks = text
        calls = found.calls if self._job.several_calls else found.calls[: max(1 - self._num_calls, 0)]
        for call in calls:
            told += self._call(call)
        return told

    def _text(self, kind: str, text: str) -> bytes:
        told = b""
        if self._open is None or self._open["type"] != kind:
            told = self._close()
            item = {"type": kind, "id": self._id("msg" if kind == "message" else "rs"), "content": []}
            told += self._begin({**item, **({"role": "assistant"} if kind == "message" else {"summary": []})})
            if kind == "message":
                told += self._event("response.content_part.added", **self._place(), part=_part(kind, ""))
        return told + self._more(text)

    def _call(self, call: ParsedCall) -> bytes:
        self._num_calls += 1
        item = {"type": "function_call", "id": self._id("fc"), "call_id": call.id, "name": call.name}
        return self._close() + self._begin({**item, "arguments": ""}) + self._more(call.arguments)

    def _begin(self, item: dict[str, Any]) -> bytes:
        self._open, self._said = {**item, "status": "in_progress"}, ""
        place = len(self._response["output"])
        return self._event("response.output_item.added", output_index=place, item=self._open)

    def _more(self, text: str) -> bytes:
        if self._open is None:
            return b""
        self._said += text
        name, _ = _EVENTS[self._open["type"]]
        extra: dict[str, Any] = {"logprobs": []} if self._open["type"] == "message" else {}
        return self._event(f"{name}.delta", **self._place(), delta=text, **extra)

    def _close(self, *, is_whole: bool = True) -> bytes:
        if self._open is None:
            return b""
        kind, place = self._open["type"], self._place()
        name, part = _EVENTS[kind]
        if part:
            self._open["content"] = [_part(kind, self._said)]
            extra: dict[str, Any] = {"logprobs": []} if kind == "message" else {}
            told = self._event(f"{name}.done", **place, text=self._said, **extra)
            if kind == "message":
                told += self._event("response.content_part.done", **place, part=_part(kind, self._said))
        else:
            self._open["arguments"] = self._said
            named = {"arguments": self._said, "name": self._open["name"]}
            told = self._event(f"{name}.done", **place, **named)
        self._open["status"] = "completed" if is_whole else "incomplete"
        done = {"output_index": place["output_index"], "item": self._open}
        told += self._event("response.output_item.done", **done)
        self._response["output"].append(self._open)
        self._open = None
        return told

    def _finish(self, piece: ChoicePiece) -> None:
        is_cut = piece.finish_reason == "length"
        self._response["status"] = "incomplete" if is_cut else "completed"
        if is_cut:
            self._response["incomplete_details"] = {"reason": "max_output_tokens"}
        if piece.counts:
            given, made = piece.counts.num_input_tokens, piece.counts.num_output_tokens
            thought = self._counter.number if self._counter else 0
            cached = piece.counts.num_cached_tokens or 0  # The form demands a number.
            self._response["usage"] = {
                "input_tokens": given,
                "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
                "output_tokens": made,
                "output_tokens_details": {"reasoning_tokens": thought},
                "total_tokens": given + made,
            }

    def _place(self) -> dict[str, Any]:
        assert self._open is not None
        place = {"item_id": self._open["id"], "output_index": len(self._response["output"])}
        return place if self._open["type"] == "function_call" else {**place, "content_index": 0}

    def _id(self, prefix: str) -> str:
        return f"{prefix}_{len(self._response['output'])}_{self._name}"

    def _event(self, kind: str, **said: Any) -> bytes:
        data = orjson.dumps({"type": kind, "sequence_number": self._number, **said})
        self._number += 1
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), data)


def _part(kind: str, text: str) -> dict[str, Any]:
    beside: dict[str, Any] = {"annotations": [], "logprobs": []} if kind == "message" else {}
    return {"type": _EVENTS[kind][1], "text": text, **beside}


def _echoed(body: ResponsesBody) -> dict[str, Any]:
    """Returns what a response repeats of its request."""
    said = body.model_dump(mode="json", by_alias=True, exclude_none=True)
    return {
        "model": body.model,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "metadata": body.metadata or {},
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "reasoning": said.get("reasoning", {}),
        "store": False,
        "temperature": body.temperature,
        "text": {"format": {"type": "text"}, **said.get("text", {})},
        "tool_choice": said.get("tool_choice", "auto"),
        "tools": said.get("tools", []),
        "top_p": body.top_p,
        "truncation": "disabled",
    }
