"""The step that builds an engine, whichever backend does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from trtspec.base.progress import Advance
from trtspec.base.roles import Role
from trtspec.pipeline.plan.resolved import EnginePlan, Resolved
from trtspec.pipeline.run.step import Step, name_of
from trtspec.pipeline.steps import convert

KIND = "build"


def engine(role: Role) -> str:
    """Returns the folder of an engine, relative to the build directory."""
    return f"{role}/engine"


def step(
    resolved: Resolved,
    role: Role,
    gpus: tuple[str, ...],
    made_of: Any,
    action: Callable[[Path, Advance], None],
) -> Step:
    """Returns the step that makes an engine of its checkpoint by an `action`, which has no command line.

    `gpus` are the UUIDs of the GPUs that it has for itself, empty if it may use all.
    """
    return Step(
        kind=KIND,
        role=role,
        summary=f"the engine that {_purpose(resolved.engines[role])}",
        inputs=(convert.checkpoint(role),),
        output=engine(role),
        command=(),
        made_of=made_of,
        action=action,
        after=(name_of(convert.KIND, role),),
        gpus=gpus,
    )


def _purpose(plan: EnginePlan) -> str:
    drafts = plan.options.max_draft_len
    if plan.engine_draft:
        return f"drafts by {plan.engine_draft.title}, and verifies {drafts} tokens in each step"
    return f"verifies up to {drafts} draft tokens" if drafts else "proposes tokens"
