"""Rules between the keys of a recipe for engines of TensorRT-LLM; pure."""

from __future__ import annotations

from collections.abc import Iterator

from trtspec.base.findings import Finding
from trtspec.base.roles import Role
from trtspec.recipe import devices
from trtspec.recipe.build_options import SIZES
from trtspec.recipe.schema import Recipe


def contradictions(recipe: Recipe) -> Iterator[Finding]:
    """Finds what engines of TensorRT-LLM do not have, or what does not go together there."""
    yield from _overlap(recipe)
    yield from _draft_on_cpu(recipe)
    yield from _inside(recipe)


def _overlap(recipe: Recipe) -> Iterator[Finding]:
    """Finds two engines of several ranks on the same GPUs, which wait for each other forever.

    This is issue #3499 of TensorRT-LLM.
    """
    target, draft, count = recipe.ranks[Role.TARGET], recipe.ranks.get(Role.DRAFT, 0), recipe.hardware.count
    if 1 < target <= count and 1 < draft <= count < target + draft:
        problem = (
            f"{draft} ranks on GPUs that have ranks of the target too: TensorRT-LLM hangs with two requests"
        )
        yield Finding(
            "draft.parallel",
            problem,
            f"write tensor: 1 for the draft, or hardware: {{count: {target + draft}}}",
        )


def _draft_on_cpu(recipe: Recipe) -> Iterator[Finding]:
    """Finds options of a draft that trtllm-build does not build: on a CPU it is of the torch backend."""
    draft = recipe.draft
    if draft and draft.device == devices.CPU:
        for name in draft.build:
            if name not in SIZES:
                problem = "trtllm-build does not build this engine: draft.device is cpu"
                yield Finding(f"draft.build.{name}", problem, "remove this line")


def _inside(recipe: Recipe) -> Iterator[Finding]:
    """Finds keys that an engine with its draft inside does not have."""
    if not recipe.drafts_inside:
        return
    speculation = recipe.speculation
    for key, reason in speculation.method.lacking_inside.items():
        if recipe.written(key) is not None:
            yield Finding(key, reason, "remove this line")
    longest, most = speculation.max_draft_len, speculation.method.most_inside
    if longest is not None and most is not None and longest > most:
        problem = f"is the size of the tree, which has {most} nodes at most"
        yield Finding("speculation.max_draft_len", problem, f"at most {most}")
    if recipe.target.parallel.pipeline > 1:
        problem = f"an engine of TensorRT-LLM with {speculation.method.kind} inside has no pipeline ranks"
        yield Finding("target.parallel.pipeline", problem, "write tensor ranks instead")
