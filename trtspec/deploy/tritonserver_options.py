"""The options of tritonserver; pure."""

from __future__ import annotations

from trtspec.deploy.deployment import KEY_HEADER, Deployment
from trtspec.serving.triton.request_id import HEADER_PATTERN

# The APIs that change the server, or let a client into its memory; perf_analyzer reads the others.
_CLOSED = "model-repository,shared-memory,logging,trace"


def server_options(deployment: Deployment, address: str, memory: str, *, has_gpus: bool) -> list[str]:
    """Returns the options of a server that listens on this address.

    `memory` begins the names of the shared memory that the server makes. Every user of the machine can read
    the deployment's key in the options; it keeps clients on the network out.
    """
    ports = deployment.ports
    options = [
        f"--model-repository={deployment.repository}",
        # In this mode a server that is to end can be made unready before it does.
        "--model-control-mode=explicit",
        "--load-model=*",
        f"--backend-config=python,stub-timeout-seconds={deployment.start_s:.0f}",
        f"--backend-config=python,shm-region-prefix-name={memory}",
        "--disable-auto-complete-config",
        f"--exit-timeout-secs={deployment.grace_s:.0f}",
        f"--http-address={address}",
        f"--grpc-address={address}",
        f"--metrics-address={address}",
        f"--http-port={ports.http}",
        f"--grpc-port={ports.grpc}",
        f"--metrics-port={ports.metrics}",
        f"--http-header-forward-pattern={HEADER_PATTERN}",
        f"--grpc-header-forward-pattern={HEADER_PATTERN}",
        f"--http-restricted-api={_CLOSED}:{KEY_HEADER}={deployment.key}",
        f"--grpc-restricted-protocol={_CLOSED}:{KEY_HEADER}={deployment.key}",
    ]
    options += [f"--trace-config={option}" for option in deployment.trace_config]
    if deployment.loads_one_by_one:
        options.append("--model-load-thread-count=1")
    return options if has_gpus else [*options, "--allow-gpu-metrics=false"]
