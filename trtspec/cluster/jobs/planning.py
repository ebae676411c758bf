"""Plans the jobs that build what a store lacks: each engine once, and then each pair."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trtspec.base.progress import no_progress
from trtspec.base.roles import Role
from trtspec.checkpoint.convert import checkpoint_size
from trtspec.cluster.jobs.job import ClusterJob, Product
from trtspec.pipeline.build.plan import BuildPlan
from trtspec.pipeline.build.stored import pair_key
from trtspec.pipeline.plan.resolved import EnginePlan
from trtspec.pipeline.run.records import FOLDER, FileDigests, pending
from trtspec.pipeline.steps.pull import engine_platform, unbuilt
from trtspec.pipeline.steps.steps import Stage, needs_gpu, undone_stages
from trtspec.pipeline.store.entry import Entry
from trtspec.pipeline.store.store import Store

_DIGITS = 16


@dataclass(frozen=True, slots=True)
class PendingBuild:
    """A recipe's plan, and which parts of it are still to be built."""

    made: BuildPlan
    pair: Product
    entry: Entry | None
    """The pair's entry in the store; None if it is not there. If it is there, nothing is left to build.
    """
    engines: Mapping[Role, Product]
    """The engines that neither the store nor the build directory has."""
    stages: Mapping[Role, tuple[Stage, ...]]
    """The stages left to do for each of these engines in its work folder."""


def work_folder(output: Path, role: Role) -> Path:
    """Returns the folder beside a build directory in which jobs build one of its engines."""
    return output.with_name(f"{output.name}.jobs") / role


def look(store: Store, made: BuildPlan) -> PendingBuild:
    """Returns what is still to be built of a plan that was made for a store; raises StoreError."""
    resolved = made.resolved
    pair = Product(engine_platform(resolved, Role.TARGET, None), pair_key(made))
    if entry := store.find(pair.platform, pair.key):
        return PendingBuild(made, pair, entry, {}, {})
    undone = pending(made.own_steps, made.output, made.digests)
    engines = {
        role: Product(platform, key)
        for role, platform, key in unbuilt(resolved, made.own_steps, undone, None)
        if not store.find(platform, key)
    }
    stages = {role: _stages(made, role) for role in engines}
    return PendingBuild(made, pair, None, engines, stages)


def _stages(made: BuildPlan, role: Role) -> tuple[Stage, ...]:
    folder = work_folder(made.output, role)
    steps = [step for step in made.own_steps if step.role is role]
    digests = FileDigests(folder / FOLDER / "digests.json", no_progress)
    undone = pending(steps, folder, digests)
    return tuple(undone_stages(made.resolved.engines[role], steps, undone))


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


class _Planner:
    """Makes the jobs of one recipe."""

    def __init__(self, wanted: PendingBuild, store: str) -> None:
        self._wanted, self._resolved, self._store = wanted, wanted.made.resolved, store
        self._loaded, self._output = self._resolved.loaded, self._resolved.output.absolute()

    def engine_jobs(self, role: Role, product: Product, *, shares_files: bool) -> Iterator[ClusterJob]:
        """Yields the jobs of one engine; each continues where the one before it ended."""
        engine, stages = self._resolved.engines[role], self._wanted.stages[role]
        recipe, before = self._loaded.recipe, tuple[str, ...]()
        # If engines span several hosts, a job can have the GPUs of one.
        most = recipe.kubernetes.hosts.gpus_per_host if recipe.kubernetes.hosts else recipe.hardware.count
        for stage, gpus in _groups(engine, stages, most, apart=shares_files):
            job = self._job(
                product,
                role,
                stage,
                ("--only", role.value, "--until", stage.value),
                work_folder(self._output, role),
                gpus=gpus,
                size=checkpoint_size(engine.model.source, engine.checkpoint, engine.draft_inside),
                after=before,
            )
            before = (job.name,)
            yield job

    def pair_job(self, after: tuple[str, ...]) -> ClusterJob:
        """Returns the job that assembles the pair from what other jobs have made, and pushes it."""
        return self._job(self._wanted.pair, "pair", None, (), self._output, gpus=0, size=0, after=after)

    def _job(
        self,
        product: Product,
        what: str,
        stage: Stage | None,
        words: tuple[str, ...],
        folder: Path,
        *,
        gpus: int,
        size: int,
        after: tuple[str, ...],
    ) -> ClusterJob:
        resolved, recipe = self._resolved, self._loaded.recipe
        part = f"{what}: {stage}" if stage else what
        backend = ("--backend", self._loaded.asked) if self._loaded.asked else ()
        return ClusterJob(
            name=f"trtspec-{stage or what}-{product.key[:_DIGITS]}",
            title=f"{recipe.name} {part}",
            file=self._loaded.path.absolute(),
            words=(*words, *backend),
            output=folder,
            store=self._store,
            key=product.key,
            after=after,
            gpus=gpus,
            size=size,
            recipe=recipe,
            image=resolved.release.image if resolved.release else None,
            folders=self._folders(),
            log=self._output / FOLDER / "logs" / f"job-{part.replace(': ', '-')}.log",
            product=product if stage in (None, Stage.BUILD) else None,
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


def _groups(
    engine: EnginePlan, stages: Sequence[Stage], gpus: int, *, apart: bool
) -> Iterator[tuple[Stage, int]]:
    """Yields the last stage, and the GPUs, of each run of stages that need a GPU or that need none.

    Without `apart`, all stages are one run.
    """
    needs = [_gpus(stage, engine, gpus) for stage in stages]
    if not apart:
        yield stages[-1], max(needs)
        return
    for index, stage in enumerate(stages):
        if index + 1 == len(stages) or (needs[index] > 0) != (needs[index + 1] > 0):
            yield stage, needs[index]


def _gpus(stage: Stage, engine: EnginePlan, count: int) -> int:
    """Returns how many of a node's GPUs a stage takes.

    Calibration spreads the model over all of them. `trtllm-build` builds as many ranks at once as it sees
    GPUs, and then the others.
    """
    if not needs_gpu(stage, engine):
        return 0
    return min(engine.checkpoint.mapping.world_size, count) if stage is Stage.BUILD else count
