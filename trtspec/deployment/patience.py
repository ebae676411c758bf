"""Computes the time limit for a server's start: the same here, in a container and in a pod."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from trtspec.backends.launch import ServerLaunch
from trtspec.base.units import three_digits

SLOW_B_S = 200e6
"""The bytes a second that a slow disk, or a network drive, gives at least."""

# An engine is ready once it is read. Another engine's server converts the weights, and may compile.
_OF_ENGINES_S, _OF_MODELS_S = 300, 1800


@dataclass(frozen=True, slots=True)
class Patience:
    """The time limit for a server's start: for reading files from a slow disk, and for everything else."""

    beside_s: int
    """The seconds for everything else."""
    size: float
    """The bytes of the files."""

    @property
    def seconds(self) -> float:
        return self.beside_s + self.size / SLOW_B_S

    def __str__(self) -> str:
        read = f"{three_digits(int(self.size))} at {SLOW_B_S / 1e6:.0f} MB/s"
        return f"{self.seconds:,.0f} s ({self.beside_s:,} s, and {read})"


def with_engines(sizes: Iterable[int]) -> Patience:
    """Returns the limit for a server that loads engines of these bytes."""
    return Patience(_OF_ENGINES_S, sum(sizes))


def with_build(build: Path) -> Patience:
    """Returns the limit for a server that loads the engines of a build directory."""
    return with_engines(file.stat().st_size for file in build.glob("*/engine/*"))


def with_models(launch: ServerLaunch) -> Patience:
    """Returns the limit for another engine's server, which loads the models itself."""
    return Patience(_OF_MODELS_S, launch.weights)
