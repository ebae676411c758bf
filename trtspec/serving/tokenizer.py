"""Text to token ids and back."""

from __future__ import annotations

from pathlib import Path


class Tokenizer:
    """A Hugging Face tokenizer folder: `tokenizer.json`, with `tokenizer_config.json` and `generation_config.json`."""

    @classmethod
    def load(cls, folder: Path) -> Tokenizer:
        raise NotImplementedError
