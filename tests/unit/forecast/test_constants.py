"""The constants of the forecast against kernels that NVIDIA measured: `tests/data/kernel_times`.

Llama 3.1 8B and 405B are two of the four models that they were fitted to; `make test-forecast` draws others.
"""

from __future__ import annotations

from statistics import median

import pytest

from tests.perf.kernel_times import POINTS, error


@pytest.mark.parametrize("model", ["8B", "405B"])
@pytest.mark.parametrize(("is_plain", "usual", "worst"), [(True, 0.06, 0.15), (False, 0.06, 0.18)])
def test_steps_follow_the_measured_kernels(model: str, is_plain: bool, usual: float, worst: float) -> None:
    points = [point for point in POINTS if model in point.model and (point.rows == 1) == is_plain]
    errors = [abs(error(point)) for point in points]
    assert len(errors) >= 6
    assert median(errors) < usual
    assert max(errors) < worst


def test_steps_of_405b_on_eight_gpus_are_not_too_fast_at_many_sequences() -> None:
    busy = [point for point in POINTS if "405B" in point.model and (point.tensor, point.rows) == (8, 1)]
    assert all(error(point) > -0.1 for point in busy if point.sequences >= 64)
