"""Attention in place against its definition in float64, text by text."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.fakes.engine_dir import tiny_model, write_engine
from trtspec.serving.executors.torch.engine import TorchEngineConfig, read_config
from trtspec.serving.executors.torch.kernels.kernel import KernelAttention, KernelView
from trtspec.serving.executors.torch.spans import Span

LAYER = 1
# Of one text: how many tokens the cache has, and how many rows are new.
TEXTS = {
    "one": [(200, 1)],
    "one that begins": [(0, 3)],
    "a prompt": [(0, 500)],
    "a long chunk beside others": [(300, 1), (300, 400), (7, 2)],
    "alike": [(70, 1), (70, 1), (70, 1)],
    "ragged": [(0, 1), (255, 2), (256, 9), (700, 1), (31, 5)],
}
# For what differs little from text to text; the sweep tries them all.
FEW_TEXTS = [
    text if text in ("a long chunk beside others", "ragged") else pytest.param(text, marks=pytest.mark.sweep)
    for text in TEXTS
]
BOUNDS = {torch.float32: 2e-6, torch.bfloat16: 2**-8, torch.float16: 2**-11}


pytestmark = pytest.mark.usefixtures("threads")


def config_of(folder: Path, family: str = "llama", /, **changes: Any) -> TorchEngineConfig:
    changes = {"num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 32, **changes}
    return read_config(write_engine(folder / "engine", tiny_model(family, **changes), max_seq_len=1024))


class Step:
    """New rows of texts behind a random cache, in which NaN lies wherever nothing has been written."""

    def __init__(self, config: TorchEngineConfig, texts: list[tuple[int, int]]) -> None:
        kinds = 2 * config.num_kv_heads
        self._config, self._texts = config, texts
        shape = config.num_layers, kinds, 1024, config.head_size
        self.slots = [torch.full(shape, float("nan"), dtype=config.dtype) for _ in texts]
        for slot, (start, _) in zip(self.slots, texts, strict=True):
            slot[:, :, :start] = torch.randn(shape[0], kinds, start, config.head_size)
        self.before = [slot.clone() for slot in self.slots]
        rows = sum(rows for _, rows in texts)
        self.heads = torch.randn(rows, config.num_heads + kinds, config.head_size).to(config.dtype)

    def attend(self) -> Tensor:
        spans = [Span(number, start, rows) for number, (start, rows) in enumerate(self._texts)]
        return KernelView(KernelAttention(self._config), self.slots, spans).attend(LAYER, self.heads)

    def expected(self, window: int | None = None) -> Tensor:
        """The definition: softmax of scaled products, over what each row sees."""
        config, parts = self._config, []
        rows = self.heads.double().split([rows for _, rows in self._texts])
        for slot, (start, new), heads in zip(self.before, self._texts, rows, strict=True):
            queries, keys, values = heads.split([config.num_heads, *[config.num_kv_heads] * 2], 1)
            past = slot[LAYER, :, :start].double()
            sharing = config.num_heads // config.num_kv_heads
            keys, values = (
                torch.cat([old, own.transpose(0, 1)], 1).repeat_interleave(sharing, 0)
                for old, own in zip(past.chunk(2), (keys, values), strict=True)
            )
            scores = queries.transpose(0, 1) @ keys.transpose(1, 2) * config.head_size**-0.5
            if config.score_cap:
                scores = torch.tanh(scores / config.score_cap) * config.score_cap
            distance = torch.arange(start, start + new)[:, None] - torch.arange(start + new)
            seen = (distance >= 0) & (distance < (window or 1 << 30))
            mixed = scores.masked_fill(~seen, -torch.inf).softmax(-1) @ values
            parts.append(mixed.transpose(0, 1).reshape(new, -1))
        return torch.cat(parts)


def error(found: Tensor, expected: Tensor) -> float:
    return float((found.double() - expected).abs().max() / expected.abs().max())


@pytest.mark.parametrize("texts", TEXTS)
@pytest.mark.parametrize("dtype", BOUNDS)
def test_attention_in_place_is_accurate_for_every_element_type(
    tmp_path: Path, texts: str, dtype: torch.dtype
) -> None:
    step = Step(config_of(tmp_path, dtype=dtype), TEXTS[texts])
    assert error(step.attend(), step.expected()) <= BOUNDS[dtype]


@pytest.mark.parametrize("texts", FEW_TEXTS)
@pytest.mark.parametrize(
    "shape",
    [
        {"num_key_value_heads": 6},
        {"num_key_value_heads": 1},
        {"num_attention_heads": 1, "num_key_value_heads": 1},
        {"head_dim": 80},
        {"head_dim": 256},
        {"head_dim": 6},
    ],
)
def test_attention_in_place_is_accurate_for_every_shape_of_heads(
    tmp_path: Path, texts: str, shape: dict[str, Any]
) -> None:
    step = Step(config_of(tmp_path, **shape), TEXTS[texts])
    assert error(step.attend(), step.expected()) <= BOUNDS[torch.float32]


@pytest.mark.parametrize("texts", FEW_TEXTS)
@pytest.mark.parametrize("window", [1, 3, 70, 256, 1000])
def test_with_a_window(tmp_path: Path, texts: str, window: int) -> None:
    step = Step(config_of(tmp_path, "mistral", sliding_window=window), TEXTS[texts])
    assert error(step.attend(), step.expected(window)) <= BOUNDS[torch.float32]


@pytest.mark.parametrize("cap", [0.01, 3.0, 50.0])
def test_with_bounded_scores(tmp_path: Path, cap: float) -> None:
    config = config_of(tmp_path, "gemma2", attn_logit_softcapping=cap, sliding_window=4096)
    step = Step(config, TEXTS["ragged"])
    step.heads *= 30
    assert error(step.attend(), step.expected()) <= 5 * BOUNDS[torch.float32]


def test_new_keys_and_values_are_written_and_nothing_else(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    step = Step(config, TEXTS["ragged"])
    step.attend()
    first = 0
    for slot, before, (start, new) in zip(step.slots, step.before, TEXTS["ragged"], strict=True):
        own = step.heads[first : first + new, config.num_heads :].transpose(0, 1)
        assert torch.equal(slot[LAYER, :, start : start + new], own)
        slot[LAYER, :, start : start + new] = float("nan")
        assert torch.equal(slot.isnan(), before.isnan())
        assert torch.equal(slot.nan_to_num(), before.nan_to_num())
        first += new


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
@pytest.mark.parametrize("kind", ["query", "key", "value"])
def test_attention_keeps_a_broken_value_visible_in_its_own_text_alone(
    tmp_path: Path, wrong: float, kind: str
) -> None:
    """A broken row makes its own result nothing, and no other text's."""
    config = config_of(tmp_path, num_attention_heads=1, num_key_value_heads=1)
    step = Step(config, [(90, 2), (90, 2)])
    step.heads[0, ["query", "key", "value"].index(kind)] = wrong
    result = step.attend()
    assert not result[0].isfinite().any()
    assert error(result[2:], step.expected()[2:]) <= BOUNDS[torch.float32]


def test_scores_far_apart(tmp_path: Path) -> None:
    """The largest decides alone, wherever it is, and nothing overflows."""
    step = Step(config_of(tmp_path), TEXTS["ragged"])
    step.heads *= 1000
    assert error(step.attend(), step.expected()) <= 1e-5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rounding_is_that_of_pytorch(tmp_path: Path, dtype: torch.dtype) -> None:
    """Of the middle of two numbers to the even one: a query of zeros takes the mean of two values."""
    config = config_of(tmp_path, dtype=dtype, head_dim=256, num_attention_heads=1, num_key_value_heads=1)
    step = Step(config, [(1, 1)] * 50)
    step.heads[:, 0] = 0
    values = torch.stack([slot[LAYER, 1, 0] for slot in step.slots]).float()
    mean = (values + step.heads[:, 2].float()) / 2
    assert torch.equal(step.attend(), mean.to(dtype))


def test_a_call_is_what_numba_compiled_it_for() -> None:
    """No padding lies between fields, of which each has 8 bytes."""
    from trtspec.serving.executors.torch.kernels.calls import AttentionCall, RowsCall

    for call in (AttentionCall, RowsCall):
        assert ctypes.sizeof(call) == 8 * len(call._fields_)
