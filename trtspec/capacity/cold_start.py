"""Computes how long replicas take to start; pure."""

from __future__ import annotations

from dataclasses import dataclass

from trtspec.base.units import three_digits
from trtspec.pipeline.store.store import THREADS
from trtspec.recipe.fleet import Start

_GB = 10**9


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
