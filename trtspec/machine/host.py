"""What builds engines here: this machine, or a container on it."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass

from trtspec.checkpoint.calibrate.calibrate import PACKAGES as CALIBRATE_PACKAGES
from trtspec.docker.daemon import Daemon, find_daemon
from trtspec.engine.trtllm import COMMAND
from trtspec.machine.devices import Gpu, find_gpus
from trtspec.machine.installed import engine_versions, installed
from trtspec.recipe.releases import Release

PACKAGES = ("trtspec", "torch", "numpy", "tokenizers", *CALIBRATE_PACKAGES)


@dataclass(frozen=True, slots=True)
class Host:
    """`versions` has the packages that are installed, here or with trtllm-build.

    `trtllm_build` is None where there is none. `container` says whether engines are built in one; `daemon` is
    then docker's, None where there is none.
    """

    versions: Mapping[str, str]
    trtllm_build: str | None = None
    gpus: tuple[Gpu, ...] = ()
    container: bool = False
    daemon: Daemon | None = None


def find_host(release: Release, *, container: bool) -> Host:
    """Looks at this machine; in a container there is what the image of the release has."""
    trtllm_build = shutil.which(COMMAND)
    image = {"tensorrt_llm": release.version, "tensorrt": release.tensorrt}
    return Host(
        versions=installed(PACKAGES) | (image if container else engine_versions()),
        trtllm_build=trtllm_build,
        gpus=find_gpus() if container or trtllm_build else (),
        container=container,
        daemon=find_daemon() if container else None,
    )
