"""An installed tritonserver."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from trtspec.base.child import without_secrets


@dataclass(frozen=True, slots=True)
class TritonInstall:
    """A tritonserver that is installed on this machine."""

    server: Path
    """The executable."""
    backends: Path | None = None
    """The directory of its backends; None for the default."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """The environment variables that it needs beside those of this process, or in their place."""
    problem: str | None = None
    """The reason why other machines should not reach it; None if they may."""

    def environment(self) -> dict[str, str]:
        """Returns the environment to start it in: that of this process without secrets, and `variables`.

        Python writes no compiled files, so that a build stays as it was built.
        """
        return {**without_secrets(os.environ), **self.variables, "PYTHONDONTWRITEBYTECODE": "1"}
