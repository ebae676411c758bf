"""The platform that an engine was built for; it loads on no other."""

from __future__ import annotations

from dataclasses import dataclass

from trtspec.pipeline.engine.compatibility import base_version, fits_sm, fits_tensorrt
from trtspec.pipeline.engine.loading import Runtime
from trtspec.recipe.gpus import GPUS
from trtspec.recipe.releases import Release


@dataclass(frozen=True, slots=True)
class Platform:
    """The requirements of an engine for the machine that loads it."""

    backend: str
    sm: int | None = None
    """The compute capability times ten; None for an engine that loads on any."""
    tensorrt: str | None = None
    """The version; None for an engine that loads on any."""
    tensorrt_llm: str | None = None
    """The version; None for an engine that loads on any."""

    def __str__(self) -> str:
        if self.sm is None:
            return self.backend
        return f"SM {self.sm}, TensorRT {self.tensorrt}, TensorRT-LLM {self.tensorrt_llm}"

    @property
    def folder(self) -> str:
        """The name of its folder in a store."""
        if self.sm is None:
            return self.backend
        return f"sm{self.sm}-tensorrt{self.tensorrt}-tensorrt_llm{self.tensorrt_llm}"

    def misfit(self, runtime: Runtime) -> str | None:
        """Returns why an engine of this platform does not load in `runtime`; None if nothing is known against
        it.
        """
        if self.sm is None:
            return None
        if runtime.sms and not any(fits_sm(self.sm, sm) for sm in runtime.sms):
            return f"it was built for SM {self.sm}, but this machine has SM {runtime.sms[0]}"
        llm, tensorrt = runtime.tensorrt_llm, runtime.tensorrt
        if llm and llm != self.tensorrt_llm:
            return f"it was built by TensorRT-LLM {self.tensorrt_llm}, but this machine has {llm}"
        if tensorrt and not fits_tensorrt(self.tensorrt, tensorrt):
            return f"it was built by TensorRT {self.tensorrt}, but this machine has {base_version(tensorrt)}"
        return None


def platform_of(gpu: str, release: Release | None, tensorrt: str | None = None) -> Platform:
    """The platform of a recipe's engines; `release` is None for an engine that loads on any.

    `tensorrt` is the version that builds; None stands for that of the release's image.
    """
    if release is None:
        return Platform("torch")
    version = base_version(tensorrt or release.tensorrt)
    return Platform("tensorrt_llm", GPUS[gpu].sm, version, release.version)
