"""The kernels of rows against PyTorch in float64."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from trtspec.serving.executors.torch.kernels.kernel import Gate, Norm

# One step of each type, and in float32 a few of them, since sums run in another order.
STEPS = {torch.float32: 4e-7, torch.bfloat16: 2**-8, torch.float16: 2**-11}
SHAPES = [(1, 64), (3, 1), (5, 33), (9, 256), (200, 100)]


pytestmark = pytest.mark.usefixtures("threads")


@pytest.mark.parametrize("dtype", STEPS)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_norm(dtype: torch.dtype, shape: tuple[int, int]) -> None:
    x, weight = 3 * torch.randn(shape).to(dtype), torch.randn(shape[1])
    length = torch.hypot(torch.linalg.vector_norm(x.double(), dim=-1, keepdim=True), torch.tensor(0.5))
    expected = weight.double() * x.double() / length
    found = Norm(weight, 0.5, dtype)(x)
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), expected, rtol=STEPS[dtype], atol=1e-7)


@pytest.mark.parametrize("dtype", STEPS)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_gate(dtype: torch.dtype, shape: tuple[int, int]) -> None:
    x = 5 * torch.randn(shape[0], 2 * shape[1]).to(dtype)
    a, b = x.double().chunk(2, -1)
    found = Gate(dtype)(x)
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), F.silu(a) * b, rtol=4 * STEPS[dtype], atol=1e-7)


@pytest.mark.parametrize("a", [-1e30, -120.0, -88.0, -0.0, 0.0, 1e-30, 88.0, 120.0, 1e30])
def test_a_gate_of_extremes(a: float) -> None:
    x = torch.tensor([[a, 1.0]])
    torch.testing.assert_close(Gate(torch.float32)(x), F.silu(x[:, :1]), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("dtype", STEPS)
def test_kernels_of_rows_keep_a_broken_value_visible_in_its_own_row_alone(dtype: torch.dtype) -> None:
    """NaN stays, in its row alone, and rounding does not make it infinite."""
    x = torch.ones(3, 8, dtype=dtype)
    x[1, 2] = float("nan")
    for result in (Norm(torch.ones(8), 0.1, dtype)(x), Gate(dtype)(x)):
        assert result[1].isnan().any()
        assert bool(result[[0, 2]].isfinite().all())


def test_rows_that_are_not_next_to_one_another() -> None:
    x = torch.randn(6, 64)[::2, ::2]
    torch.testing.assert_close(Gate(torch.float32)(x), F.silu(x[:, :16]) * x[:, 16:])


def test_other_elements_than_it_was_made_for_are_refused() -> None:
    with pytest.raises(AssertionError):
        Gate(torch.bfloat16)(torch.randn(1, 4))
