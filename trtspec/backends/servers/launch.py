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
    """One server's launch configuration; nothing in it is of this machine but the models' folders.

    `module` is what Python runs (`python -m`), `arguments` are its own without host and port, which
    `deploy` adds by `host_option` and `port_option`. `module_words` stand between `module` and them: `vllm
    serve` takes the model without an option, and vLLM's module does not. `files` are written beside this one,
    by their names, and named in `arguments` as `{build}/NAME`. `environment` is what the
    process needs beside the caller's own. `image` is the vendor's with the release, in which
    `program` stands for `python -m module`. The weights of the models are `weights` bytes, and
    their KV caches in the memory of the host `kv_bytes`, 0 on a GPU.
    `metrics_path` is where the server tells what Prometheus reads, None where it tells nothing so.
    """

    backend: str
    release: str
    module: str
    program: tuple[str, ...]
    arguments: tuple[str, ...]
    image: str
    served_model_name: str
    host_option: str = "--host"
    port_option: str = "--port"
    module_words: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    models: tuple[str, ...] = ()
    weights: int = 0
    kv_bytes: int = 0
    metrics_path: str | None = None

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
