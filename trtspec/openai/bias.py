"""OpenAI's `logit_bias`, by token ids, in the model's own inputs, which name tokens by their text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trtspec.openai.errors import ApiError
from trtspec.serving.tokenizer import Tokenizer


def bias_inputs(bias: Mapping[str, float], tokenizer: Tokenizer | None) -> dict[str, Any]:
    """Returns the inputs for a bias of token ids; raises `ApiError` for a token that no text says alone."""
    if not bias:
        return {}
    if tokenizer is None:
        message = "logit_bias needs the model's tokenizer, which this server was not given"
        raise ApiError(400, message, "logit_bias")
    words = [_word(token, tokenizer) for token in bias]
    return {"embedding_bias_words": words, "embedding_bias_weights": list(bias.values())}


def _word(token: str, tokenizer: Tokenizer) -> str:
    if not (token.isascii() and token.isdecimal() and len(token) < 10):
        raise ApiError(400, f"logit_bias: {token[:20]!r} is not a token id", "logit_bias")
    try:
        text = tokenizer.bytes_of(int(token)).decode()
    except UnicodeDecodeError:
        text = ""
    if not text or tokenizer.encode(text, add_special_tokens=False) != [int(token)]:
        message = f"logit_bias: no text is the token {token} alone, so it cannot have a bias"
        raise ApiError(400, message, "logit_bias")
    return text
