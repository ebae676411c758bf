"""`trtspec` as a user calls it, without the second that a process of it takes to start."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from subprocess import CompletedProcess
from unittest.mock import patch

from trtspec.cli.app import main
from trtspec.cli.terminal.output import out


def trtspec(
    *words: object, folder: Path | None = None, environment: Mapping[str, str] = os.environ
) -> CompletedProcess[str]:
    """Runs a command line in this folder and environment and returns what it printed and its exit status.

    What libraries read from the environment at their import stays as it is; PYTHONPATH is heeded.
    """
    argv, here = ["trtspec", *map(str, words)], Path.cwd()
    packages = [entry for entry in environment.get("PYTHONPATH", "").split(os.pathsep) if entry]
    stdout, stderr = StringIO(), StringIO()
    status: int | str | None = 0
    with (
        patch.dict(os.environ, environment, clear=True),
        patch.object(sys, "path", [*packages, *sys.path]),
        patch.object(sys, "argv", argv),
        redirect_stdout(stdout),
        redirect_stderr(stderr),
    ):
        os.chdir(folder or here)
        try:
            main()
        except SystemExit as end:
            status = end.code
        finally:
            os.chdir(here)
            out.set_talk(quiet=False, verbose=0)
    assert isinstance(status, int)
    return CompletedProcess(argv, status, stdout.getvalue(), stderr.getvalue())
