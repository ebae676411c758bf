"""Reads the model's own chat template from its tokenizer's folder."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """A template that makes the prompt of a chat."""

    source: str
    """The template in Jinja."""
    tokens: dict[str, str]
    """The special tokens by their names (`bos_token`, …)."""

    @classmethod
    def load(cls, folder: Path) -> ChatTemplate | None:
        """Reads the template of a tokenizer's folder; None if it has none.

        Of several named templates it takes `default`. Raises ValueError for files that cannot be read.
        """
        file = folder / "tokenizer_config.json"
        settings = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        own, source = folder / "chat_template.jinja", settings.get("chat_template")
        if own.is_file():
            source = own.read_text(encoding="utf-8")
        if isinstance(source, list):
            source = {entry["name"]: entry["template"] for entry in source}.get("default")
        return cls(source, _tokens(settings)) if isinstance(source, str) else None


def _tokens(settings: dict[str, Any]) -> dict[str, str]:
    """Returns the special tokens of `tokenizer_config.json`, each a string there or an object."""
    found = {}
    for name in ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token"):
        token = settings.get(name)
        content = token.get("content") if isinstance(token, dict) else token
        if isinstance(content, str):
            found[name] = content
    return found
