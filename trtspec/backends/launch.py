"""Describes how another engine's server is started; a build for one writes it as `launch.json`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from trtspec.base import yaml11
from trtspec.recipe.migration.command import is_flag

FILE = "launch.json"
# vLLM's --speculative-config, SGLang's --speculative-algorithm and its like.
_OPTION = "--speculative-"
# Of trtllm-serve, whose configuration is a file (`llmapi/llm_args.py`).
_KEY = "speculative_config"


@dataclass(frozen=True, slots=True)
class ServerLaunch:
    """One server's launch configuration. Of this machine it contains only the models' folders."""

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
    """The path of the server's metrics for Prometheus; None if it has none."""

    def to_json(self) -> str:
        """Returns the text of `launch.json`."""
        return json.dumps(asdict(self), indent=2) + "\n"

    def without_drafts(self) -> ServerLaunch:
        """Returns how the server is started for plain decoding; files that change have names of their own."""
        arguments, files = list(_without_drafts(self.arguments)), dict(self.files)
        for name, text in self.files.items():
            content = yaml11.load(text)
            if isinstance(content, dict) and _KEY in content:
                del content[_KEY]
                files[f"plain-{name}"] = yaml11.dump(content)
                old, new = f"{{build}}/{name}", f"{{build}}/plain-{name}"
                arguments = [argument.replace(old, new) for argument in arguments]
        return replace(self, arguments=tuple(arguments), files=files)


def read(folder: Path) -> ServerLaunch:
    """Returns what a build says; raises what reading and parsing a file raises."""
    values: dict[str, Any] = json.loads((folder / FILE).read_text(encoding="utf-8"))
    lists = {name: tuple(values[name]) for name in ("program", "arguments", "models")}
    lists["module_words"] = tuple(values.get("module_words", ()))
    return ServerLaunch(**{**values, **lists})


def _without_drafts(arguments: tuple[str, ...]) -> Iterator[str]:
    """Yields the arguments except those on drafts: options with their values, or switches."""
    is_dropped = False
    for argument in arguments:
        if is_flag(argument):
            is_dropped = argument.startswith(_OPTION)
        if not is_dropped:
            yield argument
