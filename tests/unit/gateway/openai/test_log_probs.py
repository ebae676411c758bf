"""Log-probabilities whose tokens are named by their ids, as vLLM names them."""

from __future__ import annotations

from trtspec.gateway.openai.answers import TokenIds, chat_log_probs, completion_log_probs
from trtspec.gateway.openai.model_output import ChoicePiece
from trtspec.serving.executor import LogProb

PIECE = ChoicePiece(
    0, "ab", None, (7, 8), (LogProb(-0.5, ((7, -0.5), (1, -1.0))), LogProb(-2.0, ((9, -0.25),)))
)


def test_a_completion_names_tokens_by_their_ids() -> None:
    told = completion_log_probs(TokenIds(), PIECE, 0)
    assert told["tokens"] == ["token_id:7", "token_id:8"]
    assert told["top_logprobs"] == [
        {"token_id:7": -0.5, "token_id:1": -1.0},
        {"token_id:9": -0.25, "token_id:8": -2.0},
    ]


def test_a_chat_names_tokens_by_their_ids() -> None:
    first, second = chat_log_probs(TokenIds(), PIECE)["content"]
    assert [entry["token"] for entry in (first, *first["top_logprobs"])] == ["token_id:7"] * 2 + [
        "token_id:1"
    ]
    assert bytes(second["bytes"]) == b"token_id:8"
