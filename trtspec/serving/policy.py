"""Defines the policy of rounds, which chooses the length of a completion's next draft."""

from __future__ import annotations

from trtspec.serving.executor import Guide, Limits, SamplingConfig
from trtspec.serving.state import CompletionState


def unsplittable_options(
    sampling: SamplingConfig, guide: Guide | None, resumes_guides: bool
) -> tuple[str, ...]:
    """Returns the options for which a completion is one request, since its text might change in several.

    These are penalties: an engine computes them over the tokens that it generated itself, and a round gets
    the tokens of earlier rounds as its prompt. TensorRT-LLM does the same with a guide: its matcher begins in
    each request's first context step, and it masks one row of logits a request, where a verification has a
    row for each draft token (`build` and `execute` of `batch_manager/guidedDecoder.cpp`).
    """
    forbids_guide = guide is not None and not resumes_guides
    return (*sampling.penalties, *(("guided_decoding_guide_type",) if forbids_guide else ()))


def draft_length(state: CompletionState, target: Limits, room: int) -> int:
    """Returns K of the next round; 0 means that the target decodes the rest of the completion alone.

    A round must fit three things: what is still wanted, of which one token is the target's own; the
    `room` of the drafter; and the target engine, for which all K + 1 tokens may be part of the next round's
    prompt.
    """
    if state.end_reason is not None:
        return 0
    behind = target.max_input_len - len(state.text) - 1
    return max(0, min(state.num_draft_tokens, state.num_remaining - 1, behind, room))
