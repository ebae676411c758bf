"""Logits against transformers'."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from tests.fakes.engine_dir import tiny_llama, write_engine
from trtspec.serving.executors.torch.cache import Cache, Span
from trtspec.serving.executors.torch.engine import read_config, read_tensors
from trtspec.serving.executors.torch.linear import Linear
from trtspec.serving.executors.torch.model import Llama

LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
SHAPES: dict[str, dict[str, Any]] = {
    "grouped": {},
    "one head each": {"num_key_value_heads": 6},
    "one key for all": {"num_key_value_heads": 1},
    "large enough to pack": {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4,
                             "head_dim": 64},
    "heads wider than hidden": {"head_dim": 32},
    "rope base": {"rope_theta": 500000.0},
    "llama3 rope": {"rope_scaling": LLAMA3, "head_dim": 64},
    "linear rope": {"rope_scaling": {"rope_type": "linear", "factor": 3.0}},
}  # fmt: skip


def load(folder: Path, model: LlamaForCausalLM) -> Llama:
    engine, device = write_engine(folder / "engine", model, max_seq_len=256), torch.device("cpu")
    config = read_config(engine)
    return Llama(config, read_tensors(engine, config, device), Cache(config, 6, device), device)


def expected(model: LlamaForCausalLM, token_ids: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        return model(torch.tensor([token_ids])).logits[0]


def difference(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    return float((ours.float() - theirs.float()).abs().max() / theirs.float().abs().max())


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("step", [1, 5, 40, 200])
def test_logits_are_those_of_transformers(tmp_path: Path, shape: str, step: int) -> None:
    """A text of 200 tokens, `step` rows at a time."""
    model = tiny_llama(**SHAPES[shape])
    llama, text = load(tmp_path, model), torch.randint(0, 96, (200,)).tolist()
    with torch.inference_mode():
        ours = [
            llama.forward(text[start : start + step], [Span(1, start, step)], list(range(step)))
            for start in range(0, 200, step)
        ]
    assert difference(torch.cat(ours), expected(model, text)) < 1e-5


@pytest.mark.parametrize(("dtype", "bound"), [(torch.bfloat16, 0.05), (torch.float16, 0.01)])
@pytest.mark.parametrize("step", [1, 5, 40])
def test_half_precision(tmp_path: Path, dtype: torch.dtype, bound: float, step: int) -> None:
    """No further from the exact logits than transformers in the same dtype, but for a small factor."""
    model = tiny_llama(dtype=dtype)
    llama, text = load(tmp_path, model), torch.randint(0, 96, (40,)).tolist()
    with torch.inference_mode():
        ours = [
            llama.forward(text[start : start + step], [Span(1, start, step)], list(range(step)))
            for start in range(0, 40, step)
        ]
    theirs, exact = expected(model, text), expected(model.float(), text)
    assert difference(torch.cat(ours), exact) < max(bound, 2 * difference(theirs, exact))


def test_a_ragged_batch(tmp_path: Path) -> None:
    """Prompts, verifications and decoding of different lengths in one pass, over several passes."""
    model = tiny_llama()
    llama, starts = load(tmp_path, model), [0] * 6
    texts = [torch.randint(0, 96, (250,)).tolist() for _ in range(6)]
    with torch.inference_mode():
        for rows in ([50, 50, 7, 7, 1, 30], [1, 1, 1, 1, 1, 1], [5, 5, 5, 1, 9, 40], [5, 5, 5, 5, 2, 2]):
            order = sorted(range(6), key=lambda slot: rows[slot])
            spans = [Span(slot, starts[slot], rows[slot]) for slot in order]
            flat = [token for s in spans for token in texts[s.slot][s.start : s.start + s.rows]]
            parts = llama.forward(flat, spans, list(range(len(flat)))).split([s.rows for s in spans])
            for slot, part in zip(order, parts, strict=True):
                starts[slot] += rows[slot]
                assert difference(part, expected(model, texts[slot][: starts[slot]])[-rows[slot] :]) < 1e-5


def test_only_wanted_rows_have_logits(tmp_path: Path) -> None:
    model = tiny_llama()
    llama, text = load(tmp_path, model), list(range(20))
    with torch.inference_mode():
        assert llama.forward(text, [Span(0, 0, 20)], []).shape == (0, 96)
        ours = llama.forward(text, [Span(1, 0, 20)], [4, 19])
    assert difference(ours, expected(model, text)[[4, 19]]) < 1e-5


def test_a_copied_prefix_is_as_good_as_computed(tmp_path: Path) -> None:
    model = tiny_llama()
    llama, text = load(tmp_path, model), torch.randint(0, 96, (30,)).tolist()
    with torch.inference_mode():
        llama.forward(text, [Span(2, 0, 30)], [])
        llama._cache.copy(2, 4, 25)
        ours = llama.forward([*text[25:], 3], [Span(4, 25, 6)], list(range(6)))
    assert difference(ours, expected(model, [*text, 3])[25:]) < 1e-5


@pytest.mark.parametrize("size", [(16, 8), (512, 256)], ids=["plain", "packed"])
@pytest.mark.parametrize("rows", [1, 2, 5, 64, 300])
def test_linear(size: tuple[int, int], rows: int) -> None:
    weight, x = torch.randn(size), torch.randn(rows, size[1])
    torch.testing.assert_close(Linear(weight)(x), x @ weight.T, rtol=1e-4, atol=1e-4)
