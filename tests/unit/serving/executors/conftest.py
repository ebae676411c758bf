from __future__ import annotations

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Tiny models gain nothing from more, and a busy machine makes threads wait for each other."""
    torch.set_num_threads(1)
