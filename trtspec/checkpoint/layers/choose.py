"""Chooses the layers of a target that are its draft, by the target's answers to texts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from trtspec.base.errors import DatasetError
from trtspec.base.own_prompts import OWN
from trtspec.base.progress import Advance
from trtspec.checkpoint.calibrate.model import device_of, load_model, quiet_transformers
from trtspec.checkpoint.calibrate.texts import Text, choose, read_texts
from trtspec.checkpoint.calibrate.tokens import Encoder, encode
from trtspec.checkpoint.layers.agreement import Skipping
from trtspec.checkpoint.layers.chosen import ChosenLayers
from trtspec.checkpoint.layers.search import Layers, search
from trtspec.models.layers import spread
from trtspec.models.source import Source

FORMAT = 2  # raised when the same texts and options choose other layers
PACKAGES = ("transformers", "accelerate", "torch")  # of the extra `train`


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """The options of a search for layers; those without a description are the recipe's."""

    dtype: str
    """The model computes in this dtype."""
    shares_cache: bool
    """True if the draft will read the target's keys and values."""
    count: int
    """The number of layers that are kept."""
    samples: int
    max_length: int
    max_tokens: int
    tries: int
    seed: int
    text_field: str
    chat_template: bool


def choose_layers(
    source: Source,
    dataset: Path | None,
    options: SearchOptions,
    origin: Mapping[str, Any],
    advance: Advance = lambda *_: None,
) -> ChosenLayers:
    """Lets the whole model answer texts of the dataset, or trtspec's own, and searches for the layers.

    `origin` becomes part of the provenance. `advance` is called with a note and no bytes. Raises
    DatasetError, ModelError or TensorError.
    """
    quiet_transformers()
    texts = _texts(source, dataset, options)
    model = Skipping(
        load_model(source, options.dtype, options.max_length + options.max_tokens),
        shares_cache=options.shares_cache,
    )
    for number, text in enumerate(texts, 1):
        advance(0, f"answer {number} of {len(texts)}")
        model.answer(text, options.max_tokens)
    if not model.tokens:
        raise DatasetError(dataset or "trtspec's own texts", "the model answers none of them", "name others")
    tried = 0

    def agreement(layers: Layers) -> float:
        nonlocal tried
        tried += 1
        advance(0, f"set {tried} of up to {options.tries}")
        return model.agreement(layers)

    found = search(source.num_hidden_layers, options.count, agreement, options.tries, options.seed)
    return ChosenLayers(
        layers=found.layers,
        of=source.num_hidden_layers,
        agreement=found.agreement,
        spread=model.agreement(spread(options.count, source.num_hidden_layers)),
        tokens=model.tokens,
        tried=found.tried,
        curve=found.curve,
        provenance={
            **origin,
            **asdict(options),
            "texts": len(texts),
            "device": device_of(model.model),
            "tools": {name: version(name) for name in PACKAGES},
        },
    )


def _texts(source: Source, dataset: Path | None, options: SearchOptions) -> list[list[int]]:
    """The token ids of the prompts."""
    found: Iterable[Text] = read_texts(dataset, options.text_field) if dataset else sum(OWN.values(), ())
    name = dataset or Path("trtspec's own texts")
    encoder = Encoder(source.folder, name, options.max_length, chat_template=options.chat_template)
    texts = encode(choose(found, options.samples, options.seed), encoder)
    if not texts:
        raise DatasetError(name, "holds no text", "add prompts like your users'")
    return texts
