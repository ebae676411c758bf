"""Defines the policy of rounds: whether a completion has rounds, and the largest K of the next one."""

from __future__ import annotations

from trtspec.serving.executor import Guide, Limits, SamplingConfig
from trtspec.serving.state import CompletionState


def unsplittable_options(
    sampling: SamplingConfig, guide: Guide | None, resumes_guides: bool
) -> tuple[str, ...]:
    """Returns the options with which a completion must be one request: in several its tokens might differ.

    These are penalties: an engine computes them over the tokens that the request itself generated, and the
    tokens of earlier rounds are the prompt of a round. With TensorRT-LLM a guide is one too: its matcher
    begins anew in each request's first context step, and it masks one row of logits a request, where a
    verification has a row for each draft token (`build` and `execute` of `batch_manager/guidedDecoder.cpp`).
    """
    forbids_guide = guide is not None and not resumes_guides
    return (*sampling.penalties, *(("guided_decoding_guide_type",) if forbids_guide else ()))


def draft_length(state: CompletionState, target: Limits, room: int) -> int:
    """Returns the largest K of the next round. With 0 the target decodes the rest of the completion alone.

    Three things bound K: the remaining tokens, of which one is the target's own; the `room` of the drafter;
    and the target's `max_input_len`, since all K + 1 tokens may be in the next round's prompt.
    """
    if state.end_reason is not None:
        return 0
    fitting = target.max_input_len - len(state.text) - 1
    return max(0, min(state.num_draft_tokens, state.num_remaining - 1, fitting, room))
