"""`python -m trtspec.deploy.die_with_parent PARENT SIGNAL COMMAND…`: becomes COMMAND, which ends with PARENT.

A server in a session of its own would outlive a deploy that was killed by SIGKILL. The kernel sends COMMAND
the SIGNAL, a number, when PARENT dies; that setting survives the exec.

The server's threads get stacks as large as those that NVIDIA has its containers started with: Triton copies
an HTTP body of the type that curl sends onto the stack, so that one of 4 MB ends a server with the usual 8 MB
(triton-inference-server/server, issue 5840).
"""

from __future__ import annotations

import ctypes
import os
import resource
import sys

_PR_SET_PDEATHSIG = 1
_STACK = 64 << 20


def main(parent: int, number: int, command: list[str]) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number)
    _, most = resource.getrlimit(resource.RLIMIT_STACK)
    stack = _STACK if most == resource.RLIM_INFINITY else min(_STACK, most)
    resource.setrlimit(resource.RLIMIT_STACK, (stack, most))
    # The parent may have died before the kernel was asked.
    if os.getppid() == parent:
        os.execvp(command[0], command)  # noqa: S606


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
