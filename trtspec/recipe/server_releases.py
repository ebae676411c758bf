"""The releases of servers of others that serve a recipe, and the vendor's image of each.

The releases are those of PyPI whose own configuration classes were read or asked. The images are as vLLM
(docs/deployment/docker.md), SGLang (docs/get_started/install.md) and NVIDIA (NGC, tensorrt-llm/release) name
them; no page that could be read has the tags of vLLM 0.33.0 and SGLang 0.5.23, formed like those before.
What Prometheus reads is at vLLM's and SGLang's `/metrics`, and at `/prometheus/metrics` of trtllm-serve from
1.1 on, whose `/metrics` are JSON (NVIDIA/TensorRT-LLM#5785, `serve/openai_server.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServerRelease:
    """One release of a server."""

    version: str
    image: str
    cpu_image: str | None = None
    """An image that runs without a GPU; None where there is no such image."""
    metrics_path: str | None = "/metrics"
    """The path where the server tells what Prometheus reads; None where there is none."""


def _vllm(version: str) -> ServerRelease:
    cpu = f"public.ecr.aws/q9t5s3a7/vllm-cpu-release-repo:v{version}"
    return ServerRelease(version, f"vllm/vllm-openai:v{version}", cpu)


def _tensorrt_llm(version: str) -> ServerRelease:
    metrics = "/prometheus/metrics" if version != "1.0.0" else None
    return ServerRelease(version, f"nvcr.io/nvidia/tensorrt-llm/release:{version}", metrics_path=metrics)


_RELEASES = {
    "vllm": (_vllm("0.33.0"), _vllm("0.32.0")),
    "sglang": (ServerRelease("0.5.23", "lmsysorg/sglang:v0.5.23"),),
    "tensorrt_llm_pytorch": tuple(map(_tensorrt_llm, ("1.2.1", "1.2.0", "1.1.0", "1.0.0"))),
}

SERVER_RELEASES: Mapping[str, Mapping[str, ServerRelease]] = {
    backend: {release.version: release for release in releases} for backend, releases in _RELEASES.items()
}
"""The releases of each backend by their versions, the default first."""


VERSIONS = tuple(version for releases in SERVER_RELEASES.values() for version in releases)


def flaw(backend: str, version: str) -> tuple[str, str] | None:
    """Returns why a backend has no such release, and the repair; None if it has."""
    known = SERVER_RELEASES[backend]
    if version in known:
        return None
    return f"found {version!r:.80}: no release of {backend} that was tried", f"known are {', '.join(known)}"


def release_of(backend: str, version: str | None) -> ServerRelease:
    """Returns the release of a recipe's `engine.release`; None stands for the default."""
    releases = SERVER_RELEASES[backend]
    return releases[version or next(iter(releases))]
