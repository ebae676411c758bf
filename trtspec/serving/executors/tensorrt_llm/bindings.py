"""The loading of `tensorrt_llm.bindings.executor`, which only NVIDIA's images have, and its error texts."""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any

from trtspec.serving.errors import EngineLoadError

_LOG_PREFIX = "[TensorRT-LLM][ERROR] "
# `TllmException` adds the place in its own source, and a stack trace below it (common/tllmException.cpp).
_SOURCE = re.compile(r" \([^()]*:\d+\)$")


def load_bindings(image: str) -> Any:
    """Returns the module, which has the release as its `__version__`.

    Raises `EngineLoadError` where it cannot be imported, with the `image` that has it.
    """
    try:
        return import_module("tensorrt_llm.bindings.executor")
    except Exception as error:  # A missing library or driver shows in more ways than ImportError.
        problem = f"cannot be imported here ({one_line(error)}); serve with {image}"
        raise EngineLoadError("tensorrt_llm", problem) from error


def free_memory(device_id: int) -> int:
    """Returns the free bytes of a GPU, given by CUDA's number of it; raises `EngineLoadError`."""
    import torch

    try:
        free, _ = torch.cuda.mem_get_info(device_id)
    except (RuntimeError, AssertionError, ValueError) as error:
        problem = f"cannot be asked how much memory is free ({one_line(error)})"
        raise EngineLoadError(f"GPU {device_id}", problem) from error
    return free


def one_line(error: object) -> str:
    """Returns the text of an exception or of an `error_msg`, without source lines and stack trace."""
    lines = str(error).strip().splitlines()
    first = _SOURCE.sub("", lines[0]) if lines else ""
    return first.replace(_LOG_PREFIX, "") or f"TensorRT-LLM raised {type(error).__name__}"
