"""The layers that were chosen for a draft: the file that stores them, whether they pay, and a folder of
them.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trtspec.base.errors import ModelError
from trtspec.base.files import publish, remove, temporary
from trtspec.checkpoint.tensors import Reader, SafetensorsFile, TensorEntry
from trtspec.forecast.speedup import RoundCosts, speedup
from trtspec.models.layers import of_layers
from trtspec.models.source import SINGLE, Source, Tensor, has_file, read_source
from trtspec.models.tokenizer import copy_tokenizer

_CHUNK = 16 << 20
_COPIED = ("generation_config.json", "hf_quant_config.json")


def write_model(source: Source, folder: Path) -> None:
    """Writes a model of some layers of another (`of_layers`); weights are copied as they are.

    A folder that is there is complete, and stays.
    """
    if folder.is_dir():
        return
    made = temporary(folder)
    remove(made)
    made.mkdir(parents=True)
    (made / "config.json").write_text(json.dumps(source.config.content, indent=2) + "\n", encoding="utf-8")
    _copy_weights(source.tensors, made / SINGLE)
    copy_tokenizer(source.folder, made)
    for name in _COPIED:
        if has_file(source.folder / name):
            shutil.copyfile(source.folder / name, made / name)
    publish(made, folder)


def _copy_weights(tensors: Mapping[str, Tensor], file: Path) -> None:
    """Writes the tensors under their names, piece by piece."""
    entries = [TensorEntry(name, tensor.dtype, tensor.shape) for name, tensor in tensors.items()]
    with (
        Reader({tensor.file for tensor in tensors.values()}) as reader,
        SafetensorsFile(file, entries, {"format": "pt"}) as out,
    ):
        for name, tensor in tensors.items():
            size = tensor.end - tensor.start
            for at in range(0, size, _CHUNK):
                out.write(reader.read(tensor, at, min(_CHUNK, size - at)), out.starts[name] + at)


FORMAT = 1
FILE = "layers.json"
LEAST_GAIN = 1.1
_LONGEST = 8


@dataclass(frozen=True, slots=True)
class ChosenLayers:
    """Some of a target's layers, and how often a draft of them proposed the target's token."""

    layers: tuple[int, ...]
    of: int
    """The number of layers that the target has."""
    agreement: float
    """The share of the answers' tokens that the draft would have proposed after the same prefix."""
    spread: float
    """The same share for as many layers that are spread evenly."""
    tokens: int
    """The number of tokens in the target's answers."""
    tried: int
    """The number of sets that were tried."""
    curve: Mapping[int, float]
    """The agreement of the sets tried on the way, by their number of layers."""
    provenance: Mapping[str, Any]
    """The prompts and options of the search."""


def write_layers(file: Path, chosen: ChosenLayers) -> None:
    content = json.dumps({"format": FORMAT, **asdict(chosen)}, indent=1, allow_nan=False)
    file.write_text(content + "\n", encoding="utf-8")


def read_layers(file: Path) -> ChosenLayers:
    """Reads a choice; raises ModelError for another file."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        if content.pop("format") != FORMAT:
            raise ValueError("written by another version of trtspec")
        curve = {int(count): share for count, share in content["curve"].items()}
        return ChosenLayers(**{**content, "layers": tuple(content["layers"]), "curve": curve})
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(file, f"is no choice of layers: {error}", "remove it, and build again") from error


def with_layers(source: Source, file: Path | None) -> Source:
    """Returns the model of the layers in `file`, where there is one, in place of those that were planned."""
    return of_layers(read_source(source.folder), read_layers(file).layers) if file else source


def found(chosen: ChosenLayers, weight_share: float) -> str:
    """One sentence on the layers, their agreement and the largest possible speed-up."""
    length, gain = best_round(chosen.agreement, weight_share)
    layers = ", ".join(map(str, chosen.layers))
    return (
        f"layers {layers} of {chosen.of} say what the target says in {chosen.agreement:.0%} of"
        f" {chosen.tokens} tokens of its answers to {chosen.provenance['texts']} texts"
        f" (spread evenly, as many layers: {chosen.spread:.0%}; {chosen.tried} sets tried);"
        f" a token of theirs reads {weight_share:.0%} of the target's weights: at best {gain:.2f}x,"
        f" with K = {length}"
    )


def best_round(agreement: float, weight_share: float) -> tuple[int, float]:
    """Returns the best K and its speed-up, if a draft token costs the share of the target's weights that it
    reads.

    A round of K tokens then takes 1 + K times that (Leviathan et al. 2023, section 3.3): it assumes that
    verifying costs no more than a plain step, and a round nothing else, so no deployment does better.
    """
    gains = {
        length: speedup([agreement] * length, RoundCosts(weight_share)) for length in range(1, _LONGEST + 1)
    }
    length = max(gains, key=gains.__getitem__)
    return length, gains[length]


def worries(chosen: ChosenLayers, weight_share: float) -> Iterator[str]:
    """Yields a sentence if the layers hardly pay, and one if the texts are not the user's."""
    length, gain = best_round(chosen.agreement, weight_share)
    if gain < LEAST_GAIN:
        yield (
            f"drafts of these layers {'hardly' if gain > 1 else 'do not'} pay: at best {gain:.2f}x, with K ="
            f" {length}; fewer layers (layer_search.count) or a small model as draft may"
        )
    if chosen.provenance.get("dataset_digest") is None:
        yield "the layers were chosen with trtspec's own texts: name your texts in draft.layer_search.dataset"
