"""The options of tritonserver; pure."""

from __future__ import annotations

from trtspec.deploy.deployment import Deployment

DRAIN_S = 10
"""What is in flight gets this long to end when the server is told to, in seconds."""


def server_options(deployment: Deployment, address: str, memory: str, has_gpus: bool) -> list[str]:
    """`address` is what it listens on, `memory` begins the names of the shared memory that it makes."""
    ports = deployment.ports
    options = [
        f"--model-repository={deployment.repository}",
        f"--backend-config=python,stub-timeout-seconds={deployment.start_s:.0f}",
        f"--backend-config=python,shm-region-prefix-name={memory}",
        "--disable-auto-complete-config",
        f"--exit-timeout-secs={DRAIN_S}",
        f"--http-address={address}",
        f"--grpc-address={address}",
        f"--metrics-address={address}",
        f"--http-port={ports.http}",
        f"--grpc-port={ports.grpc}",
        f"--metrics-port={ports.metrics}",
    ]
    return options if has_gpus else [*options, "--allow-gpu-metrics=false"]
