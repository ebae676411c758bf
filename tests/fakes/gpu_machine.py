"""A machine with GPUs and NVIDIA's tools, as executables in a folder for PATH."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

from tests.fakes.docker_daemon import CLIENT, PODMAN, TRTLLM_BUILD, DockerDaemon
from tests.fakes.infos import PODMAN_OF_USER
from trtspec.base.cache import cache_folder

H200 = "NVIDIA H200, 9.0, 590.44.01, Default, Disabled, 143771, 143000"
H100 = "NVIDIA H100 80GB HBM3, 9.0, 590.44.01, Default, Disabled, 81559, 81000"
QUERY = (
    "--query-gpu=index,uuid,name,compute_cap,driver_version,compute_mode,mig.mode.current,"
    "memory.total,memory.free"
)


class GpuMachine:
    """`environment` finds what was put on the machine, and nothing of the real one but the system's tools."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._bin, self._packages = folder, folder / "bin", folder / "packages"
        self._bin.mkdir(parents=True)
        search = [str(self._packages), os.environ.get("PYTHONPATH", "")]
        self._packages.mkdir()
        self._keep_kernels()
        self.environment = {
            **os.environ,
            "PATH": f"{self._bin}:/usr/bin:/bin",
            "PYTHONPATH": os.pathsep.join(filter(None, search)),
            "TRTSPEC_CACHE": str(folder / "cache"),
        }
        for name in ("CUDA_VISIBLE_DEVICES", "TRTSPEC_CONTAINERS"):
            self.environment.pop(name, None)

    def _keep_kernels(self) -> None:
        """Has the compiled kernels of this machine in its cache: engines on a CPU would compile them anew."""
        shared = cache_folder() / "kernels"
        shared.mkdir(parents=True, exist_ok=True)
        (self.folder / "cache").mkdir()
        (self.folder / "cache" / "kernels").symlink_to(shared)

    def command(self, name: str, script: str) -> None:
        file = self._bin / name
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(0o755)

    def _script(self, name: str, source: Path) -> None:
        file = self._bin / name
        file.write_text(f"#!{sys.executable}\n{source.read_text()}")
        file.chmod(0o755)

    def gpus(self, *lines: str) -> None:
        """`nvidia-smi`, which answers one question: each line is the name and what follows it."""
        answer = "".join(f"{index}, GPU-{index}{index}, {line}\n" for index, line in enumerate(lines))
        (self._bin / "gpus.csv").write_text(answer)
        question = f"{QUERY} --format=csv,noheader,nounits"
        self.command(
            "nvidia-smi", f'[ "$*" = "{question}" ] || exit 2; exec /bin/cat {self._bin / "gpus.csv"}'
        )

    def install(self, package: str, version: str) -> None:
        """What `importlib.metadata` finds of a package."""
        info = self._packages / f"{package}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")

    def remove(self, package: str) -> None:
        for info in self._packages.glob(f"{package}-*.dist-info"):
            shutil.rmtree(info)

    def tensorrt_llm(self, release: str = "1.2.1", tensorrt: str = "10.14.1.48") -> None:
        """NVIDIA's image, as far as a build sees it."""
        self.install("tensorrt_llm", release)
        self.install("tensorrt", tensorrt)
        self.environment["FAKE_RELEASE"] = release
        self._script("trtllm-build", TRTLLM_BUILD)

    def containers(self, *images: str) -> DockerDaemon:
        """A docker that runs containers, with these images."""
        return self._containers("docker", CLIENT, images)

    def podman(self, *images: str, name: str = "podman") -> DockerDaemon:
        """A podman of a user, without docker; `name` is that of its command."""
        daemon = self._containers(name, PODMAN, images)
        daemon.info(json.dumps(PODMAN_OF_USER))
        if shutil.which("docker", path="/usr/bin:/bin"):
            self.environment["TRTSPEC_CONTAINERS"] = "podman"
        return daemon

    def _containers(self, name: str, script: str, images: tuple[str, ...]) -> DockerDaemon:
        self.command(name, script)
        daemon = DockerDaemon(self.folder / "docker", self._bin / name, self._bin / "gpus.csv")
        daemon.images(*images)
        self.environment["FAKE_DOCKER"] = str(daemon.folder)
        return daemon

    def docker(self, info: str) -> None:
        """`docker`, which answers one question with this JSON."""
        (self._bin / "docker.json").write_text(info)
        question = "info --format {{json .}}"
        self.command(
            "docker", f'[ "$*" = "{question}" ] || exit 2; exec /bin/cat {self._bin / "docker.json"}'
        )
