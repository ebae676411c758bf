"""A running server of somebody else, wherever it runs."""

from __future__ import annotations

import time
from typing import Protocol

from trtspec.base.causes import DRIVER, EXCLUSIVE, Cause, find_cause, gpu_memory
from trtspec.base.errors import ServerError
from trtspec.base.tail import last_bytes
from trtspec.deploy.following import KEPT
from trtspec.deploy.server import how_ended
from trtspec.deploy.vendor.deployment import VendorDeployment

# The time beyond the grace in which a server and its engine's processes end.
_STOP_S = 15.0

CAUSES = (
    gpu_memory("end what else uses it (nvidia-smi), or lower engine.max_batch_size or engine.max_seq_len"),
    DRIVER,
    EXCLUSIVE,
    Cause(r"unrecognized arguments?: (.+)", "does not know {0}", "install the release of the build"),
    Cause(
        r"pip install (arctic-inference==[\d.]+)",
        "its Python lacks {0}, which suffix decoding needs",
        "install it there, or write another speculation.method",
    ),
)
"""What such a server, or PyTorch in it, says of why it ends."""

_NO_MODULE = Cause(
    r"No module named '?([\w.]+)",
    "its Python has no module {0}",
    "name the Python of its own environment: --python",
)


class VendorProcess(Protocol):
    """The process of a server, on this machine or in a container."""

    def poll(self) -> int | None:
        """Returns its exit status, negative for a signal; None while it runs."""
        ...

    def stop(self, seconds: float) -> None:
        """Tells it to end, and waits so many seconds for that."""
        ...


class VendorServer:
    """A server that was started and may not be ready yet; nothing stands before it."""

    def __init__(self, deployment: VendorDeployment, process: VendorProcess) -> None:
        self._deployment, self._process = deployment, process
        self._begin = time.monotonic()
        # Earlier servers may have written what comes before.
        self._log_begin = deployment.log.stat().st_size if deployment.log.exists() else 0

    def is_ready(self) -> bool:
        """Says whether the server is ready; raises `ServerError` when it has ended or takes too long."""
        self.check_running()
        if self._deployment.is_ready():
            return True
        if time.monotonic() > self._begin + self._deployment.start_s:
            problem = f"not ready after {self._deployment.start_s:g} s"
            raise ServerError(self._name, problem, "give it longer with --timeout")
        return False

    def check_running(self) -> None:
        """Raises `ServerError` when the server has ended by itself."""
        status = self._process.poll()
        if status is None:
            return
        cause = find_cause((*CAUSES, _NO_MODULE), last_bytes(self._deployment.log, KEPT, self._log_begin))
        how = how_ended(status)
        if cause:
            raise ServerError(self._name, f"{how}: {cause[0]}", cause[1])
        raise ServerError(self._name, how, f"its log is {self._deployment.log}")

    def refuse(self, state: str) -> None:
        """Does nothing: whoever connects to a server that has ended is refused by the machine."""

    def stop(self) -> None:
        """Tells the server to end, which lets requests in flight end first, as it was told at its start."""
        self._process.stop(self._deployment.grace_s + _STOP_S)

    @property
    def _name(self) -> str:
        return self._deployment.manners.title
