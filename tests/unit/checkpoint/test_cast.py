from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from trtspec.checkpoint.tensors import NUMPY, caster, is_finite, quantizer

DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "F8_E4M3": torch.float8_e4m3fn}
WIDE = ("F32", "F16", "BF16")


def numbers(dtype: str) -> torch.Tensor:
    """Every number of a dtype of 8 or 16 bits; of float32, random ones and the borders of narrower ones."""
    if dtype == "F8_E4M3":
        return torch.arange(256, dtype=torch.uint8).view(DTYPES[dtype])
    if dtype != "F32":
        return torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(DTYPES[dtype])
    generator = torch.Generator().manual_seed(0)
    random = torch.randint(-(2**31), 2**31, (200_000,), generator=generator).to(torch.int32)
    ties = torch.arange(0, 2**16, dtype=torch.int64).mul(2**16).add(2**15).to(torch.int32)
    fp8 = numbers("F8_E4M3").float().nan_to_num()
    between = ((fp8[:-1] + fp8[1:]) / 2).view(torch.int32)
    borders = torch.cat([ties, between])
    return torch.cat([random, borders, borders - 1, borders + 1]).view(torch.float32)


def as_array(values: torch.Tensor, dtype: str) -> npt.NDArray[Any]:
    return values.view(torch.uint8).numpy().view(NUMPY[dtype])


def as_tensor(array: npt.NDArray[Any], dtype: str) -> torch.Tensor:
    return torch.from_numpy(array.view("u1").copy()).view(DTYPES[dtype])


@pytest.mark.parametrize("source", WIDE)
@pytest.mark.parametrize("target", WIDE)
def test_every_number_as_torch_rounds_it(source: str, target: str) -> None:
    values = numbers(source)
    fits = ~(values.to(DTYPES[target]).isinf() & values.isfinite())
    values = values[fits]
    expected = values.to(DTYPES[target])
    found = as_tensor(caster(source, target)(as_array(values, source)), target)
    assert torch.equal(found.isnan(), expected.isnan())
    assert torch.equal(found.nan_to_num(0), expected.nan_to_num(0))


@pytest.mark.parametrize(
    ("source", "target", "value"), [("F32", "F16", 70000.0), ("BF16", "F16", -1e6), ("F32", "BF16", 3.4e38)]
)
def test_a_number_too_large_is_an_error_and_not_infinity(source: str, target: str, value: float) -> None:
    values = torch.tensor([1.0, value], dtype=DTYPES[source])
    with pytest.raises(OverflowError) as caught:
        caster(source, target)(as_array(values, source))
    assert caught.value.args[0] == pytest.approx(abs(value), rel=0.01)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_number_that_is_not_finite_is_found_among_others(dtype: str) -> None:
    """Each sign, infinity, and NaN with each payload."""
    values = numbers(dtype)
    expected = values.float().isfinite()
    array = as_array(values, dtype)
    assert is_finite(array[expected.numpy()][None], dtype)
    broken = array[~expected.numpy()]
    assert len(broken) > 1
    finite = array[expected.numpy()][:3]
    for number in broken[:: max(len(broken) // 300, 1)]:
        assert not is_finite(np.array([[*finite, number, *finite]], array.dtype), dtype)


def test_integers_are_finite() -> None:
    assert is_finite(np.array([[-1, 2**63 - 1]]), "I64")


def test_infinity_stays_infinity() -> None:
    values = torch.tensor([float("inf"), float("-inf")])
    result = as_tensor(caster("F32", "F16")(as_array(values, "F32")), "F16")
    assert result.tolist() == [float("inf"), float("-inf")]


@pytest.mark.parametrize("source", WIDE)
@pytest.mark.parametrize("scale", [1.0, 0.0123, 3.7e-5, 1e-30, 700.0])
def test_fp8_is_what_torch_makes_of_the_float32_quotient(source: str, scale: float) -> None:
    values = numbers(source)
    quotient = values.float() / torch.tensor(scale)
    expected = quotient.clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8)
    found = quantizer(source, scale)(as_array(values, source))
    assert torch.equal(torch.from_numpy(found), expected)


@pytest.mark.parametrize(("stored", "scale"), [(0.02, 0.03), (0.02, 0.02), (1.0, 0.7), (3e-5, 3.1e-5)])
def test_fp8_at_another_scale(stored: float, scale: float) -> None:
    values = numbers("F8_E4M3")
    wide = values.float() * torch.tensor(stored) / torch.tensor(scale)
    expected = wide.clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8)
    found = quantizer("F8_E4M3", scale, stored)(as_array(values, "F8_E4M3"))
    assert torch.equal(torch.from_numpy(found), expected)
    assert stored != scale or torch.equal(torch.from_numpy(found), values.view(torch.uint8))


def test_a_matrix_and_a_part_of_its_columns_stay_one() -> None:
    values = torch.randn(6, 8, generator=torch.Generator().manual_seed(0)).bfloat16()
    array = values.view(torch.uint8).numpy().view("<u2")[:, 2:6]
    expected = (values[:, 2:6].float() / 0.5).to(torch.float8_e4m3fn).view(torch.uint8)
    assert torch.equal(torch.from_numpy(quantizer("BF16", 0.5)(array)), expected)
