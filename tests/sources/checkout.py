"""NVIDIA's sources of TensorRT-LLM, and what their Python says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = os.environ.get("TRTSPEC_TENSORRT_LLM_SOURCES", "")
"""A checkout of TensorRT-LLM that still has engines: the folder of `tensorrt_llm/` and `examples/`."""
MARKS = [
    pytest.mark.sources,
    pytest.mark.skipif(not SOURCES, reason="TRTSPEC_TENSORRT_LLM_SOURCES names no checkout of TensorRT-LLM"),
]


def ask(script: str, given: object) -> Any:
    """Returns the last line of a script of this folder, which reads `given` on stdin; both are JSON."""
    result = subprocess.run(
        [sys.executable, "-m", f"tests.sources.{script}", SOURCES],
        input=json.dumps(given),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        cwd=ROOT,
    )
    return json.loads(result.stdout.splitlines()[-1])
