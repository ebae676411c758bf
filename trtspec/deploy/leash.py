"""`python -m trtspec.deploy.leash PARENT COMMAND…`: becomes COMMAND, which is told to end when PARENT dies.

A server in a session of its own would outlive a deploy that was killed hard. The kernel remembers the signal
over the exec.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(parent: int, command: list[str]) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    # It may have died before the kernel was asked.
    if os.getppid() == parent:
        os.execvp(command[0], command)  # noqa: S606


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
