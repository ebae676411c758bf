"""Computes the time that new replicas take to start, by its phases; pure."""

from __future__ import annotations

from dataclasses import dataclass

from trtspec.base.units import three_digits


@dataclass(frozen=True, slots=True)
class Rates:
    """Rates in bytes per second, and times in seconds, as `trtspec.recipe.fleet.Start` describes them."""

    node_s: float
    image_bytes: float
    image: float
    pull: float
    store: float
    verify: float
    """The rate at which all cores together verify pulled files."""
    load: float
    warm_up_s: float


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


def cold_start(rates: Rates, pulled: float, loaded: float, replicas: int) -> ColdStart:
    """Returns the start of this many replicas on nodes without image or engines.

    `pulled` is the bytes of the build, and `loaded` those of the fullest GPU; the GPUs of a replica load in
    parallel. Pieces are verified as they arrive, so only the extra time of that counts.
    """
    each = min(rates.pull, rates.store / max(replicas, 1))
    shared = "" if each == rates.pull else f", which {replicas:,} share"
    source = _rate(rates.pull if each == rates.pull else rates.store)
    parts = (
        StartPhase("node", rates.node_s, "assumed: nodes wait" if not rates.node_s else "assumed"),
        StartPhase(
            "image",
            rates.image_bytes / rates.image,
            f"assumed: {rates.image_bytes / 1e9:g} GB at {_rate(rates.image)}, 0 s where the node has it",
        ),
        StartPhase("pull", pulled / each, f"{three_digits(int(pulled))} at {source}{shared}"),
        StartPhase(
            "verify",
            max(0.0, pulled / rates.verify - pulled / each),
            f"SHA-256 of each piece as it comes, {_rate(rates.verify)}",
        ),
        StartPhase("load", loaded / rates.load, f"{three_digits(int(loaded))} a GPU at {_rate(rates.load)}"),
        StartPhase("warm-up", rates.warm_up_s, "assumed"),
    )
    return ColdStart(replicas, pulled, parts)


def _rate(bytes_a_second: float) -> str:
    return f"{bytes_a_second / 1e9:g} GB/s"
