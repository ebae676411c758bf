"""`TllmException`, as Python sees it: the message, a place in the C++ source, a stack trace."""

from __future__ import annotations


def thrown(message: str, source: str) -> RuntimeError:
    """`TLLM_THROW`."""
    place = f"/src/tensorrt_llm/cpp/tensorrt_llm/{source}:61"
    trace = "1  0x7f2a5b1c0d3e /opt/tensorrt_llm/libs/libtensorrt_llm.so(+0x1c0d3e) [0x7f2a5b1c0d3e]\n"
    return RuntimeError(f"{message} ({place})\n{trace}2  0x7f2a5b2d1e4f clone + 67")


def check(is_right: bool, message: str, source: str) -> None:
    """`TLLM_CHECK_WITH_INFO`, and `TLLM_CHECK` with the condition's text for a message."""
    if not is_right:
        raise thrown(f"[TensorRT-LLM][ERROR] Assertion failed: {message}", source)
