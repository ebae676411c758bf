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
    """A prompt to be continued; exactly one of `prompt` and `prompt_token_ids` is given.

    `max_tokens` is reduced to what fits the engine. `num_draft_tokens` is K, the tokens that a round drafts:
    None takes the coordinator's K, 0 decodes with the target alone. The text ends before the first of the
    `stop` strings in it. `end_id` None stands for the model's own end tokens, `NO_END` (-1) for none at all.
    With `add_special_tokens` the tokenizer puts its own tokens around the prompt, such as the one that begins
    a text. `timeout_s` is the time limit from the arrival to the last token; None takes the deployment's.
    No token comes that would complete the tokens of one of the `bad_words`; the same letters in other tokens
    may. `embedding_bias` are words or token ids, and what is added to the logits of each one's tokens, as
    NVIDIA's preprocessing does it for words; a token that is named twice gets the sum. `return_log_probs`
    asks for the logarithm of the model's own probability for each token (rule 9 of
    `trtspec.serving.executor`), and `top_log_probs` for so many of the likeliest tokens beside each. There
    are `num_return_sequences` completions of the prompt, each with a seed of its own (`of_sequence`).
    The text is one of the `guide`'s grammar,
    unless `max_tokens`, a stop string or an error ends it before; the guide's own `end_ids` do not count.
    Only requests of the same `tenant` are drafted from its answer; from one without a name none are. During a
    roll-out the requests of one `user` all have drafts or none; one without a user goes by its prompt.
    """

    prompt: str | None = None
    prompt_token_ids: Sequence[int] | None = None
    max_tokens: int = 16
    num_draft_tokens: int | None = None
    stop: tuple[str, ...] = ()
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    end_id: int | None = None
    add_special_tokens: bool = True
    timeout_s: float | None = None
    embedding_bias: tuple[tuple[str | int, float], ...] = ()
    bad_words: tuple[str, ...] = ()
    return_log_probs: bool = False
    top_log_probs: int = 0
    num_return_sequences: int = 1
    guide: Guide | None = None
    tenant: str = ""
    user: str = ""


@dataclass(frozen=True, slots=True)
class Completion:
    """The summary of a completion, which comes with its last `Delta`.

    `num_output_tokens` counts what was generated up to the end: the token that completed a stop string is
    counted, an end token is not. `undrafted_for` are the options for which nothing was drafted (K = 0),
    although it would have been without them. A round drafted at most `num_draft_tokens`.
    """

    end_reason: EndReason
    num_input_tokens: int
    num_output_tokens: int
    speculation: SpeculationCounts
    undrafted_for: tuple[str, ...] = ()
    num_draft_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Delta:
    """The part of a completion that one round added.

    `token_ids` are the tokens that it generated, with as many `log_probs` if they were asked for. `text` is
    what may be shown of them and of the text held back before (an incomplete character, the possible
    beginning of a stop string), so it may be empty. The last delta has `completion`. Of several completions
    of one prompt, each has its `sequence_index` from 0 and a last delta of its own.
    """

    text: str
    token_ids: list[int]
    completion: Completion | None = None
    log_probs: list[LogProb] | None = None
    sequence_index: int = 0
