"""Heads learn what their target computes; the folder that comes out is one that others read."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional as F
from transformers import AutoModelForCausalLM

from tests.fakes.engine_dir import tiny_model
from tests.unit.train.distill.conftest import Run
from trtspec.base.errors import ModelError
from trtspec.measure.workloads.workload import Recorded, append_recorded
from trtspec.models.heads.eagle3 import Eagle3Description
from trtspec.models.heads.head import HeadDescription
from trtspec.models.heads.reading import read_head
from trtspec.models.pair import check_head
from trtspec.models.source import read_source
from trtspec.train.distill.distillation import Distilled
from trtspec.train.distill.head import layer_of
from trtspec.train.distill.settings import (
    DistillationOptions,
    HeadSettings,
    TrainingSettings,
)

PROMPT, ANSWER = 8, 24
SETTINGS = TrainingSettings(batch_size=16, epochs=8, learning_rate=5e-3, max_length=64)


@pytest.fixture
def taught(tmp_path: Path, llama_folder: Callable[..., Path]) -> DistillationOptions:
    """A recipe with a target of four random layers, what it really answers, and no draft."""
    folder = llama_folder(
        "target", dtype=torch.float32, hidden_size=64, num_hidden_layers=4, initializer_range=0.05
    )
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.model.embed_tokens.weight.data *= 20
    model.lm_head.weight.data *= 10
    model.save_pretrained(folder)
    dice = torch.Generator().manual_seed(0)
    prompts = torch.randint(10, 250, (80, PROMPT), generator=dice)
    said: Any = model.generate(prompts, max_new_tokens=ANSWER, do_sample=False, eos_token_id=None)
    answers = [
        Recorded(str(n), prompt_token_ids=tuple(row[:PROMPT]), answer_token_ids=tuple(row[PROMPT:]))
        for n, row in enumerate(said.tolist())
    ]
    append_recorded(tmp_path / "answers.jsonl", answers[:64])
    append_recorded(tmp_path / "held_out.jsonl", answers[64:])
    (tmp_path / "toy.yaml").write_text(
        "name: toy\ntarget: {model: ./target, dtype: float32}\n"
        "speculation: {method: ngram, num_draft_tokens: 3}\nhardware: {gpu: none}\n"
    )
    return DistillationOptions(
        recipe=tmp_path / "toy.yaml",
        output=tmp_path / "distilled",
        answers=tmp_path / "answers.jsonl",
        held_out=str(tmp_path / "held_out.jsonl"),
        settings=SETTINGS,
    )


def test_acceptance_rises_on_answers_that_were_not_learned(taught: DistillationOptions, run: Run) -> None:
    found = run(taught, head=HeadSettings(ttt_steps=3))

    assert found.before
    assert found.after
    assert found.before.per_token.value < 0.1
    assert found.after.per_token.value > 0.4
    assert found.points[0].loss > 2 * found.points[-1].loss
    assert found.num_draft_tokens == 3
    assert found.folder == taught.output / "eagle3"
    record = json.loads((found.folder / "distillation.json").read_text())
    assert record["settings"]["ttt_steps"] == 3
    assert record["acceptance"]["after"]["per_token"]["value"] == found.after.per_token.value

    head, target = read_head(found.folder), read_source(taught.recipe.parent / "target")
    assert head.method == "eagle3"
    assert check_head(head, target) == []
    assert_replay(found, target.folder, head)


def assert_replay(found: Distilled, target: Path, head: HeadDescription) -> None:
    """What was measured is what a head says that is asked round by round, each from the text alone."""
    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
    tensors = load_file(next(head.folder.glob("*.safetensors")))
    assert found.after
    accepted = reached = 0
    for answer in found.answers.held_out[:4]:
        text, place = [*answer.prompt, *answer.tokens], len(answer.prompt) + 1
        while place < len(text) - 1:
            most = min(3, len(text) - place - 1)
            states = model(torch.tensor([text[: place - 1]]), output_hidden_states=True).hidden_states
            draft = eagle3_round(head, tensors, states, text[:place], most)
            good = next((at for at in range(most) if draft[at] != text[place + at]), most)
            accepted, reached = accepted + good, reached + min(good + 1, most)
            place += good + 1
    tallies = found.after.tallies[:4]
    assert (accepted, reached) == (
        sum(tally.accepted for tally in tallies),
        sum(tally.reached for tally in tallies),
    )


def eagle3_round(
    head: HeadDescription,
    tensors: dict[str, torch.Tensor],
    states: tuple[torch.Tensor, ...],
    text: list[int],
    most: int,
) -> list[int]:
    """One round as an engine runs it: a prefix at once, then a token at a time behind it."""
    assert isinstance(head, Eagle3Description)
    assert head.aux_layers
    layer = head.layer
    width, size = layer["hidden_size"], layer["head_dim"]

    def norm(value: torch.Tensor, name: str) -> torch.Tensor:
        return F.rms_norm(value, (width,), tensors[name], layer["rms_norm_eps"])

    def heads(value: torch.Tensor, name: str, count: int) -> torch.Tensor:
        return F.linear(value, tensors[f"layers.0.self_attn.{name}.weight"]).view(len(value), count, size)

    def turned(value: torch.Tensor, first: int) -> torch.Tensor:
        rates = layer["rope_theta"] ** -(torch.arange(0, size, 2) / size)
        angles = torch.outer(torch.arange(first, first + len(value)).float(), rates)[:, None]
        left, right = value.chunk(2, -1)
        cos, sin = angles.cos(), angles.sin()
        return torch.cat([left * cos - right * sin, right * cos + left * sin], -1)

    current = F.linear(torch.cat([states[number][0] for number in head.aux_layers], -1), tensors["fc.weight"])
    tokens, found = text[1:], list[int]()
    keys = values = torch.empty(0, layer["num_key_value_heads"], size)
    groups = layer["num_attention_heads"] // layer["num_key_value_heads"]
    for _ in range(most):
        embedded = norm(tensors["embed_tokens.weight"][tokens], "layers.0.input_layernorm.weight")
        both = torch.cat([embedded, norm(current, "layers.0.hidden_norm.weight")], -1)
        first = len(keys)
        queries = turned(heads(both, "q_proj", layer["num_attention_heads"]), first)
        keys = torch.cat([keys, turned(heads(both, "k_proj", layer["num_key_value_heads"]), first)])
        values = torch.cat([values, heads(both, "v_proj", layer["num_key_value_heads"])])
        mask = torch.ones(len(tokens), len(keys), dtype=torch.bool).tril(first)
        seen = F.scaled_dot_product_attention(
            queries.transpose(0, 1),
            keys.repeat_interleave(groups, 1).transpose(0, 1),
            values.repeat_interleave(groups, 1).transpose(0, 1),
            attn_mask=mask,
        )
        after = seen.transpose(0, 1).flatten(1)
        current = current + F.linear(after, tensors["layers.0.self_attn.o_proj.weight"])
        inner = norm(current, "layers.0.post_attention_layernorm.weight")
        gate, up, down = (tensors[f"layers.0.mlp.{name}_proj.weight"] for name in ("gate", "up", "down"))
        current = current + F.linear(F.silu(F.linear(inner, gate)) * F.linear(inner, up), down)
        current = current[-1:]
        own = int((tensors["lm_head.weight"] @ norm(current, "norm.weight")[0]).argmax())
        found.append(own + int(tensors["d2t"][own]) if "d2t" in tensors else own)
        tokens = found[-1:]
    return found


@pytest.mark.sweep
def test_a_killed_run_with_a_smaller_vocabulary_ends_as_if_it_had_not_been(
    taught: DistillationOptions, run: Run, tmp_path: Path
) -> None:
    head = HeadSettings(ttt_steps=2, draft_vocab_size=100)
    settings = replace(SETTINGS, epochs=2)
    whole = run(taught, head=head, settings=settings, output=tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run(taught, head=head, settings=settings, at_every_step=True, killed_at=5)
    resumed = run(taught, head=head, settings=settings)
    for name in ("model.safetensors", "config.json"):
        assert (resumed.folder / name).read_bytes() == (whole.folder / name).read_bytes()

    tensors = load_file(resumed.folder / "model.safetensors")
    known = (torch.arange(100) + tensors["d2t"]).tolist()
    assert torch.nonzero(tensors["t2d"]).flatten().tolist() == known
    seen = Counter(token for answer in resumed.answers.learned for token in answer.tokens)
    least = min(seen[token] for token in known)
    assert all(count <= least for token, count in seen.items() if token not in known)
    assert read_head(resumed.folder).draft_vocab_size == 100
    again = HeadSettings(ttt_steps=3, draft_vocab_size=100)
    assert run(taught, head=again, settings=settings).training != resumed.training


def test_texts_that_are_shorter_than_a_draft(taught: DistillationOptions, run: Run, tmp_path: Path) -> None:
    short = [Recorded(f"short{n}", prompt_token_ids=(n,), answer_token_ids=(7,)) for n in range(10, 14)]
    for name, answers in (("few.jsonl", short[:2]), ("held_out.jsonl", short[2:])):
        append_recorded(tmp_path / name, answers)
    settings = replace(SETTINGS, epochs=1, batch_size=1)
    few = replace(taught, answers=tmp_path / "few.jsonl")
    found = run(few, head=HeadSettings(ttt_steps=5), settings=settings)
    assert found.before
    assert [tally.drafted for tally in found.before.tallies[-2:]] == [0, 0]
    assert len(found.points) == 2


def test_a_target_of_too_few_layers(
    taught: DistillationOptions, run: Run, llama_folder: Callable[..., Path]
) -> None:
    llama_folder("target", num_hidden_layers=2)
    with pytest.raises(ModelError, match="has 2 layers, but an EAGLE-3 head reads the states after three"):
        run(taught, head=HeadSettings())


@pytest.mark.parametrize(
    ("family", "scaling", "kept"),
    [
        ("gemma2", None, None),
        ("llama", {"rope_type": "linear", "factor": 2.0}, {"rope_type": "linear", "factor": 2.0}),
        ("phi3", {"type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}, None),
    ],
)
def test_the_layer_of_a_head_is_a_llamas(
    tmp_path: Path, family: str, scaling: dict[str, Any] | None, kept: dict[str, Any] | None
) -> None:
    """Whatever its target is, so that servers can run it: with a SiLU, and factors of pairs that it has."""
    tiny_model(family, rope_scaling=scaling).save_pretrained(tmp_path)
    layer = layer_of(read_source(tmp_path))
    assert (layer.model_type, layer.hidden_act, layer.rope_scaling) == ("llama", "silu", kept)
    assert (layer.hidden_size, layer.head_dim) == (48, 8)
