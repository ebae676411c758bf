"""Logits against transformers'."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from tests.fakes.engine_dir import tiny_llama, tiny_model, write_engine
from tests.support.families import FAMILIES as ALL
from trtspec.serving.executors.torch.cache import Cache
from trtspec.serving.executors.torch.engine import read_config
from trtspec.serving.executors.torch.kernels import kernel
from trtspec.serving.executors.torch.model import Decoder
from trtspec.serving.executors.torch.sequence import CHUNK
from trtspec.serving.executors.torch.spans import SIZES, BatchSize, Span
from trtspec.serving.executors.torch.weights import read_tensors

BOUND = 3e-5  # relative to the largest logit: what float32 leaves when sums run in another order
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
STEPS = (1, 5, 40, 200)
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


@pytest.fixture(params=["kernels", "PyTorch alone"], autouse=True)
def operations(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What models of this module compute with: PyTorch alone is what there is on a GPU, and without numba."""
    if request.param == "PyTorch alone":
        monkeypatch.setattr(kernel, "_is_installed", lambda: False)


def load(folder: Path, model: PreTrainedModel, max_seq_len: int = 256) -> Decoder:
    engine, device = write_engine(folder / "engine", model, max_seq_len=max_seq_len), torch.device("cpu")
    config = read_config(engine)
    return Decoder(config, read_tensors(engine, config, device), Cache(config, device), device)


@torch.inference_mode()
def run(decoder: Decoder, text: list[int], step: int) -> torch.Tensor:
    """Logits after every token, `step` rows at a time."""
    spans = [Span(1, start, min(step, len(text) - start)) for start in range(0, len(text), step)]
    parts = [
        decoder.forward(text[span.start : span.start + span.rows], [span], list(range(span.rows)))
        for span in spans
    ]
    return torch.cat(parts)


def expected(model: PreTrainedModel, token_ids: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.tensor([token_ids])).logits[0]
        return logits


def difference(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    return float((ours.float() - theirs.float()).abs().max() / theirs.float().abs().max())


def _few(cases: Iterable[Any], often: Iterable[Any]) -> list[Any]:
    """Each case with each step but 40; one token at a time, which takes longest, few of them."""
    return [
        pytest.param(
            case, step, marks=pytest.mark.sweep if step == 40 or (step == 1 and case not in often) else ()
        )
        for case in cases
        for step in STEPS
    ]


@pytest.mark.parametrize(("shape", "step"), _few(SHAPES, ("grouped", "llama3 rope")))
def test_logits_are_those_of_transformers(tmp_path: Path, shape: str, step: int) -> None:
    """A text of 200 tokens, `step` rows at a time."""
    model = tiny_llama(**SHAPES[shape])
    decoder, text = load(tmp_path, model), torch.randint(0, 96, (200,)).tolist()
    assert difference(run(decoder, text, step), expected(model, text)) < BOUND


FAMILIES: dict[str, dict[str, Any]] = {
    "mistral": {"sliding_window": None},
    "qwen2": {"rope_theta": 1e6},
    "qwen3": {"rope_theta": 1e6, "head_dim": 16},
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("step", [1, 7, 200])
def test_logits_of_every_family(tmp_path: Path, family: str, step: int) -> None:
    model = tiny_model(family, **FAMILIES[family])
    decoder, text = load(tmp_path, model), torch.randint(0, 96, (200,)).tolist()
    assert difference(run(decoder, text, step), expected(model, text)) < BOUND


@pytest.mark.parametrize("family", ALL)
def test_a_large_model_of_every_family(tmp_path: Path, family: str) -> None:
    """Of a size at which weights are packed, which biases must survive."""
    sizes: dict[str, Any] = {
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_attention_heads": 4,
        "head_dim": 64,
    }
    model = tiny_model(family, **sizes)
    decoder, text = load(tmp_path, model), torch.randint(0, 96, (20,)).tolist()
    for step in (1, 5):
        assert difference(run(decoder, text, step), expected(model, text)) < BOUND


@pytest.mark.parametrize(("window", "step"), _few((1, 2, 16, 199, 200, 256, 1000), (1, 16, 199)))
def test_a_sliding_window(tmp_path: Path, window: int, step: int) -> None:
    """Shorter than the steps, shorter than the text, as long, longer, longer than any text."""
    model = tiny_model("mistral", sliding_window=window)
    decoder, text = load(tmp_path, model), torch.randint(0, 96, (200,)).tolist()
    assert difference(run(decoder, text, step), expected(model, text)) < BOUND


@pytest.mark.parametrize("window", [3, 16, 60])
def test_sliding_windows_of_a_ragged_batch(tmp_path: Path, window: int) -> None:
    check_ragged(tmp_path, tiny_model("mistral", sliding_window=window))


@pytest.mark.parametrize(("dtype", "bound"), [(torch.bfloat16, 0.05), (torch.float16, 0.01)])
@pytest.mark.parametrize("step", [1, 5, 40])
def test_half_precision(tmp_path: Path, dtype: torch.dtype, bound: float, step: int) -> None:
    """No further from the exact logits than transformers in the same dtype, but for a small factor."""
    model = tiny_llama(dtype=dtype)
    decoder, text = load(tmp_path, model), torch.randint(0, 96, (40,)).tolist()
    ours = run(decoder, text, step)
    theirs, exact = expected(model, text), expected(model.float(), text)
    assert difference(ours, exact) < max(bound, 2 * difference(theirs, exact))


@pytest.mark.parametrize("family", ALL)
def test_a_ragged_batch(tmp_path: Path, family: str) -> None:
    check_ragged(tmp_path, tiny_model(family))


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """So many threads: with one of them all batches gather in the same memory."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


SMALL_BATCHES, ONE_BATCH = BatchSize(150_000, 150_000), BatchSize(1 << 30, 1 << 30)


@pytest.mark.parametrize(
    ("rows", "size"),
    [
        (1, SIZES["cpu"]),
        (6, SMALL_BATCHES),
        *(
            pytest.param(rows, size, marks=pytest.mark.sweep)
            for rows, size in ((1, ONE_BATCH), (6, ONE_BATCH), (1, SMALL_BATCHES), (6, SIZES["cpu"]))
        ),
    ],
)
def test_short_and_long_texts_in_one_step(tmp_path: Path, threads: int, rows: int, size: BatchSize) -> None:
    """Further apart than any step is long, in one batch and in several.

    What lay in memory before is not seen.
    """
    lengths = [3, 300, 700, 720, 730, CHUNK + 500, 690]
    model = tiny_llama(max_position_embeddings=2048)
    decoder = load(tmp_path, model, max_seq_len=2048)
    decoder._cache._size = size
    decoder._cache._room = torch.full((1 << 20,), float("nan"))
    texts = [torch.randint(0, 96, (length + rows,)).tolist() for length in lengths]
    with torch.inference_mode():
        for slot, length in enumerate(lengths):
            for start in range(0, length, 300):
                span = Span(slot, start, min(300, length - start))
                decoder.forward(texts[slot][start : start + span.rows], [span], [])
        spans = [Span(slot, length, rows) for slot, length in enumerate(lengths)]
        flat = [token for text in texts for token in text[-rows:]]
        parts = decoder.forward(flat, spans, list(range(len(flat)))).split(rows)
    for text, part in zip(texts, parts, strict=True):
        assert difference(part, expected(model, text)[-rows:]) < BOUND


def test_a_prompt_alone_gathers_nothing(tmp_path: Path) -> None:
    decoder = load(tmp_path, tiny_llama())
    run(decoder, list(range(90)), 30)
    assert decoder._cache._room.numel() == 0


def check_ragged(folder: Path, model: PreTrainedModel) -> None:
    """Prompts, verifications and decoding of different lengths in one pass, over several passes."""
    decoder, starts = load(folder, model), [0] * 6
    texts = [torch.randint(0, 96, (250,)).tolist() for _ in range(6)]
    with torch.inference_mode():
        for rows in ([50, 50, 7, 7, 1, 30], [1, 1, 1, 1, 1, 1], [5, 5, 5, 1, 9, 40], [5, 5, 5, 5, 2, 2]):
            order = sorted(range(6), key=lambda slot: rows[slot])
            spans = [Span(slot, starts[slot], rows[slot]) for slot in order]
            flat = [token for s in spans for token in texts[s.slot][s.start : s.start + s.rows]]
            parts = decoder.forward(flat, spans, list(range(len(flat)))).split([s.rows for s in spans])
            for slot, part in zip(order, parts, strict=True):
                starts[slot] += rows[slot]
                assert difference(part, expected(model, texts[slot][: starts[slot]])[-rows[slot] :]) < BOUND


def test_only_wanted_rows_have_logits(tmp_path: Path) -> None:
    model = tiny_llama()
    decoder, text = load(tmp_path, model), list(range(20))
    with torch.inference_mode():
        assert decoder.forward(text, [Span(0, 0, 20)], []).shape == (0, 96)
        ours = decoder.forward(text, [Span(1, 0, 20)], [4, 19])
    assert difference(ours, expected(model, text)[[4, 19]]) < BOUND


def test_a_copied_prefix_is_as_good_as_computed(tmp_path: Path) -> None:
    model = tiny_llama()
    decoder, text = load(tmp_path, model), torch.randint(0, 96, (30,)).tolist()
    with torch.inference_mode():
        decoder.forward(text, [Span(2, 0, 30)], [])
        decoder._cache.copy(2, 4, 25)
        ours = decoder.forward([*text[25:], 3], [Span(4, 25, 6)], list(range(6)))
    assert difference(ours, expected(model, [*text, 3])[25:]) < BOUND
