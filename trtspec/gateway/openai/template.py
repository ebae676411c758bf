"""Reads the model's own chat templates from its tokenizer's folder."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtspec.models.tokenizer import chat_templates


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """A template that makes the prompt of a chat, and the one for chats with tools."""

    source: str
    """The template in Jinja."""
    tokens: dict[str, str]
    """The special tokens by their names (`bos_token`, …)."""
    tool_use: str | None = None
    """The template for chats with tools; None where `source` is for those too."""

    @classmethod
    def load(cls, folder: Path) -> ChatTemplate | None:
        """Reads the templates of a tokenizer's folder; None if it has none.

        Of several named templates they are `default` and `tool_use`, as in transformers' `get_chat_template`.
        Raises `BROKEN` for files that cannot be read.
        """
        file = folder / "tokenizer_config.json"
        settings = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        named = chat_templates(folder, settings)
        source = named.get("default")
        return cls(source, _tokens(settings), named.get("tool_use")) if source else None

    def of(self, tools: list[Any] | None) -> str:
        """Returns the template for a chat with these tools; None stands for none."""
        return self.source if tools is None or self.tool_use is None else self.tool_use


def _tokens(settings: dict[str, Any]) -> dict[str, str]:
    """Returns the special tokens of `tokenizer_config.json`, each a string there or an object."""
    names = ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token")
    given = {name: settings.get(name) for name in names}
    texts = {name: one.get("content") if isinstance(one, dict) else one for name, one in given.items()}
    return {name: text for name, text in texts.items() if isinstance(text, str)}
