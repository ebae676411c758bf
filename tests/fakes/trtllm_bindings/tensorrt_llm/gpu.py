"""Memory of GPUs, counted in bytes."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass
class Gpu:
    total: int
    used: int = 0

    @property
    def free(self) -> int:
        return self.total - self.used

    def take(self, size: int) -> None:
        if size > self.free:
            raise MemoryError
        self.used += size


GPUS = [Gpu(int(float(os.environ.get("FAKE_GPU_GIB", "80")) * 2**30)) for _ in range(2)]


def mem_get_info(device: int) -> tuple[int, int]:
    """`torch.cuda.mem_get_info`."""
    return GPUS[device].free, GPUS[device].total
