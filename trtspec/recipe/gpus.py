"""The GPUs that a recipe may name."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches


@dataclass(frozen=True, slots=True)
class GpuProduct:
    """One kind of GPU. `name` is the recipe's word for it, and `sm` the compute capability times ten.

    The memory is what `nvidia-smi` reports, and the bandwidth that of the data sheet.
    """

    name: str
    label: str
    sm: int
    memory_gib: float
    bandwidth_gb_s: int

    @property
    def fp8(self) -> bool:
        """Whether it has FP8 tensor cores, which came with Ada (SM 89) and Hopper (SM 90)."""
        return self.sm >= 89


NONE = "none"
HOPPER = 90

GPUS = {
    gpu.name: gpu
    for gpu in (
        GpuProduct("b200", "NVIDIA B200", 100, 179.1, 8000),
        GpuProduct("h200", "NVIDIA H200", 90, 140.4, 4800),
        GpuProduct("h100", "NVIDIA H100 80GB HBM3", 90, 79.6, 3350),
        GpuProduct("h100_nvl", "NVIDIA H100 NVL", 90, 93.6, 3900),
        GpuProduct("h100_pcie", "NVIDIA H100 PCIe", 90, 79.6, 2000),
        GpuProduct("h20", "NVIDIA H20", 90, 95.6, 4000),
        GpuProduct("l40s", "NVIDIA L40S", 89, 45.0, 864),
        GpuProduct("l4", "NVIDIA L4", 89, 22.5, 300),
        GpuProduct("rtx4090", "NVIDIA GeForce RTX 4090", 89, 24.0, 1008),
        GpuProduct("a10", "NVIDIA A10", 86, 22.5, 600),
        GpuProduct("a100", "NVIDIA A100-SXM4-80GB", 80, 80.0, 2039),
        GpuProduct("a100_40gb", "NVIDIA A100-SXM4-40GB", 80, 40.0, 1555),
    )
}

NAMES = (*GPUS, NONE)


def check(name: str) -> str:
    """Returns the name if a recipe may have it, else raises ValueError(problem, repair)."""
    if name in NAMES:
        return name
    plain = name.lower().replace("nvidia", "").strip(" -_").replace("-", "_").replace(" ", "_")
    near = get_close_matches(plain, NAMES, n=1)
    repair = f"did you mean {near[0]}?" if near else None
    raise ValueError(f"found {name!r:.80}; known GPUs are {', '.join(NAMES)}", repair)
