"""Describes the machine that builds and loads engines, or a container on it: its software and its disks."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trtspec.checkpoint.calibrate.calibrate import PACKAGES as CALIBRATE_PACKAGES
from trtspec.pipeline.containers.engine import ContainerEngine, find_engine
from trtspec.pipeline.machine.devices import Gpu, find_gpus
from trtspec.pipeline.machine.installed import COMMAND, engine_versions, installed
from trtspec.recipe.releases import Release, release_of

PACKAGES = ("trtspec", "torch", "numpy", "tokenizers", *CALIBRATE_PACKAGES)


@dataclass(frozen=True, slots=True)
class Host:
    """The builder of engines: this machine, or a container on it."""

    versions: Mapping[str, str]
    """The versions of the packages that are installed here, and of those beside trtllm-build or in the image.
    """
    trtllm_build: str | None = None
    """The path of the command; None if it is not installed."""
    gpus: tuple[Gpu, ...] = ()
    container_engine: ContainerEngine | None = None
    """Runs the container that engines are built in. None if they are built by what is installed here."""


def find_host(release: Release | None, *, container: bool) -> Host:
    """Looks at what would build engines: this machine, or a container on it.

    For a container, the versions of TensorRT are those of the image of this release of TensorRT-LLM, or of
    the default.
    """
    release = release or release_of(None)
    trtllm_build = shutil.which(COMMAND)
    image = {"tensorrt_llm": release.version, "tensorrt": release.tensorrt}
    return Host(
        versions=installed(PACKAGES) | (image if container else engine_versions()),
        trtllm_build=trtllm_build,
        gpus=find_gpus() if container or trtllm_build else (),
        container_engine=find_engine() if container else None,
    )


@dataclass(frozen=True, slots=True)
class Disk:
    """The disk under a folder."""

    folder: Path
    """The folder, or the nearest one above it that is there."""
    device: int
    """The number that the system knows the disk by."""
    free: int
    """In bytes."""
    is_read_only: bool


def find_disk(folder: Path) -> Disk:
    """Looks at the disk that `folder`, which need not be there, is on or would be on."""
    found = next(parent for parent in (folder.absolute(), *folder.absolute().parents) if parent.is_dir())
    is_read_only = bool(os.statvfs(found).f_flag & os.ST_RDONLY)
    return Disk(found, found.stat().st_dev, shutil.disk_usage(found).free, is_read_only)
