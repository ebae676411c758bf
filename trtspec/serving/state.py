"""One completion on its way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from trtspec.serving.completion import Completion, Delta, EndReason
from trtspec.serving.executor import Request, SamplingConfig
from trtspec.serving.seeds import at_token
from trtspec.serving.speculation import Speculation
from trtspec.serving.stop import StopMatcher
from trtspec.serving.tokenizer import Detokenizer


@dataclass(slots=True)
class CompletionState:
    """`token_ids` is the prompt and what has been generated; `max_tokens` fits the engine.

    `stop_token_ids` end the text like `end_id`, but engines know nothing of them.
    """

    token_ids: list[int]
    num_input_tokens: int
    max_tokens: int
    num_draft_tokens: int
    sampling: SamplingConfig
    end_id: int | None
    stop_token_ids: frozenset[int]
    stop: StopMatcher
    detokenizer: Detokenizer
    speculation: Speculation = field(default_factory=Speculation)
    end_reason: EndReason | None = None

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_input_tokens

    @property
    def num_remaining(self) -> int:
        return self.max_tokens - self.num_output_tokens

    def request(self, max_tokens: int, streaming: bool = False) -> Request:
        """The continuation of what there is so far."""
        return Request(
            input_token_ids=tuple(self.token_ids),
            max_tokens=max_tokens,
            end_id=self.end_id,
            sampling=at_token(self.sampling, self.num_output_tokens),
            streaming=streaming,
        )

    def take(self, new: Sequence[int], end_reason: EndReason | None = None) -> Delta:
        """Adds the target's tokens up to what ends the text among them; `end_reason` is the engine's own."""
        taken, text = len(self.token_ids), ""
        for token_id in new:
            if token_id in self.stop_token_ids:
                end_reason = EndReason.END_ID
                break
            self.token_ids.append(token_id)
            text += self.stop.push(self.detokenizer.push(token_id))
            if self.stop.found:
                end_reason = EndReason.STOP
                break
        else:
            if self.num_remaining == 0:
                end_reason = EndReason.LENGTH
        if end_reason is None:
            return Delta(text, self.token_ids[taken:])

        if end_reason is not EndReason.STOP:
            text += self.stop.push(self.detokenizer.flush()) + self.stop.flush()
        self.end_reason = end_reason
        completion = Completion(end_reason, self.num_input_tokens, self.num_output_tokens, self.speculation)
        return Delta(text, self.token_ids[taken:], completion)
