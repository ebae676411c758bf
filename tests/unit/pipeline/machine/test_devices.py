from __future__ import annotations

from dataclasses import replace

import pytest

from trtspec.pipeline.machine.devices import Gpu, apart, parse, visible

# What `nvidia-smi` prints for the query; the GTX has neither MIG nor a way to say so.
OUTPUT = """\
0, GPU-5ad1, NVIDIA H200, 9.0, 590.44.01, Default, Disabled, 143771, 143000
1, GPU-77e4, NVIDIA A100-SXM4-80GB, 8.0, 590.44.01, Exclusive_Process, Enabled, 81920, 81000
2, GPU-77f0, NVIDIA GeForce GTX 1080, 6.1, 590.44.01, Default, [N/A], 8192, 8000
"""
GPUS = parse(OUTPUT)


def test_the_output_of_nvidia_smi_is_read_as_gpus() -> None:
    assert GPUS[0] == Gpu(
        0, "GPU-5ad1", "NVIDIA H200", 90, "590.44.01", "Default", False, 143771 << 20, 143000 << 20
    )
    assert [(gpu.sm, gpu.mig, gpu.shared) for gpu in GPUS] == [
        (90, False, True),
        (80, True, False),
        (61, False, True),
    ]


@pytest.mark.parametrize(
    "output",
    [
        "",
        "No devices were found\n",
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n",
        "0, GPU-1, NVIDIA H200, [N/A], 590.44.01, Default, Disabled, [N/A], [N/A]\n",
    ],
)
def test_output_of_nvidia_smi_without_devices_is_read_as_no_gpu(output: str) -> None:
    assert parse(output) == ()


@pytest.mark.parametrize(
    ("variable", "indices"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("2,0", [2, 0]),
        ("GPU-77e4", [1]),
        ("GPU-5", [0]),
        ("GPU-77", []),  # two begin so
        ("0,7,1", [0]),  # CUDA stops at what is not there
        ("-1", []),
        (" 1 , 2", [1, 2]),
    ],
)
def test_cuda_visible_devices_selects_the_gpus_as_cuda_does(variable: str | None, indices: list[int]) -> None:
    assert [gpu.index for gpu in visible(GPUS, variable)] == indices


def test_engines_apart() -> None:
    four = [replace(GPUS[0], uuid=str(index)) for index in range(4)]
    assert apart(four, [2, 1]) == [("0", "1"), ("2",)]
    assert apart(four, [4, 1]) == [(), ()]
    assert apart([], [1, 1]) == [(), ()]
