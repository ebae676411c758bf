"""The reasons for which rounds go without drafts and requests without answers, as the metrics name them."""

from __future__ import annotations

FALLBACKS = (
    "draft_at_rest",
    "draft_waits",
    "draft_failed",
    "draft_timed_out",
    "draft_ended",
    "draft_untranslated",
    "nothing_found",
    "policy",
    "num_draft_tokens",
    "rollout",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "guided_decoding_guide_type",
    "sampling",
    "min_tokens",
    "no_room",
    "last_token",
)
"""The reasons why the target goes on alone for a round or burst, where drafts could come from somewhere.

The draft engine rests after failures, waits until the target that it lives in has read the text, failed,
took too long, expects the end of the text, or says what cannot be translated into the target's tokens; the
text has nothing to look up; the policy chose K = 0; the request or the recipe asks for K = 0; the roll-out
has not come to the request; an option of the request forbids drafts (`unsplittable_options`), by its name;
the request is sampled, and the target verifies drafts of greedy ones alone (`sampling`); nothing may end the
text yet (`min_tokens`); an engine has no room for a draft; one token is left, which is the target's own.
"""
FAILURES = ("invalid_request", "refused", "timed_out", "cancelled", "engine_failure", "internal")
"""The reasons why a request has no answer.

It is wrong; there is no place for it; its time limit passed; the client left or the server stops; an engine
failed; this program has a defect.
"""
