"""What the coordinator costs inside Triton, clients and wire included; prints JSON.

As `coordinator.py` beside it, with the very engines of it, but through a real tritonserver and gRPC streams,
in both layouts: in bls the engines are Python models, each call to which is a hop. `send` is what one
response of a stream takes by itself: the floor of what streaming adds to a round.

NVIDIA's BLS coordinator on such engines: 1.2-1.9 ms a round; 84.5 % of the ideal at 1 stream; at 32 streams
2.5 % with one process, 27 % with 32.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from statistics import mean
from typing import Any

from tests.perf.coordinator import DRAFT_TOKEN_S, PROMPT, VERIFICATION_S
from tests.support.grpc_client import GrpcClient
from tests.support.ports import free_ports
from trtspec.deployment.deploy import serve_triton
from trtspec.deployment.deployment import Deployment
from trtspec.deployment.triton.install import find_wheel
from trtspec.deployment.triton.launch import TritonLaunch
from trtspec.gateway.ports import Ports
from trtspec.pipeline.repository.spec import EngineModel, RepositorySpec
from trtspec.pipeline.repository.writer import write_repository

HERE = Path(__file__).parent
SENDS = 5000
WAYS = {
    "in_process": ("instant", "timed"),
    "in_process, adaptive": ("adaptive",),
    "bls": ("bls_instant", "bls_timed"),
}
"""The models whose engines nobody waits for, and those whose engines somebody does."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", type=int, default=2048, help="of one completion of the instant engines")
    tokens = parser.parse_args().tokens
    with tempfile.TemporaryDirectory() as folder:
        deployment = _deployment(Path(folder))
        with serve_triton(deployment, TritonLaunch(), find_wheel(), gpus=0) as start:
            server = start()
            while not server.is_ready():
                time.sleep(0.1)
            url = f"127.0.0.1:{deployment.ports.grpc}"
            results: dict[str, Any] = {
                f"{way}, {streams} streams, stream={str(stream).lower()}": _case(
                    url, way, streams, stream, tokens
                )
                for way in WAYS
                for streams in (1, 32)
                for stream in (False, True)
            }
            results["send"] = _send(url)
    print(json.dumps(results, indent=1))


def _deployment(folder: Path) -> Deployment:
    repository = folder / "model_repository"
    write_repository(repository, RepositorySpec(model_name="sends"))
    for kind in ("instant", "adaptive", "timed"):
        engines = (
            EngineModel(f"bls_{kind}_target", "python", "unused", 64),
            EngineModel(f"bls_{kind}_draft", "python", "unused", 64),
        )
        write_repository(repository, RepositorySpec(model_name=kind))
        write_repository(repository, RepositorySpec(model_name=f"bls_{kind}", engines=engines))
    for model in repository.iterdir():
        shutil.copy(HERE / "triton_overhead_model.py", model / "1" / "model.py")
        shutil.copy(HERE / "coordinator.py", model / "1")
    return Deployment("overhead", folder, "timed", ports=Ports(*free_ports()))


def _case(url: str, way: str, streams: int, stream: bool, tokens: int) -> dict[str, float]:
    models = WAYS[way]
    found = {"us_a_round": min(_run(url, models[0], streams, stream, tokens)[0] for _ in range(3))}
    for timed in models[1:]:
        found["share_of_ideal"] = _run(url, timed, streams, stream, 512)[1]
    return found


def _run(url: str, model: str, streams: int, stream: bool, tokens: int) -> tuple[float, float]:
    """Microseconds a round (of all streams together), and the mean share of the ideal."""
    with ThreadPoolExecutor(streams) as pool:
        begin = time.perf_counter()
        answers = list(pool.map(lambda _: _one(url, model, stream, tokens), range(streams)))
        seconds = time.perf_counter() - begin
    # What the adaptive policy decodes without a draft in between is counted, but not as rounds.
    rounds = sum(int(answer["num_spec_steps"]) for answer in answers)
    return round(seconds / rounds * 1e6, 1), round(
        mean(_ideal_s(answer) / answer["s"] for answer in answers), 3
    )


def _send(url: str) -> dict[str, float]:
    with closing(GrpcClient(url, "sends")) as client:
        values = {"text_input": PROMPT, "max_tokens": SENDS, "stream": True}
        found = [[*client.generate(values)][-1]["text_output"] for _ in range(3)]
    return min((json.loads(text) for text in found), key=lambda said: said["us"])


def _one(url: str, model: str, stream: bool, tokens: int) -> dict[str, Any]:
    with closing(GrpcClient(url, model)) as client:
        begin, answer = time.perf_counter(), {}
        for response in client.generate(
            {
                "text_input": PROMPT,
                "max_tokens": tokens,
                "stop_words": ["\n\n\n"],
                "end_id": -1,
                "stream": stream,
                "return_perf_metrics": True,
                "return_num_output_tokens": True,
            }
        ):
            answer = response
        return {**answer, "s": time.perf_counter() - begin}


def _rounds(answer: dict[str, Any]) -> int:
    """Each brings the accepted tokens and one more."""
    return int(answer["num_output_tokens"] - answer["total_accepted_draft_tokens"])


def _ideal_s(answer: dict[str, Any]) -> float:
    rounds, drafted = _rounds(answer), int(answer["total_draft_tokens"])
    return rounds * VERIFICATION_S + drafted * DRAFT_TOKEN_S


if __name__ == "__main__":
    main()
