"""Makes the replicas of a plan, with drafts and without, and computes how long they take to start; pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from trtspec.base.roles import Role
from trtspec.base.units import three_digits
from trtspec.capacity.tempo import Replica, Tempo
from trtspec.checkpoint.convert import rank_sizes
from trtspec.pipeline.plan.memory import budget_of
from trtspec.pipeline.plan.resolved import EnginePlan, Resolved
from trtspec.pipeline.store.store import THREADS
from trtspec.recipe import gpus
from trtspec.recipe.fleet import Start

_GB = 10**9


@dataclass(frozen=True, slots=True)
class EngineBytes:
    """Bytes of the engines: of all, and of those on the fullest GPU."""

    whole: int
    fullest: int


def replica(resolved: Resolved, tempo: Tempo, *, has_drafts: bool) -> Replica:
    """Returns a server of a plan; one without drafts can use the draft's memory and GPUs."""
    engines, options = _engines(resolved, has_drafts), resolved.target.options
    placed, hardware = resolved.placement, resolved.loaded.recipe.hardware
    used = {*placed.target, *(placed.draft if has_drafts else ())}
    # A replica on a CPU has no plan of memory.
    gpu = None if resolved.target.runner.is_embedded else gpus.GPUS.get(hardware.gpu)
    return Replica(
        tempo,
        places=min(engine.options.max_batch_size for engine in engines.values()),
        kv_tokens=budget_of(gpu, engines, hardware.count).tokens if gpu else None,
        longest_draft=options.max_draft_len if has_drafts else 0,
        most_rows=options.max_num_tokens,
        gpus=1 if hardware.gpu == gpus.NONE else len(used),
    )


def weight(resolved: Resolved, *, has_drafts: bool) -> EngineBytes:
    """Returns the bytes of the engines, which are nearly those of their checkpoints."""
    sizes: dict[int, int] = {}
    for role, engine in _engines(resolved, has_drafts).items():
        ranks = rank_sizes(engine.model.source, engine.checkpoint, engine.draft_inside)
        places: Sequence[int] = resolved.placement.of(role) or range(len(ranks))
        for place, size in zip(places, ranks, strict=False):
            sizes[place] = sizes.get(place, 0) + size
    return EngineBytes(sum(sizes.values()), max(sizes.values()))


def _engines(resolved: Resolved, has_drafts: bool) -> dict[Role, EnginePlan]:
    if has_drafts:
        return dict(resolved.engines)
    target = resolved.target
    return {Role.TARGET: replace(target, options=replace(target.options, max_draft_len=0))}


@dataclass(frozen=True, slots=True)
class StartPhase:
    """One phase of a start, and the origin of its seconds."""

    name: str
    seconds: float
    because: str


@dataclass(frozen=True, slots=True)
class ColdStart:
    """The start of several replicas at once."""

    replicas: int
    """The number of replicas."""
    pulled: float
    """The bytes that each replica reads from the store."""
    parts: tuple[StartPhase, ...]

    @property
    def seconds(self) -> float:
        return sum(part.seconds for part in self.parts)

    @property
    def traffic(self) -> float:
        """The bytes that the store sends."""
        return self.replicas * self.pulled


def cold_start(start: Start, pulled: float, loaded: float, replicas: int) -> ColdStart:
    """Returns the start of this many replicas on nodes without image or engines.

    `pulled` is the bytes of the build, and `loaded` those of the fullest GPU; the GPUs of a replica load in
    parallel. Pieces are verified as they arrive, so only the extra time of that counts.
    """
    pull, store = start.pull_gb_per_second, start.store_gb_per_second
    image, verify = start.image_gb_per_second, start.verify_gb_per_second * THREADS
    pull_s = pulled / _GB / min(pull, store / max(replicas, 1))
    is_shared = store / max(replicas, 1) < pull
    source = f"{store:g} GB/s, which {replicas:,} share" if is_shared else f"{pull:g} GB/s"
    load = start.load_gb_per_second
    parts = (
        StartPhase("node", start.node_seconds, "assumed" if start.node_seconds else "assumed: nodes wait"),
        StartPhase(
            "image",
            start.image_gb / image,
            f"assumed: {start.image_gb:g} GB at {image:g} GB/s, 0 s where the node has it",
        ),
        StartPhase("pull", pull_s, f"{three_digits(int(pulled))} at {source}"),
        StartPhase(
            "verify",
            max(0.0, pulled / _GB / verify - pull_s),
            f"SHA-256 of each piece as it comes, {verify:g} GB/s",
        ),
        StartPhase("load", loaded / _GB / load, f"{three_digits(int(loaded))} a GPU at {load:g} GB/s"),
        StartPhase("warm-up", start.warm_up_seconds, "assumed"),
    )
    return ColdStart(replicas, pulled, parts)
