"""One model of a pair: its configuration, the headers of its weights and its tokenizer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trtspec.checkpoint.families import family_of
from trtspec.checkpoint.source import Source, read_source
from trtspec.checkpoint.tokenizer import Tokenizer, read_tokenizer


@dataclass(frozen=True, slots=True)
class Side:
    """What a pair is compared by; `family` is TensorRT-LLM's name."""

    source: Source
    tokenizer: Tokenizer
    family: str

    @property
    def max_position(self) -> int:
        return self.source.max_position


def read_side(folder: Path) -> Side:
    """Reads a Hugging Face folder, without its weights' data; raises ModelError or TensorError."""
    source = read_source(folder)
    return Side(source, read_tokenizer(folder), family_of(source).name)
