"""An installed tritonserver."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from trtspec.deploy.environment import for_server


@dataclass(frozen=True, slots=True)
class Triton:
    """`server` is the executable, `backends` what `--backend-directory` takes, None for its own.

    `variables` are those that it needs with other values than this process has; `problem` is why a network
    should not reach it.
    """

    server: Path
    backends: Path | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    problem: str | None = None

    def environment(self) -> dict[str, str]:
        """This process's without its secrets, so that the server runs; a build stays as it was built."""
        return {**for_server(os.environ), **self.variables, "PYTHONDONTWRITEBYTECODE": "1"}
