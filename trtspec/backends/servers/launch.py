"""Describes how another engine's server is started; a build for one writes it as `launch.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from trtspec.base.atomic import write_atomically

FILE = "launch.json"


@dataclass(frozen=True, slots=True)
class ServerLaunch:
    """One server's launch configuration; nothing in it is of this machine but the models' folders."""

    backend: str
    release: str
    module: str
    """The module that Python runs (`python -m`)."""
    program: tuple[str, ...]
    """The words that stand for `python -m module` in the image."""
    arguments: tuple[str, ...]
    """The arguments of the module without host and port, which `deploy` adds."""
    image: str
    """The vendor's image with the release."""
    served_model_name: str
    host_option: str = "--host"
    """The option by which `deploy` adds the host."""
    port_option: str = "--port"
    """The option by which `deploy` adds the port."""
    module_words: tuple[str, ...] = ()
    """The words between `module` and `arguments`. `vllm serve` takes the model without an option, and vLLM's
    module does not.
    """
    environment: Mapping[str, str] = field(default_factory=dict)
    """The variables that the process needs beside the caller's own."""
    files: Mapping[str, str] = field(default_factory=dict)
    """The texts of files by their names. They are written beside this one, and named in `arguments` as
    `{build}/NAME`.
    """
    models: tuple[str, ...] = ()
    """The models' folders."""
    weights: int = 0
    """The bytes of the models' weights."""
    kv_bytes: int = 0
    """The bytes of the KV caches in the memory of the host; 0 on a GPU."""
    metrics_path: str | None = None
    """The path where the server tells what Prometheus reads; None where it tells nothing so."""

    def write(self, folder: Path) -> None:
        """Writes it and its files into a build's folder, the others first."""
        for name, text in self.files.items():
            write_atomically(folder / name, text)
        write_atomically(folder / FILE, self.to_json())

    def to_json(self) -> str:
        """Returns the text of `launch.json`."""
        return json.dumps(asdict(self), indent=2) + "\n"


def read(folder: Path) -> ServerLaunch:
    """Returns what a build says; raises what reading and parsing a file raises."""
    values: dict[str, Any] = json.loads((folder / FILE).read_text(encoding="utf-8"))
    lists = {name: tuple(values[name]) for name in ("program", "arguments", "models")}
    lists["module_words"] = tuple(values.get("module_words", ()))
    return ServerLaunch(**{**values, **lists})
