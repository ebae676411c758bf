"""Describes the software of this machine that would load engines."""

from __future__ import annotations

from trtspec.pipeline.engine.loading import Runtime
from trtspec.pipeline.machine.devices import find_gpus
from trtspec.pipeline.machine.installed import engine_versions
from trtspec.recipe.releases import Release


def image_runtime(release: Release) -> Runtime:
    """The runtime in a container of the release's image, on this machine's GPUs."""
    return Runtime(release.version, release.tensorrt, tuple(gpu.sm for gpu in find_gpus()))


def this_runtime() -> Runtime:
    """The runtime of this machine itself."""
    versions = engine_versions()
    sms = tuple(gpu.sm for gpu in find_gpus())
    return Runtime(versions.get("tensorrt_llm"), versions.get("tensorrt"), sms)
