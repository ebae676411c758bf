"""One step of a build."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from trtspec.errors import TrtspecError
from trtspec.progress import Advance, Progress
from trtspec.roles import Role


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to do: of which kind, and with the model of which role, if it is about one.

    `output` is a path in the build directory, None for a check that makes nothing; `after` names the steps
    whose outputs it reads. `command` does the same by hand, and is empty where only `trtspec build` does
    it. `digest` stands for all that the output depends on beside those outputs; it is None where the facts
    are without digests. `action` makes the output at the temporary path that it is given and tells how many
    of `size` bytes are done. `gpus` are the UUIDs of GPUs that are the step's own: neighbours that both have
    some are run side by side. `obstacle` is what keeps the step from being run on this machine. `prepare`
    fetches what else it needs, before the first step is run.
    """

    kind: str
    summary: str
    inputs: tuple[str, ...]
    output: str | None
    command: tuple[str, ...]
    digest: str | None
    action: Callable[[Path, Advance], None] = field(repr=False)
    after: tuple[str, ...] = ()
    role: Role | None = None
    size: int | None = None
    gpus: tuple[str, ...] = ()
    obstacle: TrtspecError | None = None
    prepare: Callable[[Progress], None] | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        return name_of(self.kind, self.role)


def name_of(kind: str, role: Role | None) -> str:
    """What people, records and manifests call a step."""
    return f"{kind} {role}" if role else kind
