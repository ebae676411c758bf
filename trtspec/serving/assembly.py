"""The coordinator of a deployment, with all that a request may use around it."""

from __future__ import annotations

from dataclasses import replace

from trtspec.serving.adaptive.policy import Policy
from trtspec.serving.admission import ServingBounds
from trtspec.serving.coordinator import Coordinator, Feature
from trtspec.serving.drafters.source import DRAFT_MODEL, Drafting, DraftSource
from trtspec.serving.drafters.sources import SourceInputs, make_source
from trtspec.serving.drafters.translation import Dictionary, draw_alike
from trtspec.serving.executor import Executor
from trtspec.serving.guides.guides import GuidedRequests, Guides
from trtspec.serving.rollout.rollout import Rollout
from trtspec.serving.sequences import Sequences
from trtspec.serving.stats import Stats
from trtspec.serving.tokenizer import Tokenizer


def assemble(
    target: Executor,
    draft: Executor | None,
    tokenizer: Tokenizer,
    num_draft_tokens: int | None = None,
    bounds: ServingBounds | None = None,
    drafting: Drafting | None = None,
    policy: Policy = "fixed",
    guides: Guides | None = None,
    rollout: Rollout | None = None,
    draft_tokenizer: Tokenizer | None = None,
) -> Coordinator:
    """Returns the coordinator of a `target` and a source of drafts; raises `EngineLoadError`.

    `drafting` names the source; None is the `draft` engine. Without either the target decodes alone. A draft
    with another vocabulary needs its `draft_tokenizer`. `bounds` None lets as many completions run as the
    target's batch holds. With `guides` a broken guide is refused before anything runs. The requests without
    K of their own have drafts as `rollout` says, which only one coordinator may have.
    """
    bounds = bounds or ServingBounds(target.limits.max_batch_size)
    rollout = rollout or Rollout()
    stats = Stats(bounds.max_places, bounds.max_queue_size, rollout=rollout.stats)
    features: list[Feature] = [GuidedRequests(guides), Sequences()]
    source: DraftSource | None = None
    if draft is not None or drafting is not None:
        inputs = SourceInputs(draft, target.limits.vocab_size, bounds.draft_timeout_s, stats)
        if draft is not None and draft_tokenizer is not None:
            words = Dictionary(tokenizer, draft_tokenizer, target.limits.vocab_size, draft.limits.vocab_size)
            inputs = replace(inputs, dictionary=words, draws_alike=draw_alike(target, draft, words))
        else:
            inputs = replace(inputs, draws_alike=target.limits.matches_samples)
        source = make_source(drafting or DRAFT_MODEL, inputs.engine)
        unseen = replace(inputs, stats=Stats(fallbacks=rollout.stats.shadow_fallbacks))
        rollout.source = make_source(drafting or DRAFT_MODEL, unseen.engine)
        features.insert(0, rollout)
    engines = {"target": target, **({"draft": draft} if draft else {})}
    return Coordinator(engines, source, tokenizer, bounds, stats, num_draft_tokens, policy, features)
