"""Somebody else's server on this machine."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from trtspec.base.child import ChildProcess, without_secrets
from trtspec.deploy.logs import begin_log
from trtspec.deploy.vendor.deployment import VendorDeployment
from trtspec.deploy.vendor.server import VendorServer
from trtspec.gateway.ports import listen


@contextmanager
def serve(
    deployment: VendorDeployment, command: Sequence[str], variables: Mapping[str, str]
) -> Iterator[Callable[[], VendorServer]]:
    """Yields a function that starts a server, which may not be ready yet; each call first ends the last one.

    It gets this process's environment without what looks like a secret, and `variables`.

    The last server is ended at the end of the block, with every process that it has started. Raises
    `UnavailableError` before anything starts when the port is taken.
    """
    listen(deployment.host, deployment.port, "openai").close()
    begin_log(deployment.log)
    running: list[ChildProcess] = []

    def end() -> None:
        while running:
            running.pop().kill()

    def start() -> VendorServer:
        end()
        environment = {**without_secrets(os.environ), **variables, **deployment.secrets}
        with deployment.log.open("ab") as log:
            child = ChildProcess(
                command,
                log,
                folder=deployment.build,
                environment=environment,
                orphaned=signal.SIGTERM,
            )
        running.append(child)
        return VendorServer(deployment, running[0])

    try:
        yield start
    finally:
        end()
