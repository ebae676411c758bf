"""The step that writes the Triton model repository."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from pathlib import Path

from trtspec.base.digest import digest_of
from trtspec.base.progress import Advance
from trtspec.pipeline.plan.facts import PlanFacts
from trtspec.pipeline.plan.layout import repository_spec
from trtspec.pipeline.plan.resolved import Resolved
from trtspec.pipeline.repository.guided_vocabulary import vocabularies, write_vocabularies
from trtspec.pipeline.repository.spec import RepositorySpec
from trtspec.pipeline.run.step import Step
from trtspec.pipeline.steps import build, copy_tokenizer

KIND = "write repository"
OUTPUT = "model_repository"


def step(resolved: Resolved, facts: PlanFacts) -> Step:
    spec = repository_spec(resolved)
    names = [resolved.model_name, *(engine.name for engine in spec.engines)]
    return Step(
        kind=KIND,
        summary=f"the Triton model{'s' * (len(names) > 1)} {', '.join(names)}",
        inputs=(*copy_tokenizer.outputs(resolved), *map(build.engine, resolved.engines)),
        output=OUTPUT,
        command=(),
        digest=digest_of([asdict(spec), facts.serving_code]),
        action=partial(run, spec),
        after=(copy_tokenizer.KIND,) if vocabularies(spec) else (),
    )


def run(spec: RepositorySpec, output: Path, advance: Advance) -> None:
    from trtspec.pipeline.repository.writer import write_repository

    write_repository(output, spec)
    write_vocabularies(output, spec, output.parent / copy_tokenizer.OUTPUT)
