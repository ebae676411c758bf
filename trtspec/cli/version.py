"""`trtspec version`: the same as `trtspec --version`."""

from __future__ import annotations

import trtspec
from trtspec.cli.terminal.output import out

EXAMPLES = ("trtspec version",)


def version() -> None:
    """Print the version."""
    out.result(f"trtspec {trtspec.__version__}")
