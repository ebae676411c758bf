"""Describes the machine that builds and loads engines, or a container on it: its software and its disks."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution, distributions, version
from pathlib import Path
from typing import Any

from trtspec.checkpoint.calibrate.calibrate import PACKAGES as CALIBRATE_PACKAGES
from trtspec.pipeline.containers.engine import ContainerEngine, find_engine
from trtspec.pipeline.engine.directory import Runtime
from trtspec.pipeline.machine.devices import Gpu, find_gpus
from trtspec.recipe.migration.command import OwnFlags
from trtspec.recipe.migration.tool import OwnParser
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


COMMAND = "trtllm-build"
"""The command whose Python has TensorRT-LLM."""
ENGINE_PACKAGES = ("tensorrt_llm", "tensorrt")
_VERSION = re.compile(r"^Version: (\S+)$", re.MULTILINE)
_TIMEOUT_S = 10
_IMPORT_S = 120
"""Seconds for a server to be imported, with torch."""
_ASK_FLAGS = Path(__file__).with_name("ask_flags.py")
# The names of folders tell it: to import `importlib.metadata` takes three times as long.
_ASK = """
import json, os, sys
found = {}
wanted = {name.replace("-", "_").replace(".", "_").lower(): name for name in sys.argv[1:]}
for folder in filter(os.path.isdir, sys.path):
    for entry in os.listdir(folder):
        stem, kind = os.path.splitext(entry)
        if kind in (".dist-info", ".egg-info"):
            name, _, version = stem.partition("-")
            if name := wanted.get(name.replace(".", "_").lower()):
                if not version:
                    from importlib.metadata import version as told
                    version = told(name)
                found.setdefault(name, version)
print(json.dumps(found))
"""
_ASK_ALL = """
import json
from importlib.metadata import distributions
print(json.dumps({item.metadata["Name"]: item.version for item in distributions()}))
"""


def installed(packages: Iterable[str]) -> dict[str, str]:
    """The version of each of these packages that this Python has."""
    found = {}
    for package in packages:
        try:
            # The description that follows has thousands of lines, which are not parsed.
            told = _VERSION.search(distribution(package).read_text("METADATA") or "")
            found[package] = told[1] if told else version(package)
        except PackageNotFoundError:
            continue
    return found


def all_packages() -> dict[str, str]:
    """Every package of trtllm-build's Python and of this one; the version is the former's if both have it."""
    command = shutil.which(COMMAND)
    beside = _ask(_interpreter(Path(command)), _ASK_ALL) if command else {}
    here = {item.metadata["Name"]: item.version for item in distributions()}
    return dict(sorted((here | beside).items()))


def engine_versions() -> dict[str, str]:
    """The versions of TensorRT-LLM and TensorRT in trtllm-build's Python, or else in this one."""
    command = shutil.which(COMMAND)
    beside = installed_beside(Path(command), ENGINE_PACKAGES) if command else {}
    return installed(ENGINE_PACKAGES) | beside


def installed_beside(command: Path, packages: Iterable[str]) -> dict[str, str]:
    """The version of each package that a console script's Python has; empty for another kind of command."""
    return _ask(_interpreter(command), _ASK, *packages)


def installed_in(python: Path, packages: Iterable[str]) -> dict[str, str]:
    """The version of each package that another Python has; empty for one that does not run."""
    return _ask(str(python), _ASK, *packages)


def python_of(server: OwnParser, packages: Iterable[str]) -> str | None:
    """The Python of a server's program, or this one if it has the server's package; None without either."""
    command = shutil.which(server.program)
    own = sys.executable if installed(packages) else None
    return (_interpreter(Path(command)) if command else None) or own


def flags_of(python: str | Path, server: OwnParser, seconds: float = _IMPORT_S) -> OwnFlags:
    """The flags of a server's own parser; none if its Python does not answer in so many seconds."""
    names = filter(None, (server.parser, server.adds))
    said = _ask(str(python), _ASK_FLAGS.read_text(encoding="utf-8"), *names, seconds=seconds)
    return {flag: (first, count) for flag, (first, count) in said.items()}


def image_runtime(release: Release) -> Runtime:
    """The runtime in a container of the release's image, on this machine's GPUs."""
    return Runtime(release.version, release.tensorrt, tuple(gpu.sm for gpu in find_gpus()))


def this_runtime() -> Runtime:
    """The runtime of this machine itself."""
    versions = engine_versions()
    sms = tuple(gpu.sm for gpu in find_gpus())
    return Runtime(versions.get("tensorrt_llm"), versions.get("tensorrt"), sms)


def _ask(python: str | None, script: str, *names: str, seconds: float = _TIMEOUT_S) -> dict[str, Any]:
    """Returns the object that a script prints in its last line. It imports nothing of this folder."""
    if python is None:
        return {}
    try:
        result = subprocess.run(  # noqa: S603
            [str(Path(python).absolute()), "-c", script, *names],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
            cwd="/",
        )
        found = json.loads(result.stdout.strip().rpartition("\n")[2])
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return {}
    return found if isinstance(found, dict) else {}


def _interpreter(command: Path) -> str | None:
    """The Python that a script's first line names; None if it names another program, or has arguments."""
    try:
        with command.open("rb") as stream:
            line = stream.readline(300).decode("utf-8", "replace")
    except OSError:
        return None
    found = re.fullmatch(r"#!\s*(/\S*/python[\d.]*)\s*", line)
    return found[1] if found else None
