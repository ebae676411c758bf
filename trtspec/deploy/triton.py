"""An installed tritonserver."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Triton:
    """`server` is the executable, `backends` what `--backend-directory` takes, None for its own.

    `variables` are those that it needs with other values than this process has.
    """

    server: Path
    backends: Path | None = None
    variables: Mapping[str, str] = field(default_factory=dict)

    def environment(self) -> dict[str, str]:
        """This process's, changed so that the server runs; a build directory stays as it was built."""
        return {**os.environ, **self.variables, "PYTHONDONTWRITEBYTECODE": "1"}
