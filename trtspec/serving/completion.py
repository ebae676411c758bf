"""What a client asks of the coordinator, and what it hears back: text in, text out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from trtspec.serving.executor import SamplingConfig
from trtspec.serving.speculation import Speculation

NO_END = -1


class EndReason(str, Enum):
    """Why a completion ended."""

    END_ID = "end_id"
    LENGTH = "length"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """One prompt to be continued; exactly one of `prompt` and `prompt_token_ids` is given.

    `max_tokens` is reduced to what fits the engine. `num_draft_tokens` None drafts as many a round as the
    coordinator was told, 0 decodes with the target alone. `stop` ends the text before the first of these
    strings. `end_id` None stands for the model's own end tokens, `NO_END` (-1) for none at all.
    `add_special_tokens` lets the tokenizer put its own tokens around the prompt, such as the beginning of a
    text. `timeout_s` is the time limit from the arrival to the last token; None for the deployment's own.
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


@dataclass(frozen=True, slots=True)
class Completion:
    """The summary that comes with the last `Delta`.

    `num_output_tokens` counts what was generated up to the end: the token that completed a stop string is
    counted, an end token is not.
    """

    end_reason: EndReason
    num_input_tokens: int
    num_output_tokens: int
    speculation: Speculation


@dataclass(frozen=True, slots=True)
class Delta:
    """What one round added.

    `token_ids` are those that were generated; `text` is what may be shown of them and of what was held back
    before (an incomplete character, the possible beginning of a stop string), so it may be empty. The last
    one has `completion`.
    """

    text: str
    token_ids: list[int]
    completion: Completion | None = None
