"""One step of a build."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from trtspec.base.errors import TrtspecError
from trtspec.base.progress import Advance, Progress
from trtspec.base.roles import Role


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to do, with the model of `role`, or with no model of its own if that is None.

    `output` is a path in the build directory, None for a check that makes nothing; `after` names the steps
    whose outputs the step reads. `command` does the same by hand, and is empty where only `trtspec build` can
    do it. `digest` stands for all that the output depends on beside those outputs; it is None where the facts
    have no digests. `action` makes the output at the temporary path that it is given, and reports how many of
    `size` bytes are done. `gpus` are the UUIDs of GPUs that the step has for itself: neighbours that both
    have some are run side by side. `obstacle` is what keeps the step from being run on this machine.
    `prepare` fetches what else the step needs, before the first step is run.
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
    """Returns the name of a step, for people, records and manifests."""
    return f"{kind} {role}" if role else kind
