"""The coordinator's interface to clients: what they ask for, and what they get back. Text in, text out."""

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
    """A prompt to be continued; exactly one of `prompt` and `prompt_token_ids` is given."""

    prompt: str | None = None
    prompt_token_ids: Sequence[int] | None = None
    max_tokens: int = 16
    """It is reduced to what fits the engine."""
    num_draft_tokens: int | None = None
    """K, the number of tokens that a round drafts.

    None takes the coordinator's K; 0 decodes with the target alone.
    """
    stop: tuple[str, ...] = ()
    """The text ends before the first of these strings in it."""
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    end_id: int | None = None
    """None stands for the model's own end tokens, `NO_END` (-1) for none at all."""
    add_special_tokens: bool = True
    """True if the tokenizer puts its own tokens around the prompt, such as the one that begins a text."""
    timeout_s: float | None = None
    """The time limit from the arrival to the last token; None takes the deployment's."""
    embedding_bias: tuple[tuple[str | int, float], ...] = ()
    """Pairs of a word or token id and a number.

    The number is added to the logits of the word's tokens, as in NVIDIA's preprocessing for words, or to
    those of the token. A token that is named twice gets the sum.
    """
    bad_words: tuple[str, ...] = ()
    """No token comes that would complete the tokens of one of these.

    The same letters in other tokens may come.
    """
    return_log_probs: bool = False
    """Asks for the log-probability of each token (rule 9 of `trtspec.serving.executor`).

    It is the logarithm of the model's own probability.
    """
    top_log_probs: int = 0
    """The number of the likeliest tokens that are returned beside each token."""
    num_return_sequences: int = 1
    """The number of completions of the prompt, each with a seed of its own (`of_sequence`)."""
    guide: Guide | None = None
    """The text is one of this grammar, unless `max_tokens`, a stop string or an error ends it before.

    The guide's own `end_ids` do not count.
    """
    tenant: str = ""
    """Only requests of the same tenant are drafted from its answer.

    Empty for none: then no request is drafted from it.
    """
    user: str = ""
    """During a roll-out all requests of one user have drafts, or none has.

    A request without a user goes by its prompt.
    """
    stop_token_ids: tuple[int, ...] = ()
    """Tokens that end the text beside its end tokens."""
    include_stop: bool = False
    """True if the text includes what ended it: the stop string, or the text of the token."""
    skip_special_tokens: bool = True
    """True if special tokens have no text, false if it is their name."""


@dataclass(frozen=True, slots=True)
class Completion:
    """The summary of a completion, which comes with its last `Delta`."""

    end_reason: EndReason
    num_input_tokens: int
    num_output_tokens: int
    """The number of tokens generated up to the end.

    The token that completed a stop string is counted, one that ends the text by itself is not.
    """
    speculation: SpeculationCounts
    undrafted_for: tuple[str, ...] = ()
    """The options for which nothing was drafted (K = 0), although it would have been without them."""
    num_draft_tokens: int = 0
    """A round drafted at most this many tokens."""


@dataclass(frozen=True, slots=True)
class Delta:
    """The part of a completion that one round added."""

    text: str
    """The text that may be shown now.

    It belongs to the round's tokens and to the text held back before: an incomplete character, or the
    possible beginning of a stop string. So it may be empty.
    """
    token_ids: list[int]
    """The tokens that the round generated."""
    completion: Completion | None = None
    """Given with the last delta; None before."""
    log_probs: list[LogProb] | None = None
    """One for each of `token_ids` if they were asked for."""
    sequence_index: int = 0
    """The number of the completion, from 0, of several completions of one prompt.

    Each has a last delta of its own.
    """
