from __future__ import annotations

import pytest
import torch

from trtspec.checkpoint.cast import cast

DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def numbers(dtype: str) -> torch.Tensor:
    """Every number of a 16-bit dtype; for float32, random bit patterns and the borders of the 16-bit ones."""
    if dtype != "F32":
        return torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(DTYPES[dtype])
    random = torch.randint(-(2**31), 2**31, (200_000,), generator=torch.Generator().manual_seed(0)).to(
        torch.int32
    )
    ties = torch.arange(0, 2**16, dtype=torch.int64).mul(2**16).add(2**15).to(torch.int32)
    return torch.cat([random, ties, ties - 1, ties + 1]).view(torch.float32)


@pytest.mark.parametrize("source", DTYPES)
@pytest.mark.parametrize("target", DTYPES)
def test_every_number_as_torch_rounds_it(source: str, target: str) -> None:
    values = numbers(source)
    fits = ~(values.to(DTYPES[target]).isinf() & values.isfinite())
    values = values[fits]
    expected = values.to(DTYPES[target])
    result = cast(values.view(torch.uint8).numpy().tobytes(), source, target)
    found = torch.frombuffer(bytearray(result), dtype=DTYPES[target])
    assert torch.equal(found.isnan(), expected.isnan())
    assert torch.equal(found.nan_to_num(0), expected.nan_to_num(0))


@pytest.mark.parametrize(
    ("source", "target", "value"), [("F32", "F16", 70000.0), ("BF16", "F16", -1e6), ("F32", "BF16", 3.4e38)]
)
def test_a_number_too_large_is_an_error_and_not_infinity(source: str, target: str, value: float) -> None:
    values = torch.tensor([1.0, value], dtype=DTYPES[source])
    with pytest.raises(OverflowError) as caught:
        cast(values.view(torch.uint8).numpy().tobytes(), source, target)
    assert caught.value.args[0] == pytest.approx(abs(value), rel=0.01)


def test_infinity_stays_infinity() -> None:
    values = torch.tensor([float("inf"), float("-inf")])
    result = torch.frombuffer(bytearray(cast(values.numpy().tobytes(), "F32", "F16")), dtype=torch.float16)
    assert result.tolist() == [float("inf"), float("-inf")]
