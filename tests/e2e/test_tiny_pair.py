"""The demo pair as a user gets it: the files, and what the two models do with text that neither has seen."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import cast

import pytest
import torch
from safetensors.torch import load_file

from recipes.tiny import measure
from trtspec.measure.commands.demo import PROMPT

TINY = Path(__file__).parents[2] / "recipes" / "tiny"
MODELS = ("target", "draft")
LIMIT_BYTES = 25_000_000


Completions = list[tuple[measure.Prompt, list[int]]]


@pytest.fixture(scope="module")
def pair() -> measure.Pair:
    return measure.load(TINY)


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return measure.heldout_texts()


@pytest.fixture(scope="module")
def completions(pair: measure.Pair, texts: list[str]) -> Completions:
    return measure.complete(pair, measure.prompts(pair.tokenizer, texts))


class TestFiles:
    def test_both_fit_into_git(self) -> None:
        sizes = [path.stat().st_size for name in MODELS for path in (TINY / name).iterdir()]
        assert 0 < sum(sizes) <= LIMIT_BYTES

    @pytest.mark.parametrize("name", MODELS)
    def test_llama_from_the_hub(self, name: str) -> None:
        config = json.loads((TINY / name / "config.json").read_text())
        assert config["architectures"] == ["LlamaForCausalLM"]
        assert config["num_attention_heads"] * config["head_dim"] == config["hidden_size"]
        assert json.loads((TINY / name / "generation_config.json").read_text())["do_sample"] is False

    @pytest.mark.parametrize("name", MODELS)
    def test_weights_are_whole_and_bfloat16(self, name: str) -> None:
        from transformers import AutoModelForCausalLM, PreTrainedModel

        loaded = AutoModelForCausalLM.from_pretrained(TINY / name, output_loading_info=True)
        model, info = cast(tuple[PreTrainedModel, dict[str, list[str]]], loaded)
        assert not info["missing_keys"]
        assert not info["unexpected_keys"]
        assert model.config.tie_word_embeddings
        weights = load_file(TINY / name / "model.safetensors").values()
        assert {weight.dtype for weight in weights} == {torch.bfloat16}
        assert all(weight.isfinite().all() for weight in weights)

    def test_draft_is_the_smaller_by_far(self) -> None:
        target, draft = ((TINY / name / "model.safetensors").stat().st_size for name in MODELS)
        assert draft * 4 < target


class TestTokenizer:
    def test_is_one_and_the_same(self, pair: measure.Pair) -> None:
        target, draft = ((TINY / name / "tokenizer.json").read_bytes() for name in MODELS)
        assert target == draft
        assert len(pair.tokenizer) == pair.target.config.vocab_size == pair.draft.config.vocab_size

    def test_end_token_is_one_for_all(self, pair: measure.Pair) -> None:
        for model in (pair.target, pair.draft):
            assert model.generation_config is not None
            end = model.generation_config.eos_token_id
            assert end == pair.tokenizer.eos_token_id == pair.target.config.eos_token_id

    @pytest.mark.parametrize(
        "text",
        [
            "def f(x):\n    return x\n",
            "\n\n\n\tif x:\r\n\t\t  y = 1   \n \n",
            "héllo wörld, 你好, こんにちは, 🙂🏳️‍🌈",
            "nul \x00, bell \x07, separators \u2028 \u3000 \xa0, " + "".join(map(chr, range(256))),
            "a b  c   d    e 1234567 __x__ !? ,. n't",
            "",
        ],
    )
    def test_round_trip(self, pair: measure.Pair, text: str) -> None:
        ids = pair.tokenizer(text)["input_ids"]
        assert pair.tokenizer.decode(ids) == text
        assert pair.tokenizer.eos_token_id not in ids

    def test_round_trip_of_any_characters(self, pair: measure.Pair) -> None:
        chance = random.Random(7)
        planes = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
        for _ in range(200):
            text = "".join(chance.choices(planes, k=40))
            assert pair.tokenizer.decode(pair.tokenizer(text)["input_ids"]) == text

    def test_knows_all_256_bytes(self, pair: measure.Pair) -> None:
        from tokenizers.pre_tokenizers import ByteLevel

        assert set(ByteLevel.alphabet()) <= set(pair.tokenizer.get_vocab())

    def test_decodes_piece_by_piece(self, pair: measure.Pair) -> None:
        text = "for word in ['naïve', '日本']:\n        print(f'{word!r:>10}')  # 🙂\n"
        ids = pair.tokenizer(text)["input_ids"]
        tails = (pair.tokenizer.decode(ids[:end]).rstrip("\ufffd") for end in range(len(ids) + 1))
        assert all(text.startswith(tail) for tail in tails)

    def test_line_ends_and_indentations_stand_alone(self, pair: measure.Pair) -> None:
        """A prompt that stops after a line's end must tokenise as the beginning of the same text does."""
        text = "def f(x):\n    if x:\n        return 1\n"
        whole = pair.tokenizer(text)["input_ids"]
        for end in (i + 1 for i, character in enumerate(text) if character == "\n"):
            part = pair.tokenizer(text[:end])["input_ids"]
            assert whole[: len(part)] == part


@pytest.mark.sweep
class TestQuality:
    def test_heldout_loss(self, pair: measure.Pair, texts: list[str]) -> None:
        """A model that knew only how often each token occurs would stay above 6 nats."""
        rows = measure.windows(pair.tokenizer, texts)
        target, draft = (measure.loss(model, rows) for model in (pair.target, pair.draft))
        assert target < 2.95
        assert target < draft

    def test_draft_agrees_on_heldout_text(self, pair: measure.Pair, texts: list[str]) -> None:
        assert measure.text_agreement(pair, measure.windows(pair.tokenizer, texts)) >= 0.70

    def test_draft_agrees_on_the_targets_own_text(self, pair: measure.Pair, completions: Completions) -> None:
        assert measure.own_agreement(pair, completions) >= 0.80

    def test_completions_run_on(self, completions: Completions) -> None:
        lengths = [len(ids) for _, ids in completions]
        assert len(lengths) >= 30
        assert measure.share(length == measure.COMPLETION for length in lengths) >= 0.8

    def test_completions_do_not_loop(self, completions: Completions) -> None:
        assert measure.share(measure.loops(ids) for _, ids in completions) <= 0.15

    def test_the_answer_to_the_first_prompt_of_the_demo_does_not_loop(self, pair: measure.Pair) -> None:
        row = pair.tokenizer(PROMPT, return_tensors="pt")["input_ids"]
        made = pair.target.generate(
            row, attention_mask=torch.ones_like(row), max_new_tokens=120, do_sample=False
        )
        ids = made[0, row.shape[1] :].tolist()
        assert len(ids) == 120
        assert not measure.loops(ids)

    def test_completions_are_python(self, pair: measure.Pair, completions: Completions) -> None:
        good = measure.share(measure.parses(pair.tokenizer, prompt, ids) for prompt, ids in completions)
        assert good >= 0.6


class TestMeasures:
    """The measures above tell good from bad."""

    def test_loops(self) -> None:
        assert measure.loops([*range(60), *[1, 2, 3] * 8])
        assert measure.loops([5] * 96)
        assert not measure.loops([*range(60), *[1, 2, 3] * 7])
        assert not measure.loops(list(range(96)))

    def test_text_of_people_does_not_loop(self, pair: measure.Pair, texts: list[str]) -> None:
        rows = measure.windows(pair.tokenizer, texts)[:, : measure.COMPLETION].tolist()
        assert not any(measure.loops(ids) for ids in rows)

    @pytest.mark.parametrize(
        ("body", "good"),
        [
            ("    y = x + 1\n    return y\n    # and a line that is c(", True),
            ("    return x\n\ndef g(", True),
            ("    this is prose, not a program.\n    It's longer.\n", False),
            ("y = 1\n", False),
            ("", False),
            ("    x = 1\n    (]\n    (]\n    (]\n", False),
        ],
    )
    def test_parses(self, pair: measure.Pair, body: str, good: bool) -> None:
        prompt = measure.Prompt([], "def f(x):\n")
        assert measure.parses(pair.tokenizer, prompt, pair.tokenizer(body)["input_ids"]) is good
