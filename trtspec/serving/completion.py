"""The coordinator's interface to clients: a request with text, and completions with text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from trtspec.serving.executor import Guide, LogProb, SamplingConfig
from trtspec.serving.stats import SpeculationCounts

NO_END = -1


class EndReason(str, Enum):
    """The reason why a completion ended."""

    END_ID = "end_id"
    LENGTH = "length"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """A prompt to be continued. It has exactly one of `prompt` and `prompt_token_ids`."""

    prompt: str | None = None
    prompt_token_ids: Sequence[int] | None = None
    max_tokens: int = 16
    """The largest number of generated tokens. It is reduced to what fits the engine."""
    num_draft_tokens: int | None = None
    """K, the tokens that a round drafts. None takes the coordinator's K; 0 has the target decode alone."""
    stop: tuple[str, ...] = ()
    """Stop strings. The text ends before the first of them."""
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    end_id: int | None = None
    """The end token. None stands for the model's own end tokens, `NO_END` (-1) for none at all."""
    add_special_tokens: bool = True
    """True if the tokenizer adds its special tokens to the prompt, such as the one for its beginning."""
    timeout_s: float | None = None
    """The seconds from the arrival to the last token at most. None takes the deployment's limit."""
    embedding_bias: tuple[tuple[str | int, float], ...] = ()
    """Pairs of a word or token id and a number.

    The number is added to the logits of the word's tokens, as in NVIDIA's preprocessing for words, or to
    those of the token. A token that is named twice gets the sum.
    """
    bad_words: tuple[str, ...] = ()
    """Banned words: no token completes the tokens of one. The same characters in other tokens are allowed."""
    return_log_probs: bool = False
    """Asks for each token's log-probability by the model itself (rule 9 of `trtspec.serving.executor`)."""
    top_log_probs: int = 0
    """The number of likeliest tokens that are returned with each token."""
    prompt_log_probs: int | None = None
    """Asks for the log-probability of each of the prompt's tokens too, with so many likeliest ones."""
    num_return_sequences: int = 1
    """The number of completions of the prompt, each with its own seed (`of_sequence`)."""
    guide: Guide | None = None
    """The text's grammar; its `end_ids` are ignored. `max_tokens`, a stop string or an error may cut it."""
    tenant: str = ""
    """Only requests of the same tenant get drafts from this completion.

    If it is empty, no request does. `num_cached_tokens` counts only what requests of the same tenant left;
    requests without one count as one.
    """
    user: str = ""
    """During a roll-out all requests of one user, or without one of one prompt, have drafts, or none has."""
    stop_token_ids: tuple[int, ...] = ()
    """Tokens that end the text, in addition to the end tokens."""
    include_stop: bool = False
    """True if the text includes the stop string or the text of the token that ended it."""
    skip_special_tokens: bool = True
    """True if special tokens have no text, false if their text is their name."""


@dataclass(frozen=True, slots=True)
class Completion:
    """The summary of a completion, which comes with its last `Delta`."""

    end_reason: EndReason
    num_input_tokens: int
    num_output_tokens: int
    """The generated tokens, with the one that completes a stop string, without an end token or stop token."""
    speculation: SpeculationCounts
    undrafted_for: tuple[str, ...] = ()
    """The options that forbade drafts (K = 0), or the usual one of `FALLBACKS` if nothing was drafted.

    It is empty if the request asked for no drafts.
    """
    max_draft_len: int = 0
    """The largest number of tokens that a round was allowed to draft."""
    num_cached_tokens: int | None = None
    """The input tokens that the target's KV cache had from requests of the same tenant; None if unknown."""


@dataclass(frozen=True, slots=True)
class PromptScores:
    """The tokens of a prompt, and the log-probability of each after the first."""

    token_ids: list[int]
    log_probs: list[LogProb]


@dataclass(slots=True)
class Delta:
    """The part of a completion that one round added."""

    text: str
    """The text that can be sent now.

    An incomplete character and the possible beginning of a stop string are held back until a later delta, so
    the text may be empty.
    """
    token_ids: list[int]
    """The tokens that the round generated."""
    completion: Completion | None = None
    """The summary, in the last delta of the completion alone."""
    log_probs: list[LogProb] | None = None
    """One for each of `token_ids` if the request has `return_log_probs`."""
    sequence_index: int = 0
    """The index of the completion, from 0, among those of the same prompt."""
    prompt: PromptScores | None = None
    """In the first delta of a request with `prompt_log_probs`."""
