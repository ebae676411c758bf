"""The parameters of a model's `config.pbtxt`, all of which are strings."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trtspec.serving.errors import EngineLoadError
from trtspec.serving.executors.tensorrt_llm.runtime_draft import Choices, read_choices


@dataclass(frozen=True, slots=True)
class Parameters:
    """Reads the parameters. Each method raises `EngineLoadError` for a missing or invalid one."""

    values: Mapping[str, str]
    folder: Path
    """The model's folder. Paths among the parameters are relative to it."""

    def text(self, key: str) -> str:
        if not self.values.get(key):
            raise EngineLoadError(key, "missing from the parameters of config.pbtxt")
        return self.values[key]

    def path(self, key: str) -> Path:
        return (self.folder / self.text(key)).resolve()

    def number(self, key: str) -> int:
        text = self.text(key)
        if not text.isdecimal():
            raise _wrong(key, text, "not a number")
        return int(text)

    def amount(self, key: str) -> int | float:
        """Returns an int or a float, 0 or more."""
        if self.text(key).isdecimal():
            return int(self.text(key))
        value = self._real(key)
        if not 0 <= value < math.inf:
            raise _wrong(key, self.text(key), "not a number")
        return value

    def seconds(self, key: str, default: float) -> float:
        """Returns the seconds of a parameter in microseconds; `default` without the key."""
        return self.number(key) / 1e6 if key in self.values else default

    def flag(self, key: str) -> bool:
        text = self.text(key)
        if text not in ("true", "false"):
            raise _wrong(key, text, "not true or false")
        return text == "true"

    def device(self, key: str) -> str | None:
        """Returns PyTorch's name of the CPU or a GPU; None without the key."""
        if key not in self.values:
            return None
        text = self.text(key)
        kind, _, number = text.partition(":")
        if text != "cpu" and not (kind == "cuda" and number.isdecimal()):
            raise _wrong(key, text, "neither cpu nor a GPU, such as cuda:0")
        return text

    def choices(self, key: str) -> Choices:
        """Returns the paths of a tree."""
        try:
            return read_choices(self.text(key))
        except ValueError:
            raise _wrong(key, self.text(key), "not a tree, such as {0}, {1}, {0, 0}") from None

    def schedule(self, key: str) -> dict[int, int]:
        """Returns K from so many completions on; nothing without the key."""
        text = self.text(key) if key in self.values else "{}"
        try:
            return {int(least): int(length) for least, length in json.loads(text).items()}
        except (AttributeError, TypeError, ValueError):
            raise _wrong(key, text, 'not a schedule, such as {"1": 4, "9": 0}') from None

    def fraction(self, key: str) -> float:
        """Returns a number above 0 and below 1, as `KvCacheConfig` demands."""
        value = self._real(key)
        if not 0 < value < 1:
            raise _wrong(key, self.text(key), "not a number between 0 and 1")
        return value

    def share(self, key: str) -> float:
        """Returns a number from 0 to 1; 1 without the key."""
        value = self._real(key) if key in self.values else 1.0
        if not 0 <= value <= 1:
            raise _wrong(key, self.text(key), "not a number from 0 to 1")
        return value

    def _real(self, key: str) -> float:
        try:
            return float(self.text(key))
        except ValueError:
            return math.nan


def _wrong(key: str, text: str, problem: str) -> EngineLoadError:
    return EngineLoadError(key, f"{text!r} in the parameters of config.pbtxt is {problem}")
