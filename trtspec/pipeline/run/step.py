"""One step of a build."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from trtspec.base.errors import TrtspecError
from trtspec.base.progress import Progress
from trtspec.base.roles import Role


class Digested:
    """The digest of some data, as a part of other data."""

    def __init__(self, of: Any) -> None:
        self.of = of


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to do in a build."""

    kind: str
    summary: str
    inputs: tuple[str, ...]
    output: str | None
    """A path in the build directory; None for a check that makes nothing."""
    command: tuple[str, ...]
    """The command that does the same by hand. Empty where only `trtspec build` can do it."""
    made_of: Any = field(repr=False)
    """All that the output depends on, except the outputs of the steps in `after`, as data of JSON.

    The path of a file stands for its content, and `Digested` for a digest. The step's digest is that of this.
    """
    action: Callable[..., None] = field(repr=False)
    """Makes the output at the temporary path that it is given, and reports to an `Advance` how many of `size`
    bytes are done. It gets the values of `told` by name.
    """
    after: tuple[str, ...] = ()
    """The names of the steps whose outputs the step reads."""
    role: Role | None = None
    """The role of the model that the step is about; None if it has no model of its own."""
    fetch: Callable[[Progress], object] | None = field(default=None, repr=False)
    """Downloads the weights that the step reads; None if it reads none, or they are on this machine."""
    size: int | None = None
    gpus: tuple[str, ...] = ()
    """The UUIDs of GPUs that the step has for itself. Neighbours that both have some are run side by side."""
    obstacle: TrtspecError | None = None
    """The error that keeps the step from being run on this machine."""
    prepare: Callable[[Progress], None] | None = field(default=None, repr=False)
    """Fetches what else the step needs, before the first step is run."""
    told: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Data as in `made_of`, which the action gets with the digests in it."""
    portable: tuple[str, ...] = ()
    """The command as if it were run in the build directory, the same on every machine; empty where the paths
    of `command` tell it.
    """
    fetches: tuple[tuple[str, ...], ...] = ()
    """The commands that do what `prepare` does; empty where nothing is fetched."""

    @property
    def name(self) -> str:
        return name_of(self.kind, self.role)


def name_of(kind: str, role: Role | None) -> str:
    """Returns the name of a step, for people, records and manifests."""
    return f"{kind} {role}" if role else kind
