"""The known causes why a Triton server ends, which its log tells.

The patterns are from issue threads of TensorRT-LLM and its Triton backend.
"""

from __future__ import annotations

from trtspec.base.causes import DRIVER, EXCLUSIVE, Cause, gpu_memory
from trtspec.base.extras import how_to_install

CAUSES = (
    Cause(
        r"incompatible device, expecting compute ([\d.]+) got compute ([\d.]+)",
        "an engine was built for compute capability {0}, but this GPU has {1}",
        "serve it on the GPU of its recipe, or build it again on this one",
    ),
    Cause(
        r"Version tag does not match|[Ss]erialization [Vv]ersion|plan file .* different version of TensorRT",
        "an engine was built by another version of TensorRT",
        "build and serve in the same image: trtspec build --container, trtspec deploy --container",
    ),
    Cause(r"No module named 'torch'", "the engines' Python has no PyTorch", how_to_install("torch")),
    gpu_memory(
        "end other programs on the GPU (nvidia-smi), or lower engine.max_batch_size or engine.max_seq_len"
    ),
    DRIVER,
    EXCLUSIVE,
    Cause(
        r"triton_python_backend_stub: error while loading shared libraries: ([^\s:]+)",
        "Triton's Python backend lacks {0}",
        "install it, or serve in NVIDIA's image: trtspec deploy --container",
    ),
    Cause(
        r"unable to find backend library for backend 'tensorrtllm'|libtriton_tensorrtllm.so",
        "this Triton has no TensorRT-LLM backend",
        "serve it in NVIDIA's image: trtspec deploy --container",
    ),
)
