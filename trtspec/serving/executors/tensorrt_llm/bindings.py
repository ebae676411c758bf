"""The loading of `tensorrt_llm.bindings.executor`, which only NVIDIA's images have, and its errors."""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any

from trtspec.serving.errors import EngineLoadError

_LOG_PREFIX = "[TensorRT-LLM][ERROR] "
# `TllmException` adds the line of its source, and a stack trace below it (common/tllmException.cpp).
_SOURCE = re.compile(r" \([^()]*:\d+\)$")


def load_bindings(image: str) -> Any:
    """Returns the module, whose `__version__` is the release.

    If the import fails, raises `EngineLoadError` with the `image` that has the module.
    """
    try:
        return import_module("tensorrt_llm.bindings.executor")
    except Exception as error:  # A missing library or driver raises more than ImportError.
        problem = f"cannot be imported here ({one_line(error)}); serve with {image}"
        raise EngineLoadError("tensorrt_llm", problem) from error


def free_memory(device_id: int) -> int:
    """Returns the free bytes of the GPU with CUDA's number `device_id`; raises `EngineLoadError`."""
    import torch

    try:
        free, _ = torch.cuda.mem_get_info(device_id)
    except (RuntimeError, AssertionError, ValueError) as error:
        problem = f"cannot be asked how much memory is free ({one_line(error)})"
        raise EngineLoadError(f"GPU {device_id}", problem) from error
    return free


def one_line(error: object) -> str:
    """Returns the message of an exception or an `error_msg`, without source line and stack trace."""
    lines = str(error).strip().splitlines()
    first = _SOURCE.sub("", lines[0]) if lines else ""
    return first.replace(_LOG_PREFIX, "") or f"TensorRT-LLM raised {type(error).__name__}"
