"""Chooses the layers of a target that are its draft, by the target's answers to texts.

SWIFT (Xia et al. 2024, arXiv 2410.06916, section 4.1) measures how often a draft of some of the layers
agrees with the model, its matchness: the model's own answers are the truth, and one pass computes every
position of an answer. SWIFT keeps the best of many random sets, with a step of Bayesian optimization now
and then. Here layers are removed one by one, always the one without which the draft agrees most with the
target. The remaining tries go into sets that differ from the best one in one layer. With as many tries
that finds better sets (`tests/perf/README.md`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trtspec.checkpoint.calibrate.model import keep_layers

if TYPE_CHECKING:
    import torch

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

from trtspec.base.errors import DatasetError
from trtspec.base.own_prompts import OWN
from trtspec.base.progress import Advance
from trtspec.checkpoint.calibrate.model import device_of, load_model, quiet_transformers
from trtspec.checkpoint.calibrate.texts import Encoder, Text, choose, encode, read_texts
from trtspec.checkpoint.layers.chosen import ChosenLayers
from trtspec.models.layers import spread
from trtspec.models.source import Source


@dataclass(frozen=True, slots=True)
class Said:
    """A prompt and the model's answer: token ids."""

    prompt: Sequence[int]
    answer: Sequence[int]


class Skipping:
    """A transformers model whose layers can be left out.

    With `shares_cache` a draft reads the model's own keys and values for all tokens before its last one, like
    a draft that shares the cache. Otherwise it computes all of them itself.
    """

    def __init__(self, model: Any, *, shares_cache: bool) -> None:
        self.model, self._decoder, self._shares = model, model.get_decoder(), shares_cache
        self._layers = self._decoder.layers
        self._said: list[tuple[Said, list[tuple[torch.Tensor, torch.Tensor]]]] = []

    @property
    def tokens(self) -> int:
        """Returns the number of answer tokens on which each set of layers is compared."""
        return sum(len(said.answer) for said, _ in self._said)

    @property
    def answers(self) -> list[Said]:
        return [said for said, _ in self._said]

    def answer(self, prompt: Sequence[int], max_tokens: int) -> None:
        """Lets the whole model answer greedily, and keeps the answer."""
        import torch

        ids = torch.tensor([prompt], device=self.model.device)
        with torch.inference_mode():
            text = self.model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=max_tokens,
                do_sample=False,
                pad_token_id=0,
            )[0].tolist()
        self.add(Said(prompt, text[len(prompt) :]))

    def add(self, said: Said) -> None:
        """Keeps an answer; one of no tokens is left out."""
        if said.answer:
            self._said.append((said, self._cached([*said.prompt, *said.answer]) if self._shares else []))

    def agreement(self, layers: Sequence[int]) -> float:
        """Returns the share of all answer tokens that a draft of these layers would have proposed."""
        import torch

        keep_layers(self.model, layers)
        try:
            with torch.inference_mode():
                return sum(self._right(layers, *said) for said in self._said) / self.tokens
        finally:
            self._decoder.layers = self._layers
            keep_layers(self.model, range(len(self._layers)))

    def _right(
        self, layers: Sequence[int], said: Said, cached: list[tuple[torch.Tensor, torch.Tensor]]
    ) -> int:
        import torch

        device, text = self.model.device, [*said.prompt, *said.answer]
        first, end = len(said.prompt) - 1, len(text) - 1
        if self._shares:
            states = self._behind(layers, text, range(first, end), cached)
        else:
            ids = torch.tensor([text[:end]], device=device)
            states = self._decoder(ids, use_cache=False).last_hidden_state[:, first:]
        chosen = self.model.lm_head(states)[0].argmax(-1)
        return int((chosen == torch.tensor(said.answer, device=chosen.device)).sum())

    def _behind(
        self,
        layers: Sequence[int],
        text: Sequence[int],
        places: range,
        cached: list[tuple[torch.Tensor, torch.Tensor]],
    ) -> torch.Tensor:
        """Returns the output of the layers at each position, with the model's own keys and values of the
        tokens before it.

        The tokens of all positions are one batch of rows over a cache of the whole sequence. Each row sees
        the tokens before its own, and itself, and no other row of the batch.
        """
        import torch
        from transformers import DynamicCache

        rows, held, device = len(places), cached[0][0].shape[2], self.model.device
        before = torch.arange(held, device=device)[None] < torch.tensor(places, device=device)[:, None]
        seen = torch.cat([before, torch.eye(rows, dtype=torch.bool, device=device)], dim=1)
        dtype = self.model.dtype
        mask = torch.zeros(seen.shape, dtype=dtype, device=device)
        mask.masked_fill_(~seen, torch.finfo(dtype).min)
        cache = DynamicCache()
        for place, layer in enumerate(layers):
            cache.update(*cached[layer], place)
        ids = torch.tensor([[text[place] for place in places]], device=device)
        positions = torch.tensor([list(places)], device=device)
        found: torch.Tensor = self._decoder(
            ids, attention_mask=mask[None, None], position_ids=positions, past_key_values=cache
        ).last_hidden_state
        return found

    def _cached(self, text: Sequence[int]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Returns keys and values `[1, heads, tokens, head_size]` of the whole model, layer by layer."""
        import torch
        from transformers import DynamicCache

        cache: Any = DynamicCache()
        ids = torch.tensor([text[:-1]], device=self.model.device)
        with torch.inference_mode():
            self._decoder(ids, past_key_values=cache, use_cache=True)
        return [(layer.keys, layer.values) for layer in cache.layers]


RETRIED = 6
"""The number of layers that are tried again: those that hurt least when they were last tried. One of them is
removed."""

Layers = tuple[int, ...]
Agreement = Callable[[Layers], float]


@dataclass(frozen=True, slots=True)
class FoundLayers:
    """The best set of layers that a search has found."""

    layers: Layers
    agreement: float
    """The set's agreement with the target."""
    tried: int
    """The number of sets that were tried."""
    curve: dict[int, float]
    """The agreement of the sets tried on the way, by their number of layers."""


def search(of: int, count: int, agreement: Agreement, tries: int, seed: int) -> FoundLayers:
    """Returns a set of `count` of so many layers; `agreement` is called at most `tries` times, but once.

    The first layer and the last stay, as in SWIFT, where `count` leaves any others.
    """
    asked = _Asked(agreement, tries)
    movable = list(range(of) if count < 3 else range(1, of - 1))
    kept, curve = tuple(range(of)), dict[int, float]()
    hurt = {layer: 1 - asked(_without(kept, layer), 0.0) for layer in movable}
    while len(kept) > count:
        least = sorted(hurt, key=hurt.__getitem__)[:RETRIED]
        if len(kept) < of:
            for layer in least:
                hurt[layer] = 1 - asked(_without(kept, layer), 1 - hurt[layer])
        gone = min(least, key=hurt.__getitem__)
        del hurt[gone]
        kept = _without(kept, gone)
        if kept in asked.known:
            curve[len(kept)] = asked.known[kept]
    best = asked.known.get(kept)
    if best is None:  # There were too few tries.
        best = curve[count] = agreement(kept)
    kept, best = _improved(kept, best, movable, asked, random.Random(seed))  # noqa: S311
    return FoundLayers(kept, best, len(asked.known), curve)


class _Asked:
    """Asks for the agreement of a set once; when the tries are used up, it returns the guess of the
    caller."""

    def __init__(self, agreement: Agreement, tries: int) -> None:
        self._agreement, self._tries = agreement, tries
        self.known: dict[Layers, float] = {}

    @property
    def is_over(self) -> bool:
        return len(self.known) >= self._tries

    def __call__(self, layers: Layers, thought: float) -> float:
        if layers not in self.known:
            if self.is_over:
                return thought
            self.known[layers] = self._agreement(layers)
        return self.known[layers]


def _improved(
    kept: Layers, best: float, movable: Sequence[int], asked: _Asked, chance: random.Random
) -> tuple[Layers, float]:
    """Exchanges single layers in random order if that raises the agreement, until no exchange does."""
    while not asked.is_over:
        changes = [(one, other) for one in movable if one in kept for other in movable if other not in kept]
        chance.shuffle(changes)
        for one, other in changes:
            changed = tuple(sorted((*_without(kept, one), other)))
            if (found := asked(changed, 0.0)) > best:
                kept, best = changed, found
                break
        else:
            break
    return kept, best


def _without(kept: Layers, layer: int) -> Layers:
    return tuple(other for other in kept if other != layer)


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
