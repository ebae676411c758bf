"""Checks where an engine runs: only on the SM, and in the TensorRT version, that it was built for."""

from __future__ import annotations


def fits_sm(built_for: int | None, sm: int) -> bool:
    """Returns True if an engine that was built for one SM runs on a GPU of another; also if the first is
    unknown.
    """
    return built_for in (None, sm)


def fits_tensorrt(built_by: str | None, found: str | None) -> bool:
    """Returns True if an engine that one TensorRT built loads in another; also if either version is
    unknown.
    """
    return not built_by or not found or base_version(built_by) == base_version(found)


def base_version(tensorrt: str) -> str:
    """A version without what a package adds to it: 10.14.1.48.post1 is TensorRT 10.14.1.48."""
    return ".".join(tensorrt.split(".")[:4])
