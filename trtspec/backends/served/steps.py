"""Makes the steps of a build for another engine's server, which write its inputs and build no engine."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path

from trtspec.backends.launch import FILE, ServerLaunch
from trtspec.base.digest import digest_of
from trtspec.base.progress import Advance
from trtspec.models.heads.head import HeadDescription
from trtspec.models.model_file import has_file
from trtspec.models.source import INDEX, read_hf_config
from trtspec.pipeline.plan.facts import HeadFacts, PlanFacts, digest_of_files, is_weight
from trtspec.pipeline.plan.resolved import Resolved
from trtspec.pipeline.run.step import Step
from trtspec.pipeline.steps import check_pair, choose_layers, copy_tokenizer, write_layers
from trtspec.pipeline.steps.write_layers import OUTPUT

KIND = "write launch"
_CONFIG = "config.json"


def steps_before_the_manifest(resolved: Resolved, launch: ServerLaunch, facts: PlanFacts) -> Iterator[Step]:
    """Yields the steps but the last one, in order."""
    yield check_pair.step(resolved, facts)
    yield copy_tokenizer.step(facts.target)
    yield from choose_layers.searches(resolved.engines, facts)
    for role, engine in resolved.engines.items():
        if engine.layers:
            yield write_layers.step(resolved, role)
    if facts.head and facts.head.head.unsaid:
        yield _head_step(resolved, facts.head)
    yield from launch_steps(launch)


def launch_steps(launch: ServerLaunch) -> Iterator[Step]:
    """Yields the steps that write a server's files, and `launch.json` that names them."""
    for name, text in launch.files.items():
        yield Step(
            kind=f"write {name}",
            summary=f"what {launch.program[0]} reads",
            inputs=(),
            output=name,
            command=(),
            digest=digest_of(text),
            action=partial(_write, text),
        )
    yield Step(
        kind=KIND,
        summary=f"how {launch.backend} {launch.release} is started",
        inputs=launch.models,
        output=FILE,
        command=(),
        digest=digest_of(asdict(launch)),
        action=partial(_write, launch.to_json()),
    )


def _write(text: str, output: Path, _: Advance) -> None:
    output.write_text(text, encoding="utf-8")


def _head_step(resolved: Resolved, found: HeadFacts) -> Step:
    """Returns the step that writes Medusa's heads with all that vLLM reads of them."""
    return Step(
        kind="write head",
        summary=f"the head, with the keys that {resolved.backend} reads: {', '.join(found.head.unsaid)}",
        inputs=(found.name,),
        output=OUTPUT,
        command=(),
        digest=digest_of_files(is_weight, found, unsaid=dict(found.head.unsaid)),
        action=partial(_write_head, found.head),
    )


def _write_head(head: HeadDescription, output: Path, advance: Advance) -> None:
    """Writes a folder that trtspec and TensorRT-LLM read as before."""
    output.mkdir(parents=True)
    config = {**read_hf_config(head.folder / _CONFIG).content, **head.unsaid}
    (output / _CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    files = {tensor.file for tensor in head.tensors.values()}
    if has_file(index := head.folder / INDEX):
        files.add(index)
    for file in sorted(files):
        shutil.copyfile(file, output / file.name)
