"""A stand-in for the `tensorrt_llm` package, on a machine with two GPUs that are not there.

It has `tensorrt_llm.bindings.executor` and nothing else. `FAKE_RELEASE` is the release, `FAKE_GPU_GIB` the
memory of a GPU. An engine's `rank0.engine` is a safetensors file, which the torch executor runs on the CPU.
"""

import os
import sys
from pathlib import Path

import torch

from tensorrt_llm import gpu

# Behind all else: a repository brings its own `trtspec`, and only the stand-in's parts come from here.
sys.path.append(str(Path(__file__).resolve().parents[4]))

__version__ = os.environ.get("FAKE_RELEASE", "1.2.1")

torch.cuda.mem_get_info = gpu.mem_get_info  # type: ignore[assignment]
