"""Holds the inputs of a launch configuration: a recipe with every default filled in, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from trtspec.checkpoint.convert_options import ConvertOptions
from trtspec.methods.method import Method
from trtspec.pipeline.engine.engine_options import BuildOptions


@dataclass(frozen=True, slots=True)
class ServerRelease:
    """A release of a server that is on PyPI, and whose own configuration classes were read or asked."""

    version: str
    image: str
    cpu_image: str | None = None
    """An image that runs without a GPU; None if there is no such image."""
    metrics_path: str | None = "/metrics"
    """The path of the server's metrics for Prometheus; None if there is none."""


@dataclass(frozen=True, slots=True)
class LaunchModel:
    """A model as a server loads it."""

    place: str
    """The folder of the model, or its Hub id."""
    revision: str | None = None
    """The commit of the Hub id."""
    quantize: bool = False
    """True if the server quantizes the weights to FP8 while it loads them."""

    @property
    def is_folder(self) -> bool:
        return Path(self.place).is_absolute()


@dataclass(frozen=True, slots=True)
class LaunchInputs:
    """All inputs of a launch configuration."""

    release: ServerRelease
    names: tuple[str, ...]
    """The names that clients call the model by, where the server has names; it answers by the first."""
    target: LaunchModel
    draft: LaunchModel | None
    method: Method
    num_draft_tokens: int
    checkpoint: ConvertOptions
    """The ranks, and the precision of all models. Weights that are quantized stay as they are."""
    options: BuildOptions
    """The sizes."""
    enable_chunked_context: bool
    kv_bytes: int | None
    """The bytes of the KV caches where the server cannot choose them itself, on a CPU; None on a GPU."""
    schedule: Mapping[int, int] = field(default_factory=dict)
    """The largest K from so many running requests on; empty if their number does not bound it."""

    @property
    def image(self) -> str:
        """The vendor's image, without a GPU that for a CPU."""
        of_cpu = self.release.cpu_image if self.kv_bytes is not None else None
        return of_cpu or self.release.image

    @property
    def folders(self) -> tuple[str, ...]:
        """The folders of the models; those of the Hub have none."""
        models = (self.target, self.draft)
        return tuple(model.place for model in models if model and model.is_folder)
