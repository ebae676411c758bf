"""The names that recipes call backends by. `trtspec.backends` knows what each of them is."""

from __future__ import annotations

NAMES: tuple[str, ...] = ("tensorrt_llm", "torch", "vllm", "sglang", "tensorrt_llm_pytorch")
