"""Finds out why a build failed, from the end of the builder's log.

The causes are from issue threads of TensorRT-LLM and its Triton backend, and from the sources of releases 1.0
to 1.2.
"""

from __future__ import annotations

import re
import signal
from pathlib import Path

from trtspec.base.causes import DRIVER, EXCLUSIVE, Cause, find_cause, gpu_memory, signal_name
from trtspec.base.errors import StepError
from trtspec.base.tail import last_bytes

_SHOWN = 8
_READ_BYTES = 1 << 20


_OTHER_RELEASE = "run the image of the recipe's release: trtspec doctor shows what is here"
_INSIDE = "build inside NVIDIA's image of the recipe's release: trtspec doctor names it"
_LESS = "end what else uses the GPU (nvidia-smi), or lower engine.max_num_tokens or engine.max_batch_size"
_MEMORY = "give the machine more memory, or build fewer ranks at once: build: {workers: 1}"

CAUSES = (
    Cause(r"unrecognized arguments: (.+)", "it does not know {0}: it is of another release", _OTHER_RELEASE),
    Cause(
        r"argument (--\S+): invalid choice: (.+?) \(", "its {0} does not take {1}", "correct it in the recipe"
    ),
    Cause(r"No space left on device", "the disk is full", "free some space and run the same command again"),
    gpu_memory(_LESS),
    Cause(
        r"BrokenProcessPool|process pool was terminated abruptly|MemoryError|Cannot allocate memory",
        "the machine has too little memory",
        _MEMORY,
    ),
    EXCLUSIVE,
    DRIVER,
    Cause(
        r"No CUDA GPUs are available|no CUDA-capable device|Found no NVIDIA driver",
        "it sees no GPU",
        "start the container with --gpus all, and check CUDA_VISIBLE_DEVICES",
    ),
    Cause(
        r"exec: \"?trtllm-build\"?: (?:executable file )?not found|exec trtllm-build failed",
        "it is not in this image",
        _INSIDE,
    ),
    Cause(
        r"error while loading shared libraries: (\S+)|(lib\S+\.so\S*): cannot open shared object",
        "a library of TensorRT-LLM is missing",
        _INSIDE,
    ),
    Cause(r"ModuleNotFoundError: (.+)", "its installation is incomplete: {0}", _INSIDE),
    Cause(
        r"=(\S+) is not supported on SM (\d+)", "{0} has no kernels for SM {1}", "remove it from the recipe"
    ),
    Cause(
        r"Unsupported model architecture: (\S+)",
        "this release has no {0}",
        "write a newer engine.release, or take another model",
    ),
    Cause(
        r"Required but not provided tensors|Provided but not (?:required|expected) tensors.*Error"
        r"|unexpected keyword argument",
        "this release reads the checkpoint in another way",
        "report it with the log; a newer engine.release may read it",
    ),
    Cause(
        r"FP8 FMHA cannot be enabled|FP8 context FMHA is (?:not|only)",
        "this GPU has no FP8 attention for this model",
        "write quantization: {weights: fp8, kv_cache: none}",
    ),
    Cause(
        r"volume exceeds|exceeds? .*2\^31|tensor volume",
        "a tensor would be too large for TensorRT",
        "lower engine.max_num_tokens",
    ),
    Cause(
        r"assert cache is not None|[Tt]iming cache .*(?:mismatch|invalid|fail)",
        "the timing cache is of another GPU or broken",
        "remove the folder timing in trtspec's cache (~/.cache/trtspec) and run the same command again",
    ),
)


def diagnose(command: str, status: int, log: Path, causes: tuple[Cause, ...] = ()) -> StepError:
    """The error of a command that failed; a negative `status` is the signal that ended it.

    `causes` are those of what the command ran in.
    """
    text = last_bytes(log, _READ_BYTES)
    lines = tuple(line for line in text.splitlines() if line.strip())[-_SHOWN:]
    how = f"was killed by {signal_name(-status)}" if status < 0 else f"failed with status {status}"
    repair = None
    if known := find_cause((*CAUSES, *causes), text):
        problem, repair = known
    else:
        problem = _complaint(text)
        if status == -signal.SIGKILL:
            problem, repair = "the system kills processes when its memory is full", _MEMORY
    return StepError(command, f"{how}: {problem}", repair, log, lines)


def _complaint(text: str) -> str:
    """The last exception of a log; without one TensorRT's last error, any other error, or the last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for pattern in (r"^[\w.]*(?:Error|Exception)\b.*", r"\[E\] .+", r"error: .+"):
        for line in reversed(lines):
            if found := re.search(pattern, line):
                return found[0]
    return lines[-1] if lines else "it said nothing"
