"""A draft learns its target's language; a run that was killed ends as if it had not been."""

from __future__ import annotations

import gc
import json
import shutil
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoModelForCausalLM

from tests.unit.train.distill.conftest import PROMPT, SETTINGS, Run, recorded, speak
from trtspec.base.errors import ChangedError, DatasetError, ModelError, PairError, TrainingError
from trtspec.base.progress import Advance
from trtspec.measure.workloads.workload import Recorded, append_recorded
from trtspec.train.distill import distillation
from trtspec.train.distill.model import TrainedDraft
from trtspec.train.distill.settings import DistillationOptions
from trtspec.train.distill.training import train
from trtspec.train.tune.answer import RecordedAnswer
from trtspec.train.tune.replay import Choices


def agreements(folder: Path, texts: list[list[int]], num_prompt: int) -> list[list[bool]]:
    """Where transformers' own greedy choice after a beginning is what the text says."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids = torch.tensor(texts)
    chosen = model(ids).logits[:, num_prompt - 1 : -1].argmax(-1)
    found: list[list[bool]] = (chosen == ids[:, num_prompt:]).tolist()
    return found


def rounds(agrees: list[list[bool]], length: int) -> tuple[int, int, int]:
    """Accepted tokens, those reached and those drafted, by walking along each answer."""
    accepted = reached = drafted = 0
    for row in agrees:
        place = 0
        while place < len(row) - 1:
            draft = row[place : place + min(length, len(row) - place - 1)]
            good = next((at for at, agree in enumerate(draft) if not agree), len(draft))
            accepted, drafted = accepted + good, drafted + len(draft)
            reached += min(good + 1, len(draft))
            place += good + 1
    return accepted, reached, drafted


def test_a_distilled_draft_learns_the_language_of_its_target(toy: DistillationOptions, run: Run) -> None:
    found = run(toy)

    assert found.before
    assert found.after
    assert found.before.per_token.value < 0.1
    assert found.after.per_token.value > 0.8
    assert found.points[0].loss > 3 * found.points[-1].loss
    texts = [speak(seed) for seed in range(1000, 1024)]
    accepted, reached, drafted = rounds(agreements(found.folder, texts, PROMPT), 4)
    assert found.after.per_token.value == pytest.approx(accepted / reached)
    assert found.after.of_drafted.value == pytest.approx(accepted / drafted)
    assert found.after.per_token.low < accepted / reached < found.after.per_token.high

    lines = (found.training / "loss.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == list(range(1, 6 * 96 // 8 + 1))
    ElementTree.fromstring((found.training / "loss.svg").read_text())
    record = json.loads((found.folder / "distillation.json").read_text())
    assert record["acceptance"]["after"]["per_token"]["value"] == found.after.per_token.value
    assert record["settings"]["learning_rate"] == SETTINGS.learning_rate


def test_the_trained_draft_leaves_memory_before_acceptance_is_measured(
    toy: DistillationOptions, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[weakref.ref[nn.Module]] = []
    left: list[nn.Module | None] = []

    class WatchedDraft(TrainedDraft):
        def module(self) -> nn.Module:
            module = super().module()
            trained.append(weakref.ref(module))
            return module

        def choices(
            self, folder: Path | None, answers: Sequence[RecordedAnswer], advance: Advance
        ) -> list[Sequence[Choices]]:
            gc.collect()
            left.extend(each() for each in trained)
            return super().choices(folder, answers, advance)

    monkeypatch.setattr(distillation, "TrainedDraft", WatchedDraft)
    run(toy, settings=replace(SETTINGS, epochs=1))

    assert left == [None]


def test_a_tied_head_that_is_stored_too_is_written_again(
    toy: DistillationOptions, run: Run, llama_folder: Callable[..., Path]
) -> None:
    draft = llama_folder("stored_twice", num_hidden_layers=1, tie_word_embeddings=True, dtype=torch.float32)
    toy.recipe.write_text(toy.recipe.read_text().replace("./draft", "./stored_twice"))
    tensors = load_file(draft / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors, draft / "model.safetensors", metadata={"format": "pt"})

    folder = run(toy, settings=replace(SETTINGS, epochs=1)).folder

    written = load_file(folder / "model.safetensors")
    assert written.keys() == tensors.keys()
    assert torch.equal(written["lm_head.weight"], written["model.embed_tokens.weight"])


def test_the_folder_is_the_model_that_it_was(
    toy: DistillationOptions, run: Run, llama_folder: Callable[..., Path]
) -> None:
    draft = llama_folder("in_shards", num_hidden_layers=1, shard="20KB", tie_word_embeddings=True)
    toy.recipe.write_text(toy.recipe.read_text().replace("./draft", "./in_shards"))
    (draft / "LICENSE.txt").write_text("mine")
    folder = run(toy, settings=replace(SETTINGS, epochs=1)).folder

    weights = sorted(path.name for path in draft.glob("*.safetensors"))
    assert len(weights) > 1
    assert {path.name for path in folder.iterdir()} == {
        *(path.name for path in draft.iterdir()),
        "distillation.json",
    }
    for name in weights:
        with safe_open(draft / name, "pt") as before, safe_open(folder / name, "pt") as after:
            assert list(after.keys()) == list(before.keys())
            for key in after.keys():  # noqa: SIM118
                old, new = before.get_tensor(key), after.get_tensor(key)
                assert (new.dtype, new.shape) == (torch.bfloat16, old.shape)
                assert not torch.equal(new, old)
    same = [path for path in draft.iterdir() if path.name not in weights]
    assert all((folder / path.name).read_bytes() == path.read_bytes() for path in same)


def test_a_killed_run_ends_as_if_it_had_not_been(toy: DistillationOptions, run: Run, tmp_path: Path) -> None:
    settings = replace(SETTINGS, epochs=2)
    whole = run(toy, settings=settings, output=tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run(toy, settings=settings, at_every_step=True, killed_at=9)
    training = next(toy.output.glob("training-*"))
    assert [path.name for path in (training / "checkpoints").iterdir()] == ["step-8"]
    # As if the power had failed while the next checkpoint was written.
    (training / "checkpoints" / "checkpoint-9").mkdir()
    (training / "checkpoints" / "checkpoint-9" / "model.safetensors").write_bytes(b"half")
    with pytest.raises(KeyboardInterrupt):
        run(toy, settings=settings, at_every_step=True, killed_at=17)
    resumed = run(toy, settings=settings)

    assert resumed.training == training
    for name in ("model.safetensors", "config.json"):
        assert (resumed.folder / name).read_bytes() == (whole.folder / name).read_bytes()
    for name in ("loss.jsonl", "loss.svg"):
        assert (training / name).read_bytes() == (whole.training / name).read_bytes()
    assert not list(tmp_path.rglob("*.bin"))
    again = run(toy, settings=settings, killed_at=25)  # Nothing is left to train.
    assert again.points == whole.points


def test_a_draft_that_is_replaced_meanwhile_is_not_recorded_as_the_trained_one(
    toy: DistillationOptions, run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    weights = tmp_path / "draft/model.safetensors"

    def train_and_replace(*args: Any) -> Any:
        shutil.copy(weights, tmp_path / "downloading")
        (tmp_path / "downloading").rename(weights)
        return train(*args)

    monkeypatch.setattr(distillation, "train", train_and_replace)
    with pytest.raises(ChangedError, match=r"draft/model\.safetensors: has changed since"):
        run(toy, settings=replace(SETTINGS, epochs=1))
    assert not toy.folder.exists()


def test_a_tenth_is_held_out_where_nothing_is_named(toy: DistillationOptions, run: Run) -> None:
    found = run(toy, held_out=None, settings=replace(SETTINGS, epochs=1))

    learned, kept = (
        {answer.name for answer in side} for side in (found.answers.learned, found.answers.held_out)
    )
    assert (len(learned), len(kept)) == (86, 10)
    assert not learned & kept


def test_answers_that_bench_recorded_twice_are_learned_once(toy: DistillationOptions, run: Run) -> None:
    for file, count in ((toy.answers, 8), (Path(str(toy.held_out)), 6)):
        assert file
        lines = file.read_text().splitlines(keepends=True)[:count]
        file.write_text("".join(lines * 3))

    found = run(toy, settings=replace(SETTINGS, epochs=1))

    counts = len(found.answers.learned), len(found.answers.held_out), found.answers.left_out
    assert counts == (8, 6, 28)


def test_a_share_that_one_answer_tells_has_no_interval(
    toy: DistillationOptions, run: Run, tmp_path: Path
) -> None:
    held_out = tmp_path / "one.jsonl"
    short = Recorded("short", prompt_token_ids=(9, 8, 7), answer_token_ids=(6,))
    append_recorded(held_out, [*recorded([1000]), short])

    found = run(toy, held_out=str(held_out), settings=replace(SETTINGS, epochs=1))

    assert found.after
    told = json.loads((found.folder / "distillation.json").read_text())["acceptance"]["after"]["per_token"]
    assert told == {"value": found.after.per_token.value, "low": 0.0, "high": None}


def test_a_prompt_that_is_held_out_is_not_learned(toy: DistillationOptions, run: Run) -> None:
    with pytest.raises(DatasetError, match="leaves 0 answers to learn and 24 to measure on"):
        run(toy, answers=Path(str(toy.held_out)))


def test_a_rate_that_is_too_high(toy: DistillationOptions, run: Run) -> None:
    with pytest.raises(TrainingError, match=r"diverged at step \d+: the loss is nan") as caught:
        run(toy, settings=replace(SETTINGS, learning_rate=1e30))
    assert "--learning-rate" in str(caught.value.repair)
    assert not (toy.output / "draft").exists()


class TestWhatIsRefused:
    def test_a_draft_with_other_tokens(self, toy: DistillationOptions, run: Run, tmp_path: Path) -> None:
        tokenizer = tmp_path / "draft" / "tokenizer.json"
        tokenizer.write_text(
            tokenizer.read_text().replace('"!": 2', '"!": 3').replace('"\\"": 3', '"\\"": 2')
        )
        with pytest.raises(PairError, match="do not fit"):
            run(toy)

    def test_a_quantized_draft(self, toy: DistillationOptions, run: Run, tmp_path: Path) -> None:
        config = tmp_path / "draft" / "config.json"
        quantized = {"quant_method": "modelopt", "quantization": {"quant_algo": "FP8"}}
        config.write_text(json.dumps({**json.loads(config.read_text()), "quantization_config": quantized}))
        with pytest.raises(ModelError, match="cannot be trained"):
            run(toy)

    @pytest.mark.parametrize("held_out", [False, True])
    def test_answers_of_a_model_with_more_tokens(
        self, toy: DistillationOptions, run: Run, held_out: bool
    ) -> None:
        other = Recorded("other", prompt_token_ids=(9, 300), answer_token_ids=(8, 7))
        append_recorded(Path(str(toy.held_out if held_out else toy.answers)), [other])
        with pytest.raises(DatasetError, match="other: has token id 300, but the models have 264"):
            run(toy)

    def test_a_recipe_without_a_draft(self, toy: DistillationOptions, run: Run) -> None:
        text = toy.recipe.read_text().replace("draft: {model: ./draft}\n", "")
        toy.recipe.write_text(text.replace("num_draft_tokens: 4", "method: ngram"))
        with pytest.raises(ModelError, match="no draft to train: its method is ngram"):
            run(toy)
