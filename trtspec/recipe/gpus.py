"""The GPUs that a recipe may name."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches


@dataclass(frozen=True, slots=True)
class GpuProduct:
    """The data of one kind of GPU.

    The rates are from NVIDIA's data sheet of the product. TFLOPS are those of dense matrices: half of what a
    sheet says that counts sparsity. Where a GeForce has two numbers, they are those that sum up in float32.
    """

    name: str
    """The recipe's word for it."""
    label: str
    sm: int
    """The compute capability times ten."""
    memory_gib: float
    """The memory that `nvidia-smi` reports."""
    bandwidth_gb_s: int
    """The bandwidth of the memory."""
    tflops_16: float
    """TFLOPS with 16-bit floats."""
    tflops_8: float | None
    """TFLOPS with FP8."""
    link_gb_s: int
    """GB a second to other GPUs, both ways together: over NVLink, or PCIe where there is none."""

    @property
    def fp8(self) -> bool:
        """True if it has FP8 tensor cores, which came with Ada (SM 89) and Hopper (SM 90)."""
        return self.sm >= 89


NONE = "none"
HOPPER = 90

GPUS = {
    gpu.name: gpu
    for gpu in (
        GpuProduct("b200", "NVIDIA B200", 100, 179.1, 8000, 2250, 4500, 1800),
        GpuProduct("h200", "NVIDIA H200", 90, 140.4, 4800, 989.5, 1979, 900),
        GpuProduct("h100", "NVIDIA H100 80GB HBM3", 90, 79.6, 3350, 989.5, 1979, 900),
        GpuProduct("h100_nvl", "NVIDIA H100 NVL", 90, 93.6, 3900, 835.5, 1670.5, 600),
        GpuProduct("h100_pcie", "NVIDIA H100 PCIe", 90, 79.6, 2000, 756.5, 1513, 600),
        GpuProduct("h20", "NVIDIA H20", 90, 95.6, 4000, 148, 296, 900),
        # NVIDIA's data sheet 3773000, of the one with 96 GB of HBM3; that with 144 GB of HBM3e has 4.9 TB/s.
        GpuProduct("gh200", "NVIDIA GH200 480GB", 90, 95.6, 4000, 989.5, 1979, 900),
        GpuProduct("l40s", "NVIDIA L40S", 89, 45.0, 864, 362, 733, 64),
        GpuProduct("l4", "NVIDIA L4", 89, 22.5, 300, 121, 242.5, 64),
        GpuProduct("rtx4090", "NVIDIA GeForce RTX 4090", 89, 24.0, 1008, 165.2, 330.3, 64),
        GpuProduct("a10", "NVIDIA A10", 86, 22.5, 600, 125, None, 64),
        GpuProduct("a100", "NVIDIA A100-SXM4-80GB", 80, 80.0, 2039, 312, None, 600),
        GpuProduct("a100_40gb", "NVIDIA A100-SXM4-40GB", 80, 40.0, 1555, 312, None, 600),
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
