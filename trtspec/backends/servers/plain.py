"""The same server without drafts; pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from trtspec.backends.servers.launch import ServerLaunch
from trtspec.base import yaml11

# vLLM's --speculative-config, SGLang's --speculative-algorithm and its like.
_OPTION = "--speculative-"
# Of trtllm-serve, whose configuration is a file (`llmapi/llm_args.py`).
_KEY = "speculative_config"


def without_drafts(launch: ServerLaunch) -> ServerLaunch:
    """Returns how the server is started for plain decoding; files that change have names of their own."""
    kept, plain = [*_kept(launch.arguments)], dict(_plain_files(launch.files))
    arguments = []
    for argument in kept:
        for name in plain:
            argument = argument.replace(f"{{build}}/{name}", f"{{build}}/{_plain(name)}")
        arguments.append(argument)
    files = {**launch.files, **{_plain(name): text for name, text in plain.items()}}
    return replace(launch, arguments=tuple(arguments), files=files)


def _kept(arguments: tuple[str, ...]) -> Iterator[str]:
    """Yields the arguments but those on drafts: options with their values, or switches."""
    is_dropped = False
    for argument in arguments:
        if argument.startswith("--"):
            is_dropped = argument.startswith(_OPTION)
        if not is_dropped:
            yield argument


def _plain_files(files: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yields the files that tell of drafts, without that."""
    for name, text in files.items():
        content = yaml11.load(text)
        if isinstance(content, dict) and _KEY in content:
            del content[_KEY]
            yield name, yaml11.dump(content)


def _plain(name: str) -> str:
    return f"plain-{name}"
