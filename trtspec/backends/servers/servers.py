"""The servers of others: a table, and one small module each."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from trtspec.backends.servers import sglang, trtllm_serve, vllm
from trtspec.backends.servers.launch import ServerLaunch
from trtspec.backends.servers.wanted import LaunchInputs

LAUNCHES: Mapping[str, Callable[[LaunchInputs], ServerLaunch]] = {
    "vllm": vllm.launch,
    "sglang": sglang.launch,
    "tensorrt_llm_pytorch": trtllm_serve.launch,
}
"""How each is started, by its name in recipes."""
