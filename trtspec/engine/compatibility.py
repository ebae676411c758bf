"""Where an engine runs: on GPUs of the SM, and in the TensorRT, that it was built for."""

from __future__ import annotations


def fits_sm(built_for: int | None, sm: int) -> bool:
    """Whether an engine for one SM runs on a GPU of another; one of which it is not known is not refused."""
    return built_for in (None, sm)


def fits_tensorrt(built_by: str | None, found: str | None) -> bool:
    """The same of TensorRT."""
    return not built_by or not found or base_version(built_by) == base_version(found)


def base_version(tensorrt: str) -> str:
    """Without what a package adds: 10.14.1.48.post1 is TensorRT 10.14.1.48."""
    return ".".join(tensorrt.split(".")[:4])
