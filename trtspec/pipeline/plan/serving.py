"""The choices for the Triton model that clients call: its draft tokens, name, layout and admission; pure."""

from __future__ import annotations

import json
from collections.abc import Collection

from trtspec.checkpoint.engine_draft import EngineDraft
from trtspec.pipeline.plan.resolved import Choice, Chooser, Coordination, EnginePlan, Layout
from trtspec.pipeline.repository.spec import AdmissionParameters
from trtspec.recipe.schema import triton_name
from trtspec.serving.adaptive.policy import Policy
from trtspec.serving.drafters.source import DRAFT_MODEL, Drafting

_QUEUED_FOR_A_PLACE, _LEAST_QUEUE = 16, 256
_SECOND = 10**6
_QUEUE_DELAY, _DRAFT_TIMEOUT = 300 * _SECOND, 5 * _SECOND


def choose_coordination(
    choose: Chooser, engines: Collection[EnginePlan], longest: int, engine_draft: EngineDraft | None
) -> tuple[Coordination, int | None, str]:
    """Returns the settings of the coordinator, K if the policy is fixed, and the model's name for Triton.

    Drafts have at most `longest` tokens. An engine with a draft in it reports no rounds.
    """
    policy: Policy = "fixed"
    num_draft_tokens, share, drafting = None, 1.0, None
    if not engine_draft:
        policy, num_draft_tokens = _choose_policy(choose, longest)
        share = float(choose("speculation.share", 1, "every request"))
        drafting = _choose_drafting(choose)
    serving = choose.loaded.recipe.serving
    name = choose("serving.model_name", serving.model_name, "the name that clients call")
    layout, admission = _choose_layout(choose, engines), _choose_admission(choose, engines)
    return Coordination(layout, policy, share, drafting, admission), num_draft_tokens, triton_name(name)


def _choose_policy(choose: Chooser, longest: int) -> tuple[Policy, int | None]:
    """Returns the policy for requests that set no K, and K itself if the policy is fixed.

    Raises RecipeError for a K of more than `longest`, which is what the target verifies.
    """
    default, reason = "adaptive", "K follows acceptance and load"
    if choose.loaded.recipe.speculation.num_draft_tokens is not None:
        default, reason = "fixed", "num_draft_tokens is written"
    policy: Policy = choose("speculation.policy", default, reason)
    if policy == "adaptive":
        return policy, None
    asked: int = choose("speculation.num_draft_tokens", longest, "as many as the target verifies")
    if asked > longest:
        problem = f"{asked} is more than the target verifies: max_draft_len is {longest}"
        raise choose.error("speculation.num_draft_tokens", problem, f"at most {longest}")
    return policy, asked


def _choose_drafting(choose: Chooser) -> Drafting | None:
    """None if an engine proposes."""
    method = choose.loaded.recipe.speculation.method
    if method.kind == DRAFT_MODEL.kind:
        return None
    choose.choices.append(Choice("speculation.method", method.kind, "recipe", "as written"))
    options = {
        name: choose(f"speculation.method.{name}", value, "the usual value")
        for name, value in method.options.items()
    }
    return Drafting(method.kind, options)


def _choose_layout(choose: Chooser, engines: Collection[EnginePlan]) -> Layout:
    parallel = max(engine.checkpoint.mapping.world_size for engine in engines) > 1
    default: Layout = "bls" if parallel else "in_process"
    reason = (
        "an engine of several ranks must be a model of its own" if parallel else "no hop between the models"
    )
    if choose.loaded.recipe.serving.layout == "triton":
        # The recipe is for vLLM, and somebody has its engines built all the same.
        return default
    layout: Layout = choose("serving.layout", default, reason)
    return layout


def _choose_admission(choose: Chooser, engines: Collection[EnginePlan]) -> AdmissionParameters:
    """Returns the limits on requests; a limit that the recipe leaves out fits those that it writes.

    There is none of the draft engine where the method has no model.
    """
    serving = choose.loaded.recipe.serving
    places = min(engine.options.max_batch_size for engine in engines)
    per_place = _QUEUED_FOR_A_PLACE * places
    size = choose(
        "serving.max_queue_size",
        max(per_place, _LEAST_QUEUE),
        "16 for each slot" if per_place >= _LEAST_QUEUE else "room for a burst of 256 clients",
    )
    limit = choose(
        "serving.default_timeout_microseconds",
        serving.default_timeout_microseconds,
        "ten minutes for a request that names no timeout",
    )
    delay = choose(
        "serving.max_queue_delay_microseconds",
        min(_QUEUE_DELAY, limit),
        "five minutes; a longer wait is better spent on another server"
        if limit > _QUEUE_DELAY
        else "the time limit",
    )
    draft_timeout = None
    if len(engines) > 1:
        draft_timeout = choose(
            "serving.draft_timeout_microseconds",
            min(_DRAFT_TIMEOUT, limit // 2),
            "five seconds for what takes milliseconds"
            if limit >= 2 * _DRAFT_TIMEOUT
            else "half the time limit",
        )
    schedule = choose.loaded.recipe.speculation.schedule and choose("speculation.schedule", None, "")
    target_timeout = choose(
        "serving.target_timeout_microseconds",
        serving.target_timeout_microseconds,
        "two minutes for an iteration that takes seconds at most",
    )
    return AdmissionParameters(
        max_places=places,
        max_queue_size=size,
        max_queue_delay_microseconds=delay,
        default_timeout_microseconds=limit,
        draft_timeout_microseconds=draft_timeout,
        target_timeout_microseconds=target_timeout,
        draft_schedule=json.dumps(schedule) if schedule else None,
    )
