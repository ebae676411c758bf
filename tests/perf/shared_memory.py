"""How much of /dev/shm the draft logits of sampled streams take in the bls layout, under a real Triton.

`python -m tests.perf.shared_memory`; prints JSON. The vocabulary is Llama 3's, the engine a stand-in, which
takes a step's time and accepts every draft. Being a model of Python it has a region of its own with a second
copy of its inputs; NVIDIA's C++ backend reads the coordinator's.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.e2e.conftest import Deploy, wait_until
from tests.fakes.cpp_backend_build import write_build
from tests.fakes.engine_dir import write_directory
from tests.support.ports import free_ports
from trtspec.deployment.deploy import serve_triton
from trtspec.deployment.deployment import Deployment
from trtspec.deployment.triton import install
from trtspec.deployment.triton.install import find_wheel
from trtspec.deployment.triton.launch import TritonLaunch
from trtspec.gateway.ports import Ports
from trtspec.serving.drafters.source import Drafting

MODEL = Path(__file__).with_name("shared_memory_model.py")
VOCAB_SIZE = 128_256
PRETRAINED = {"vocab_size": VOCAB_SIZE, "logits_dtype": "float32", "mapping": {"world_size": 1}}
LOOKUP = Drafting("ngram", {"prompt_lookup_min": 2, "prompt_lookup_max": 4})
EVERY_S = 0.01
MIB = 1 << 20


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--streams", nargs="+", type=int, default=[1, 16, 64])
    parser.add_argument("--k", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=300)
    options = parser.parse_args()
    for streams in options.streams:
        print(json.dumps(measure(streams, options.k, options.tokens)))


def measure(streams: int, k: int, tokens: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        limits = {"max_batch_size": streams, "max_seq_len": 4096, "max_draft_len": k}
        write_directory(folder / "target/engine", PRETRAINED, {}, **limits)
        write_build(folder, ("target",), streams, LOOKUP, MODEL)
        ports = free_ports()
        deployment = Deployment("shm", folder, "speculative_llm", ports=Ports(*ports))
        with serve_triton(deployment, TritonLaunch(), find_wheel(), gpus=0) as start:
            wait_until(start().is_ready, "the server ready")
            server = Deploy(None, deployment.log, ports)  # type: ignore[arg-type]
            before, begin = allocated(), time.monotonic()
            peaks = watched(server, streams, tokens)
            seconds = time.monotonic() - begin
    logits = streams * k * VOCAB_SIZE * 4
    found = {"streams": streams, "k": k, "logits_mib": logits / MIB, "seconds": seconds}
    for number, peak in enumerate(sorted(peaks.values(), reverse=True)):
        found[f"region_{number}_mib"] = peak / MIB
    return {**found, "idle_mib": sum(before.values()) / MIB}


def watched(server: Deploy, streams: int, tokens: int) -> dict[str, int]:
    """The most bytes of each region while so many streams are answered."""
    peaks: dict[str, int] = {}
    over = threading.Event()

    def watch() -> None:
        while not over.wait(EVERY_S):
            for name, size in allocated().items():
                peaks[name] = max(peaks.get(name, 0), size)

    def ask(seed: int) -> str:
        return server.generate("abc" * 8, max_tokens=tokens, temperature=1.0, seed=seed)

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        with ThreadPoolExecutor(streams) as pool:
            texts = set(pool.map(ask, range(streams)))
    finally:
        over.set()
        watching.join()
    assert texts == {("abc" * tokens)[:tokens]}, texts
    return peaks


def allocated() -> dict[str, int]:
    """The bytes that the regions of this process's server have taken."""
    found = {}
    for path in install._FOLDER.glob(f"{install.PREFIX}*"):
        if not path.name.endswith("lock"):
            found[path.name] = path.stat().st_blocks * 512
    return found


if __name__ == "__main__":
    main()
