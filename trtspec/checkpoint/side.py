"""One model of a pair: its configuration, the headers of its weights and its tokenizer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trtspec.checkpoint.families import family_of
from trtspec.checkpoint.source import Source, read_source
from trtspec.checkpoint.tokenizer import Tokenizer, read_tokenizer

_STRETCHED = ("linear", "dynamic", "yarn")


@dataclass(frozen=True, slots=True)
class Side:
    """What a pair is compared by; `family` is TensorRT-LLM's name."""

    source: Source
    tokenizer: Tokenizer
    family: str

    @property
    def max_position(self) -> int:
        """The longest text that the model was made for, in tokens; the factor is TensorRT-LLM's own rule."""
        scaling = self.source.rotary_scaling or {}
        stretched = scaling.get("rope_type", scaling.get("type")) in _STRETCHED
        factor = float(scaling.get("factor") or 1.0) if stretched else 1.0
        return int(self.source.max_position_embeddings * max(factor, 1.0))


def read_side(folder: Path) -> Side:
    """Reads a Hugging Face folder, without its weights' data; raises ModelError or TensorError."""
    source = read_source(folder)
    return Side(source, read_tokenizer(folder), family_of(source).name)
