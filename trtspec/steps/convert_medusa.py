"""The step that converts a target with Medusa's heads to one TensorRT-LLM checkpoint."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from trtspec.checkpoint.blueprint import Blueprint
from trtspec.checkpoint.convert import FORMAT, write
from trtspec.checkpoint.medusa import draw_medusa
from trtspec.digest import digest_of
from trtspec.models.headers_only import check_weights
from trtspec.models.heads.head import Head
from trtspec.models.source import Source
from trtspec.plan.resolved import Resolved
from trtspec.progress import Advance
from trtspec.roles import Role
from trtspec.run.digests import FileDigests
from trtspec.run.step import Step
from trtspec.steps.reads import digest_of_files, is_weight

KIND, OUTPUT = "convert medusa", "medusa/checkpoint"


def step(resolved: Resolved, head: Head, max_draft_len: int, digests: FileDigests) -> Step:
    """Returns the step; raises what `draw_medusa` raises, before anything is written."""
    model, options = resolved.target.model, resolved.target.checkpoint
    blueprint = draw_medusa(model.source, head, options, max_draft_len)
    own = digest_of_files(is_weight, model, format=FORMAT, config=dict(blueprint.config))
    files = [digests.of(path) for path in sorted(head.folder.glob("*.safetensors"))]
    return Step(
        kind=KIND,
        role=Role.TARGET,
        summary=f"the target with {head.count} heads of Medusa as a TensorRT-LLM checkpoint",
        inputs=(model.name, str(head.folder)),
        output=OUTPUT,
        command=(
            *("trtspec", "convert", str(resolved.loaded.path), "--medusa-heads", str(head.folder)),
            *("--output", str(resolved.output)),
        ),
        digest=own and digest_of([own, files]),
        action=partial(_run, model.source, blueprint),
        size=blueprint.size,
    )


def _run(source: Source, blueprint: Blueprint, output: Path, advance: Advance) -> None:
    check_weights(source)
    write(blueprint, output, advance)
