"""Writes the log-probabilities of an answer's tokens for OpenAI's two routes; pure."""

from __future__ import annotations

from typing import Any, Protocol

from trtspec.gateway.openai.pieces import ChoicePiece


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
    characters, the chosen one counts, or else the likeliest.
    """
    tokens = [tokenizer.bytes_of(token_id).decode(errors="replace") for token_id in piece.token_ids]
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token)
    top: list[dict[str, float]] = []
    for token, said in zip(tokens, piece.log_probs, strict=True):
        likeliest: dict[str, float] = {}
        for other, value in said.top:
            likeliest.setdefault(_text(tokenizer, other), value)
        top.append({**likeliest, token: said.value})
    return {
        "tokens": tokens,
        "token_logprobs": [said.value for said in piece.log_probs],
        "top_logprobs": top if any(said.top for said in piece.log_probs) else None,
        "text_offset": offsets,
    }


def _entry(tokenizer: Names, token_id: int, value: float) -> dict[str, Any]:
    """Returns a token of a chat; a special one has its name, and no bytes, since it is not in the text."""
    said = tokenizer.bytes_of(token_id)
    return {"token": _text(tokenizer, token_id), "logprob": value, "bytes": list(said) if said else None}


def _text(tokenizer: Names, token_id: int) -> str:
    return tokenizer.bytes_of(token_id).decode(errors="replace") or tokenizer.name_of(token_id)
