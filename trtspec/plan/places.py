"""Where engines are built."""

from __future__ import annotations

from pathlib import Path

from trtspec.docker.container import name_for
from trtspec.docker.daemon import container_user
from trtspec.engine import trtllm
from trtspec.engine.in_container import InContainer
from trtspec.engine.place import Here, Place
from trtspec.machine.host import Host
from trtspec.recipe.releases import Release


def build_place(
    release: Release, host: Host, role: str, folders: tuple[Path, ...], gpus: tuple[str, ...]
) -> Place:
    """For one engine, of the build directory that is the first of the `folders` that its build uses.

    `gpus` are those of its own, empty for all.
    """
    if not host.container:
        return Here(host.trtllm_build or trtllm.COMMAND, gpus)
    return InContainer(
        image=release.image,
        name=name_for(f"build-{role}", folders[0]),
        folders=folders,
        gpus=gpus or tuple(gpu.uuid for gpu in host.gpus),
        user=container_user(host.daemon),
    )
