"""Each line is one that TensorRT-LLM, TensorRT, CUDA or Python has said in a public issue."""

from __future__ import annotations

from pathlib import Path

import pytest

from trtspec.backends.tensorrt_llm.engine_step import diagnose


@pytest.mark.parametrize(
    ("said", "problem", "repair"),
    [
        (
            "trtllm-build: error: unrecognized arguments: --use_custom_all_reduce disable",
            "it does not know --use_custom_all_reduce disable",
            "trtspec doctor",
        ),
        (
            "trtllm-build: error: argument --gemm_plugin: invalid choice: 'fp9' (choose from 'auto', 'fp8')",
            "its --gemm_plugin does not take 'fp9'",
            "correct it",
        ),
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 224.00 MiB. GPU 0 has a total",
            "the GPU has too little free memory",
            "nvidia-smi",
        ),
        (
            "[TRT] [E] [virtualMemoryBuffer.cpp::resizePhysical::154] Error Code 2: OutOfMemory (Requested"
            " size was 48318 bytes.) Requested amount of GPU memory (48318 bytes) could not be allocated.",
            "the GPU has too little free memory",
            "max_num_tokens",
        ),
        (
            "It looks like MPI_INIT failed for some reason; your parallel process is likely to abort. "
            "PML add procs failed",
            "MPI finds no transport",
            "UCX_TLS=tcp,self,sm",
        ),
        (
            "concurrent.futures.process.BrokenProcessPool: A process in the process pool was terminated",
            "the machine has too little memory",
            "workers: 1",
        ),
        (
            "RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable",
            "lets no further process in",
            "nvidia-smi -c DEFAULT",
        ),
        (
            "RuntimeError: The NVIDIA driver on your system is too old (found version 12020).",
            "driver does not run the CUDA",
            "newer driver",
        ),
        ("RuntimeError: No CUDA GPUs are available", "it sees no GPU", "--gpus all"),
        (
            "OSError: libnvinfer.so.10: cannot open shared object file: No such file or directory",
            "a library of TensorRT-LLM is missing",
            "image",
        ),
        ("ModuleNotFoundError: No module named 'tensorrt'", "No module named 'tensorrt'", "image"),
        (
            "NotImplementedError: low_latency_gemm_plugin=fp8 is not supported on SM 100.",
            "fp8 has no kernels for SM 100",
            "remove",
        ),
        (
            "AssertionError: Unsupported model architecture: Qwen3ForCausalLM",
            "this release has no Qwen3ForCausalLM",
            "newer engine.release",
        ),
        (
            "RuntimeError: Required but not provided tensors:{'transformer.layers.0.attention.qkv.bias'}",
            "reads the checkpoint in another way",
            "report it",
        ),
        (
            "TypeError: QuantConfig.__init__() got an unexpected keyword argument 'mamba_ssm_cache_dtype'",
            "reads the checkpoint in another way",
            "report it",
        ),
        (
            "[TensorRT-LLM][ERROR] Assertion failed: FP8 FMHA cannot be enabled because Context FMHA is not"
            " supported. (attentionOp.cpp:2404)",
            "no FP8 attention for this model",
            "kv_cache: none",
        ),
        ("OSError: [Errno 28] No space left on device", "the disk is full", "free some space"),
        ("    assert cache is not None\nAssertionError", "timing cache", "remove the folder timing"),
    ],
)
def test_a_known_cause(tmp_path: Path, said: str, problem: str, repair: str) -> None:
    log = tmp_path / "build.log"
    log.write_text(f"[TRT-LLM] [I] Set dtype to float16.\n{said}\nAssertionError: Engine building failed\n")
    error = diagnose("trtllm-build", 1, log)
    assert error.problem.startswith("failed with status 1: ")
    assert problem in error.problem
    assert repair in str(error.repair)
    assert error.lines[-1] == "AssertionError: Engine building failed"


@pytest.mark.parametrize(
    ("said", "complaint"),
    [
        ("something\nRuntimeError: no luck\n  at the end", "RuntimeError: no luck"),
        ("[TRT] [E] Error Code 10: Internal Error\n[TRT-LLM] [I] bye", "[E] Error Code 10: Internal Error"),
        ("the last thing\n\n", "the last thing"),
        ("", "it said nothing"),
    ],
)
def test_an_unknown_cause_is_what_was_complained_of(tmp_path: Path, said: str, complaint: str) -> None:
    log = tmp_path / "build.log"
    log.write_text(said)
    error = diagnose("trtllm-build", 1, log)
    assert error.problem == f"failed with status 1: {complaint}"
    assert error.repair is None


def test_the_end_of_a_long_log_is_enough(tmp_path: Path) -> None:
    log = tmp_path / "build.log"
    log.write_bytes(b"x" * (3 << 20) + b"\n\xff\nRuntimeError: late\n")
    assert "RuntimeError: late" in diagnose("trtllm-build", 1, log).problem


def test_a_signal_is_named(tmp_path: Path) -> None:
    log = tmp_path / "build.log"
    log.write_text("Build TensorRT engine\n")
    killed, crashed = diagnose("trtllm-build", -9, log), diagnose("trtllm-build", -11, log)
    assert "was killed by SIGKILL: the system kills processes when" in killed.problem
    assert "was killed by SIGSEGV: Build TensorRT engine" in crashed.problem
