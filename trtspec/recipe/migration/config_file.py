"""Reads a server's configuration file, and turns it into words of its command line."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from trtspec.base import yaml11
from trtspec.base.errors import TrtspecError
from trtspec.recipe.migration.command import OFF, as_words
from trtspec.recipe.migration.reading import FlagReading

_FLAG = "--config"


def document(name: str, reading: FlagReading) -> Mapping[str, Any]:
    """Returns the keys of a YAML file, which the script may write itself.

    Raises TrtspecError for a missing file, or one that no server could read.
    """
    try:
        written = reading.files.get(name.removeprefix("./"))
        text = Path(name).read_text(encoding="utf-8") if written is None else written
        if yaml11.has_aliases(text):
            raise TrtspecError(name, "has a value that stands for another (*name)", "write each value out")
        found = yaml11.load(text)
    except OSError as error:
        repair = "run this where the file is"
        raise TrtspecError(name, f"cannot be read: {error.strerror}", repair) from None
    except (ValueError, RecursionError, yaml11.YAMLError):
        raise TrtspecError(name, "is no YAML", "correct the file") from None
    if not isinstance(found, dict):
        raise TrtspecError(name, "has no keys at its top level", "write the server's arguments as keys")
    return found


def with_config(words: Sequence[str], switches: Collection[str], reading: FlagReading) -> list[str]:
    """Returns the words with those of `--config FILE` before them, as vLLM and SGLang read it.

    The command line comes later and overrides the file. `switches` are the server's flags without a value.
    """
    words = list(words)
    for place, word in enumerate(words):
        flag, has_value, name = word.partition("=")
        if flag == _FLAG:
            after = place + (1 if has_value else 2)
            name = name if has_value else "".join(words[place + 1 : after])
            values = dict(_flag(*item, switches) for item in document(name, reading).items())
            return [*as_words(values), *words[:place], *words[after:]]
    return words


def _flag(key: str, value: Any, switches: Collection[str]) -> tuple[str, Any]:
    """Returns a key's flag, and the value of it; False is the flag that turns it off, if there is one."""
    if value is False and (off := f"{OFF}{key.replace('_', '-')}") in switches:
        return off, True
    return f"--{key}", json.dumps(value) if isinstance(value, dict) else value
