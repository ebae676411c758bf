"""The log-probabilities of an answer's tokens, as OpenAI's two routes write them; pure."""

from __future__ import annotations

from typing import Any

from trtspec.openai.pieces import Piece
from trtspec.serving.tokenizer import Tokenizer


def chat_log_probs(tokenizer: Tokenizer, piece: Piece) -> dict[str, Any]:
    """Returns `choices[].logprobs` of a chat answer; U+FFFD is in a token whose bytes alone are no text."""
    content = []
    for token_id, value in zip(piece.token_ids, piece.log_probs, strict=True):
        said = tokenizer.bytes_of(token_id)
        text = said.decode(errors="replace")
        content.append({"token": text, "logprob": value, "bytes": list(said), "top_logprobs": []})
    return {"content": content, "refusal": None}


def completion_log_probs(tokenizer: Tokenizer, piece: Piece, offset: int) -> dict[str, Any]:
    """Returns `choices[].logprobs` of a completion, whose tokens begin at the character `offset`."""
    tokens = [tokenizer.bytes_of(token_id).decode(errors="replace") for token_id in piece.token_ids]
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token)
    values = list(piece.log_probs)
    return {"tokens": tokens, "token_logprobs": values, "top_logprobs": None, "text_offset": offsets}
