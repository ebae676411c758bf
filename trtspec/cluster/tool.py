"""Runs the command-line tools of clusters, which a caller does not interrupt."""

from __future__ import annotations

import shutil
import subprocess
from subprocess import PIPE

from trtspec.base.errors import UnavailableError


def run_tool(name: str, *words: str, stdin: str, repair: str) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end, even if Ctrl-C or another exception comes meanwhile.

    A command that is killed halfway leaves a release locked, or a job that nobody knows. A second exception
    leaves the command running. Raises UnavailableError with this repair if PATH lacks the command.
    """
    executable = shutil.which(name)
    if executable is None:
        raise UnavailableError(name, "is not on PATH", repair)
    # In a session of its own, which the terminal's Ctrl-C does not reach.
    with subprocess.Popen(  # noqa: S603
        [executable, *words], stdin=PIPE, stdout=PIPE, stderr=PIPE, text=True, start_new_session=True
    ) as process:
        try:
            stdout, stderr = process.communicate(stdin)
        except BaseException:
            process.communicate()
            raise
    return subprocess.CompletedProcess(words, process.returncode, stdout, stderr)
