"""The GPUs that this machine's CDI specifications name.

The Container Device Interface is how podman gives devices to containers; `nvidia-ctk cdi generate` writes the
specifications (github.com/cncf-tags/container-device-interface, SPEC.md). A GPU's name there is its number,
its UUID, or in older ones `gpu` and its number.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trtspec.base import yaml11

KIND = "nvidia.com/gpu"
FOLDERS = (Path("/etc/cdi"), Path("/var/run/cdi"))
"""Where podman looks, unless containers.conf says otherwise."""


def find_devices(folders: Sequence[Path] = FOLDERS) -> frozenset[str]:
    """Returns the names of NVIDIA's devices; a file that cannot be read has none, as podman sees it."""
    names: set[str] = set()
    for folder in folders:
        for file in sorted(folder.glob("*")) if folder.is_dir() else ():
            if file.suffix in (".yaml", ".json"):
                names |= _names(file)
    return frozenset(names)


def _names(file: Path) -> set[str]:
    try:
        content = yaml11.load(file.read_text(encoding="utf-8"))
        return {str(device["name"]) for device in content["devices"]} if content["kind"] == KIND else set()
    except (OSError, ValueError, KeyError, TypeError, yaml11.YAMLError):
        return set()
