"""The search for layers against every set there is, and the agreement against a walk through transformers."""

from __future__ import annotations

import copy
import random
from itertools import combinations
from pathlib import Path

import pytest
import torch
from transformers import DynamicCache

from tests.fakes.engine_dir import tiny_llama
from trtspec.base.errors import ModelError
from trtspec.checkpoint.calibrate.model import keep_layers
from trtspec.checkpoint.layers.choose import Layers, Skipping, search
from trtspec.checkpoint.layers.chosen import FILE, ChosenLayers, best_round, found, read_layers, worries

PROMPTS = ([5, 9, 33, 7], [61, 2, 2, 48, 17], [11])


class Made:
    """An agreement by what layers are worth, and by pairs of them that only help each other."""

    def __init__(self, of: int, seed: int) -> None:
        chance = random.Random(seed)
        self.worth = [chance.random() for _ in range(of)]
        self.together = {
            pair: chance.random() for pair in combinations(range(of), 2) if chance.random() < 0.2
        }
        self.asked: list[Layers] = []

    def __call__(self, layers: Layers) -> float:
        self.asked.append(layers)
        pairs = sum(worth for pair, worth in self.together.items() if set(pair) <= set(layers))
        return sum(self.worth[layer] for layer in layers) + pairs


@pytest.mark.parametrize("seed", range(5))
def test_the_best_set_is_found_or_one_that_is_almost_as_good(seed: int) -> None:
    """SWIFT's random search does worse with as many tries."""
    of, count = 12, 7
    made = Made(of, seed)
    result = search(of, count, made, 150, seed)
    assert len(made.asked) == len(set(made.asked)) == result.tried <= 150
    assert {0, of - 1} <= set(result.layers)
    assert len(result.layers) == count
    assert result.layers == tuple(sorted(result.layers))
    sets = [(0, *inner, of - 1) for inner in combinations(range(1, of - 1), count - 2)]
    scores = sorted(map(Made(of, seed), sets))
    assert result.agreement == Made(of, seed)(result.layers) >= scores[-3]
    chance = random.Random(seed)
    assert result.agreement >= max(map(Made(of, seed), chance.sample(sets, 100)))


@pytest.mark.parametrize(("of", "count"), [(2, 1), (3, 2), (30, 2), (30, 1), (4, 3)])
def test_any_number_of_layers_can_stay(of: int, count: int) -> None:
    made = Made(of, 0)
    result = search(of, count, made, 40, 0)
    assert len(result.layers) == len(set(result.layers)) == count
    assert result.agreement == made(result.layers)


@pytest.mark.parametrize("tries", [1, 5, 12, 20])
def test_too_few_tries_still_give_a_set(tries: int) -> None:
    made = Made(16, 1)
    result = search(16, 8, made, tries, 0)
    assert len(made.asked) <= tries + 1
    assert len(result.layers) == 8
    assert result.agreement == Made(16, 1)(result.layers)


@pytest.mark.parametrize("tries", [20, 60, 400])
@pytest.mark.parametrize("seed", range(4))
def test_the_curve_is_of_sets_that_were_tried(seed: int, tries: int) -> None:
    """Those before the last one: layers leave by what they hurt now, not by what they did in a larger set."""
    made = Made(20, seed)
    result = search(20, 8, made, tries, 0)
    for length, agreement in result.curve.items():
        tried = {kept for kept in made.asked if len(kept) == length}
        assert agreement in {Made(20, seed)(kept) for kept in tried}
    if tries == 400:
        assert list(result.curve) == list(range(19, 7, -1))


@pytest.mark.parametrize("shares_cache", [True, False])
@torch.inference_mode()
def test_the_agreement_is_that_of_drafts_one_by_one(shares_cache: bool) -> None:
    """Each place is walked to alone: by the whole model where the cache is shared, else by the layers."""
    model = tiny_llama(num_hidden_layers=5)
    asked = Skipping(copy.deepcopy(model), shares_cache=shares_cache)
    for prompt in PROMPTS:
        asked.answer(prompt, 12)
    kept = (0, 2, 4)
    right = total = 0
    for prompt in PROMPTS:
        text = model.generate(torch.tensor([prompt]), max_new_tokens=12, do_sample=False)[0].tolist()
        for place in range(len(prompt) - 1, len(text) - 1):
            right += one_draft(model, text[: place + 1], kept, shares_cache) == text[place + 1]
            total += 1
    assert asked.tokens == total == 36
    assert asked.agreement(kept) == pytest.approx(right / total)
    assert 0 < right < total
    assert asked.agreement(range(5)) == 1


def one_draft(whole: torch.nn.Module, text: list[int], kept: Layers, shares_cache: bool) -> int:
    """What a draft of the layers says behind a text."""
    draft = copy.deepcopy(whole)
    keep_layers(draft, kept)  # type: ignore[arg-type]
    cache, known = DynamicCache(), len(text) - 1 if shares_cache else 0
    if known:
        before = DynamicCache()
        whole(torch.tensor([text[:known]]), past_key_values=before)
        for place, layer in enumerate(kept):
            cache.update(before.layers[layer].keys, before.layers[layer].values, place)  # type: ignore[arg-type]
    logits = draft(torch.tensor([text[known:]]), past_key_values=cache).logits
    return int(logits[0, -1].argmax())


def chosen(agreement: float, dataset: str | None = "digest") -> ChosenLayers:
    provenance = {"texts": 16, "dataset_digest": dataset}
    return ChosenLayers((0, 2, 9), 10, agreement, 0.5, 1024, 30, {}, provenance)


@pytest.mark.parametrize(("agreement", "share"), [(0.9, 0.1), (0.5, 0.4), (0.464, 0.68), (0.95, 0.95)])
def test_the_best_round_is_that_of_leviathans_theorem(agreement: float, share: float) -> None:
    """Theorem 3.8 of arXiv 2211.17192, and 3.9: some K gains exactly where more is accepted than it costs."""
    gains = {k: (1 - agreement ** (k + 1)) / ((1 - agreement) * (1 + k * share)) for k in range(1, 9)}
    length, gain = best_round(agreement, share)
    assert gain == pytest.approx(max(gains.values()))
    assert gains[length] == pytest.approx(gain)
    assert (gain > 1) == (agreement > share)


def test_chosen_layers_that_do_not_pay_raise_a_worry_with_the_expected_speedup() -> None:
    assert list(worries(chosen(0.9), 0.3)) == []
    (worry,) = worries(chosen(0.464), 0.68)
    assert worry.startswith("drafts of these layers do not pay: at best 0.87x, with K = 1;")
    (worry,) = worries(chosen(0.8), 0.72)
    assert worry.startswith("drafts of these layers hardly pay: at best 1.05x, with K = 1;")
    (worry,) = worries(chosen(0.9, None), 0.3)
    assert worry.startswith("the layers were chosen with trtspec's own texts")
    sentence = found(chosen(0.464), 0.68)
    assert sentence.startswith("layers 0, 2, 9 of 10 say what the target says in 46% of 1024 tokens")
    assert sentence.endswith("reads 68% of the target's weights: at best 0.87x, with K = 1")


@pytest.mark.parametrize("text", ["null", "1", "[]", "{}", '{"format": 1, "curve": []}', "{"])
def test_a_file_that_is_no_choice_of_layers_says_so(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    with pytest.raises(ModelError, match=r"layers\.json: is no choice of layers"):
        read_layers(tmp_path / FILE)
