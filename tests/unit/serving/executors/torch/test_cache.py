"""Masks against the rule itself: a row sees its past and itself, of which a window leaves the last."""

from __future__ import annotations

import pytest
import torch

from trtspec.serving.executors.torch.cache import CausalMask

HEADS = 3


def rule(start: int, rows: int, first: int, end: int, window: int | None) -> torch.Tensor:
    """The bools `[rows, positions]`, position by position."""
    return torch.tensor(
        [
            [position <= at and (window is None or at - position < window) for position in range(first, end)]
            for at in range(start, start + rows)
        ]
    )


@pytest.mark.parametrize("window", [None, 1, 4, 11, 50])
@pytest.mark.parametrize("rows", [1, 2, 7])
@pytest.mark.parametrize("starts", [[0], [9], [9, 9], [0, 30], [12, 3, 40, 11]])
def test_each_row_sees_its_past_and_itself(starts: list[int], rows: int, window: int | None) -> None:
    causal = CausalMask(window, HEADS, torch.float32, torch.device("cpu"))
    first, end = causal.first(min(starts)), max(starts) + rows
    heads = 1 if len(starts) == 1 else HEADS
    expected = torch.stack([rule(start, rows, first, end, window) for start in starts])
    expected = expected.repeat_interleave(heads, 1)[:, None]
    mask = causal.mask(starts, rows)
    if mask is None:
        assert expected.all()
    else:
        assert torch.equal(mask, torch.where(expected, 0.0, float("-inf")))
        assert not expected.all()


def test_a_mask_takes_memory_for_what_a_step_looks_at() -> None:
    """A table of all masks of a text of a million tokens would have 2 GB."""
    causal = CausalMask(None, HEADS, torch.float32, torch.device("cpu"))
    mask = causal.mask([100], 512)
    assert mask is not None
    assert mask.untyped_storage().nbytes() == 512 * 612 * 4
