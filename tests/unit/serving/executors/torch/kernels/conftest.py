from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from trtspec.serving.executors.torch.kernels import kernel


@pytest.fixture(params=[1, pytest.param(2, marks=pytest.mark.sweep), 3])
def threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """So many threads, each of which takes some of the tasks, however few these are."""
    monkeypatch.setattr(kernel, "_WORTH_SHARING", 0)
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)
