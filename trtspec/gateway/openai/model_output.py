"""Reads the outputs of the model as pieces of an answer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trtspec.gateway.openai.errors import ApiError
from trtspec.serving.executor import LogProb
from trtspec.serving.stats import SpeculationCounts, why_undrafted
from trtspec.serving.triton.agreement import ENDED, tells_end

# The model's own errors begin with their status: see `trtspec.serving.triton.agreement`.
_STATUS = re.compile(r"(\d{3}) ")
# More of them than the model can read; OpenAI's clients look for the code.
_LONG = re.compile(r"is \d+ (tokens|characters);")
_FIELDS = {
    "text_input": "prompt",
    "input_ids": "prompt",
    "stop_words": "stop",
    "num_return_sequences": "n",
    "guided_decoding_guide": "response_format",
    "guided_decoding_guide_type": "response_format",
    "embedding_bias_ids": "logit_bias",
    "return_log_probs": "logprobs",
    "prompt_log_probs": "prompt_logprobs",
    "top_log_probs": "top_logprobs",
    "end_id": "ignore_eos",
}


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """The tokens of one completion, or of all of an answer."""

    num_input_tokens: int
    num_output_tokens: int
    num_cached_tokens: int | None = None
    """The number of the input tokens that the KV cache had; None where the model does not tell."""
    num_reasoning_tokens: int | None = None
    """The number of the output tokens that are reasoning; None where nobody counts them."""

    @classmethod
    def of_all(
        cls, counts: Mapping[int, TokenCounts], per_prompt: int, num_reasoning_tokens: int | None
    ) -> TokenCounts:
        """Returns the sum of all choices by their numbers; a prompt counts once, which `per_prompt` share."""
        prompts = [one for choice, one in counts.items() if choice % per_prompt == 0]
        cached = [one.num_cached_tokens for one in prompts if one.num_cached_tokens is not None]
        return cls(
            sum(one.num_input_tokens for one in prompts),
            sum(one.num_output_tokens for one in counts.values()),
            sum(cached) if len(cached) == len(prompts) else None,
            num_reasoning_tokens,
        )

    def usage(self, given: str = "prompt", made: str = "completion") -> dict[str, Any]:
        """Returns OpenAI's `usage`; chats name the tokens `prompt` and `completion`, responses otherwise."""
        usage: dict[str, Any] = {
            f"{given}_tokens": self.num_input_tokens,
            f"{made}_tokens": self.num_output_tokens,
            "total_tokens": self.num_input_tokens + self.num_output_tokens,
        }
        if self.num_cached_tokens is not None:
            usage[f"{given}_tokens_details"] = {"cached_tokens": self.num_cached_tokens}
        if self.num_reasoning_tokens is not None:
            usage[f"{made}_tokens_details"] = {"reasoning_tokens": self.num_reasoning_tokens}
        return usage


@dataclass(frozen=True, slots=True)
class PromptTokens:
    """The tokens of a prompt, and the log-probability of each after the first."""

    token_ids: tuple[int, ...]
    log_probs: tuple[LogProb, ...]


@dataclass(slots=True)
class ChoicePiece:
    """A piece of one choice.

    The last piece of a choice has `finish_reason` and `counts`.
    """

    choice: int
    text: str
    finish_reason: str | None = None
    token_ids: tuple[int, ...] = ()
    """The tokens of the text, where log-probabilities are asked for."""
    log_probs: tuple[LogProb, ...] = ()
    """Empty where log-probabilities are not asked for."""
    counts: TokenCounts | None = None
    speculation: dict[str, Any] | None = None
    """vLLM's `metrics.speculative_decoding`, in the last piece of a choice where it was asked for."""
    prompt: PromptTokens | None = None
    """In the first piece, where the prompt's log-probabilities were asked for."""


def piece(said: dict[str, Any], first: int) -> ChoicePiece:
    """Returns the piece for one output of the model; choices are counted from `first`."""
    if "error" in said:
        raise failure(str(said["error"]), 500)
    reason, counts = said.get("finish_reason"), None
    if reason:
        cached = said.get("num_cached_tokens")
        counts = TokenCounts(said["num_input_tokens"], said["num_output_tokens"], cached)
    prompt = None
    if "prompt_ids" in said:
        scores = _log_probs(said, "prompt_token_log_probs", "prompt_top")
        prompt = PromptTokens(_many(said["prompt_ids"]), scores)
    return ChoicePiece(
        choice=first + said.get("sequence_index", 0),
        text=said.get("text_output", ""),
        finish_reason=reason,
        token_ids=_many(said.get("output_ids")),
        log_probs=_log_probs(said, "output_log_probs", "output_top"),
        counts=counts,
        speculation=_speculation(said) if "acceptance_histogram" in said else None,
        prompt=prompt,
    )


def failure(message: str, status: int) -> ApiError:
    """Returns the API's error for an error of the model, with OpenAI's field names."""
    if own := _STATUS.match(message):
        status, message = int(own[1]), message[own.end() :]
    elif tells_end(message):
        return ApiError(503, ENDED)
    if status == 499:
        status = 503
    name, is_field, rest = message.partition(" ")
    if status == 400 and is_field and name in _FIELDS:
        is_long = _FIELDS[name] == "prompt" and _LONG.match(rest)
        code = "context_length_exceeded" if is_long else None
        return ApiError(400, f"{_FIELDS[name]} {rest}", _FIELDS[name], code)
    return ApiError(status, message, name if status == 400 and rest.startswith("is ") else None)


def of_guide(error: ApiError, field: str, kind: str) -> ApiError:
    """Returns an error about the form of an answer under the `field` that asks for it, by `kind`."""
    if error.param != "response_format":
        return error
    message = error.message.replace("response_format", field, 1)
    if message.startswith(("tool_choice is json", "function_call is json")):
        message = f"{field} demands a call, and the engine of this server cannot promise one; send auto"
    elif message.endswith("follows no guide"):
        asked = f"{field} asks for {kind or 'a form'}, and the engine of this server follows no guide"
        repair = "ask for it in the prompt, or install the extra guides of trtspec where the engine runs"
        message = f"{asked}: leave it out and {repair}"
    return ApiError(error.status, message, field)


def _many(value: Any) -> tuple[Any, ...]:
    """Returns a tensor's values; Triton writes a single one without brackets."""
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list) else (value,)


def _log_probs(said: dict[str, Any], name: str, likeliest: str) -> tuple[LogProb, ...]:
    values = _many(said.get(name))
    # Triton writes rows one after the other.
    ids, own = _many(said.get(f"{likeliest}_ids")), _many(said.get(f"{likeliest}_log_probs"))
    top = list(zip(ids, own, strict=True))
    width = len(top) // max(len(values), 1)
    return tuple(
        LogProb(value, tuple(top[row * width : (row + 1) * width])) for row, value in enumerate(values)
    )


def _speculation(said: dict[str, Any]) -> dict[str, Any]:
    histogram, steps = list(_many(said["acceptance_histogram"])), said["num_spec_steps"]
    drafted, accepted = said["total_draft_tokens"], said["total_accepted_draft_tokens"]
    counts = SpeculationCounts(steps, drafted, accepted)
    why = "" if drafted else why_undrafted(said.get("speculation", ""))
    return {
        "mean_acceptance_length": counts.mean_acceptance_length,
        "draft_acceptance_rate": counts.draft_acceptance_rate,
        "acceptance_histogram": histogram,
        "num_spec_steps": steps,
        "num_accepted_draft_tokens": accepted,
        "num_draft_tokens": drafted,
        "num_spec_tokens": len(histogram) - 1,
        **({"nothing_drafted": why} if why else {}),
    }
