"""Products with constant weights, against float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from trtspec.serving.executors.torch.linear import Linear, Matrix, NormedLinear

ROWS = pytest.mark.parametrize("rows", [1, 2, 5, 64, 300])
BFLOAT16 = torch.randn(1024, 256, generator=torch.Generator().manual_seed(1)).bfloat16().float()
WEIGHTS = {
    "small": BFLOAT16[:16],
    "float32": torch.randn(1024, 256, generator=torch.Generator().manual_seed(2)),
    "bfloat16": BFLOAT16,
    "tiny": BFLOAT16 * 2.0**-100,
    "huge": BFLOAT16 * 2.0**100,
    "of a wide range": torch.where(torch.rand(1024, 256) < 0.5, BFLOAT16, BFLOAT16 * 2.0**-60),
    "zero": torch.zeros(1024, 256),
}


def close(found: Tensor, expected: Tensor) -> None:
    """To float32's last digits of the largest."""
    assert found.dtype == torch.float32
    assert float((found - expected).abs().max()) <= 4e-6 * float(expected.abs().max())


@ROWS
@pytest.mark.parametrize("kind", WEIGHTS)
@pytest.mark.parametrize("biased", [False, True])
def test_linear(kind: str, rows: int, biased: bool) -> None:
    weight = WEIGHTS[kind]
    x = torch.randn(rows, weight.shape[1])
    bias = torch.randn(weight.shape[0]) * weight.abs().max() if biased else None
    expected = F.linear(x.double(), weight.double(), bias if bias is None else bias.double())
    close(Linear(weight, bias)(x), expected)


@ROWS
@pytest.mark.parametrize("biased", [False, True])
def test_a_model_in_bfloat16(rows: int, biased: bool) -> None:
    """To a step of bfloat16, since the sum is made in float32 and rounded once."""
    weight, x = BFLOAT16.bfloat16(), torch.randn(rows, 256).bfloat16()
    bias = torch.randn(1024).bfloat16() if biased else None
    expected = F.linear(x.double(), weight.double(), bias if bias is None else bias.double())
    found = Linear(weight, bias)(x)
    assert found.dtype == torch.bfloat16
    assert bool(((found.double() - expected).abs() <= 2**-8 * expected.abs() + 1e-4).all())


def test_half_precision_is_used_only_where_it_is_exact() -> None:
    halves = {kind for kind, weight in WEIGHTS.items() if Linear(weight).scale != 1}
    assert halves == {"bfloat16", "small", "tiny", "huge"}


@ROWS
@pytest.mark.parametrize("kind", ["small", "float32", "bfloat16"])
def test_normed_linear(kind: str, rows: int) -> None:
    weight, x = WEIGHTS[kind], torch.randn(rows, 256)
    norm = torch.rand(256)
    normed = F.rms_norm(x.double(), (256,), norm.double(), 1e-5)
    close(NormedLinear(norm, Matrix(weight), 1e-5)(x), normed @ weight.double().T)


@ROWS
def test_a_norm_in_bfloat16_is_rounded_once(rows: int) -> None:
    weight, x = torch.eye(256).bfloat16(), torch.randn(rows, 256).bfloat16()
    norm = torch.rand(256).bfloat16()
    normed = F.rms_norm(x.float(), (256,), norm.float(), 1e-5)
    found = NormedLinear(norm, Matrix(weight), 1e-5)(x)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), normed, rtol=2**-8, atol=0)
