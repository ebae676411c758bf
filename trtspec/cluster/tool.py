"""Runs the command-line tools of clusters, which a caller does not interrupt."""

from __future__ import annotations

import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor

from trtspec.base.errors import UnavailableError


def run_tool(name: str, *words: str, stdin: str, repair: str) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end, even if Ctrl-C or another exception comes meanwhile.

    A command that is killed halfway leaves a release locked, or a job that nobody knows. Raises
    UnavailableError with this repair if PATH lacks the command.
    """
    executable = shutil.which(name)
    if executable is None:
        raise UnavailableError(name, "is not on PATH", repair)
    # Signals interrupt the main thread alone, and the end of the block waits for the other one. In a session
    # of its own the command does not hear of the terminal's Ctrl-C either.
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(
            subprocess.run,
            [executable, *words],
            input=stdin,
            capture_output=True,
            text=True,
            start_new_session=True,
        ).result()
