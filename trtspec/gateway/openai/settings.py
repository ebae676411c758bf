"""Holds the options that an API server gets at its start."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ApiSettings:
    """The options that an API server gets at its start."""

    model_name: str
    url: str | None = None
    """The URL of the model. Where it is None, the server is told by lines (`trtspec.gateway.openai.control`)
    where the model is.
    """
    tokenizer: str | None = None
    """The folder of the model's tokenizer."""
    keys: str | None = None
    """A file with a key a line, if there is one."""
    max_requests: int = 1024
    """More prompts at once are refused with 429."""

    @classmethod
    def from_json(cls, text: str) -> ApiSettings:
        return cls(**json.loads(text))

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @property
    def tokenizer_folder(self) -> Path | None:
        return Path(self.tokenizer) if self.tokenizer else None

    @property
    def keys_file(self) -> Path | None:
        return Path(self.keys) if self.keys else None
