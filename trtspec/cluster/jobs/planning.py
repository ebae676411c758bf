"""Plans the jobs that build what a store lacks: each engine once, and then each pair; pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from trtspec.base.roles import Role
from trtspec.checkpoint.convert import checkpoint_size
from trtspec.cluster.jobs.job import ClusterJob, Product
from trtspec.cluster.jobs.wanted import PendingBuild, work_folder
from trtspec.pipeline.plan.resolved import EnginePlan
from trtspec.pipeline.run.records import FOLDER
from trtspec.pipeline.steps.stages import Stage, needs_gpu

_DIGITS = 16


def plan_jobs(wanted: Sequence[PendingBuild], store: str, *, shares_files: bool) -> list[ClusterJob]:
    """Returns the jobs, each after those that it waits for; none for a pair that the store has.

    `store` is the URL that every node can use. An engine that several recipes share is built once. With
    `shares_files`, stages that need no GPU run in jobs without one; else one job does all stages of an
    engine.
    """
    jobs, makers = list[ClusterJob](), dict[str, str]()
    for each in wanted:
        if each.entry is None:
            planner = _Planner(each, store)
            for role, product in each.engines.items():
                if product.key not in makers:
                    jobs += planner.engine_jobs(role, product, shares_files=shares_files)
                    makers[product.key] = jobs[-1].name
            jobs.append(planner.pair_job(tuple(makers[product.key] for product in each.engines.values())))
    return jobs


@dataclass(frozen=True, slots=True)
class _Group:
    """The stages of one job."""

    last: Stage
    """The last of the stages."""
    gpus: int
    """The number of GPUs that the job has."""


class _Planner:
    """Makes the jobs of one recipe."""

    def __init__(self, wanted: PendingBuild, store: str) -> None:
        self._wanted, self._resolved, self._store = wanted, wanted.made.resolved, store
        self._loaded, self._output = self._resolved.loaded, self._resolved.output.absolute()

    def engine_jobs(self, role: Role, product: Product, *, shares_files: bool) -> Iterator[ClusterJob]:
        """Yields the jobs of one engine; each continues where the one before it ended."""
        engine, stages = self._resolved.engines[role], self._wanted.stages[role]
        before = tuple[str, ...]()
        for group in _groups(engine, stages, self._gpus_of_node, apart=shares_files):
            is_last = group.last is Stage.BUILD
            job = self._job(
                product.key,
                role,
                group.last,
                ("--only", role.value, "--until", group.last.value),
                work_folder(self._output, role),
                gpus=group.gpus,
                size=checkpoint_size(engine.model.source, engine.checkpoint, engine.draft_inside),
                after=before,
                product=product if is_last else None,
            )
            before = (job.name,)
            yield job

    @property
    def _gpus_of_node(self) -> int:
        """The most GPUs that a job can have: those of one host if engines span several hosts."""
        recipe = self._loaded.recipe
        return recipe.kubernetes.hosts.gpus_per_host if recipe.kubernetes.hosts else recipe.hardware.count

    def pair_job(self, after: tuple[str, ...]) -> ClusterJob:
        """Returns the job that assembles the pair from what other jobs have made, and pushes it."""
        pair = self._wanted.pair
        return self._job(pair.key, "pair", None, (), self._output, gpus=0, size=0, after=after, product=pair)

    def _job(
        self,
        key: str,
        what: str,
        stage: Stage | None,
        words: tuple[str, ...],
        folder: Path,
        *,
        gpus: int,
        size: int,
        after: tuple[str, ...],
        product: Product | None,
    ) -> ClusterJob:
        resolved, recipe = self._resolved, self._loaded.recipe
        part = f"{what}: {stage}" if stage else what
        backend = ("--backend", self._loaded.asked) if self._loaded.asked else ()
        return ClusterJob(
            name=f"trtspec-{stage or what}-{key[:_DIGITS]}",
            title=f"{recipe.name} {part}",
            file=self._loaded.path.absolute(),
            words=(*words, *backend),
            output=folder,
            store=self._store,
            key=key,
            after=after,
            gpus=gpus,
            size=size,
            recipe=recipe,
            image=resolved.release.image if resolved.release else None,
            folders=self._folders(),
            log=self._output / FOLDER / "logs" / f"job-{part.replace(': ', '-')}.log",
            product=product,
        )

    def _folders(self) -> tuple[Path, ...]:
        """Returns the folders of recipe, builds, models, texts and store; none lies inside another."""
        models = self._wanted.made.facts.models.values()
        texts = [model.dataset.dataset.file.parent for model in models if model.dataset]
        sources = [model.source.folder for model in models]
        store = [Path(self._store)] if "://" not in self._store else []
        used = {self._loaded.path.absolute().parent, self._output.parent, *sources, *texts, *store}
        absolute = sorted({path.absolute() for path in used})
        return tuple(path for path in absolute if not any(other in path.parents for other in absolute))


def _groups(engine: EnginePlan, stages: Sequence[Stage], gpus: int, *, apart: bool) -> Iterator[_Group]:
    """Yields runs of stages that need a GPU and runs that need none; without `apart`, one run of all
    stages."""
    needs = [_gpus(stage, engine, gpus) for stage in stages]
    if not apart:
        yield _Group(stages[-1], max(needs))
        return
    for index, stage in enumerate(stages):
        if index + 1 == len(stages) or (needs[index] > 0) != (needs[index + 1] > 0):
            yield _Group(stage, needs[index])


def _gpus(stage: Stage, engine: EnginePlan, count: int) -> int:
    """Returns how many of a node's GPUs a stage takes.

    Calibration spreads the model over all of them. `trtllm-build` builds as many ranks at once as it sees
    GPUs, and then the others.
    """
    if not needs_gpu(stage, engine):
        return 0
    return min(engine.checkpoint.mapping.world_size, count) if stage is Stage.BUILD else count
