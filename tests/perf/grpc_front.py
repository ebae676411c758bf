"""Streams through the gRPC port of `trtspec deploy` beside streams straight at Triton's own; JSON on stdout.

    python -m tests.perf.grpc_front [BUILD]

Blocks alternate, in both orders, so that other work on the machine is in both; the median of what the pairs
differ by counts. `more_us` is the time that the port adds to each message of a stream, and `first_ms_more`
to a whole request for one token; `port_us` is the processor time of the whole deploy process a message.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np
import tritonclient.grpc as triton
from tritonclient.grpc import service_pb2 as pb

from tests.e2e.conftest import Deploy
from tests.perf.deployment import deployed, port_behind, processor_s
from trtspec.client.grpc import WIRE
from trtspec.serving.triton.tensors import INPUTS

PAIRS, TOKENS, FIRSTS = 8, 200, 20


def request(model: str, tokens: int) -> bytes:
    values = {"text_input": b"class A:\n", "max_tokens": tokens, "num_draft_tokens": 4, "end_id": -1}
    inputs = []
    for name, value in {**values, "stream": True}.items():
        (datatype,) = [tensor.datatype for tensor in INPUTS if tensor.name == name]
        wire, dtype = WIRE[datatype]
        tensor = triton.InferInput(name, [1, 1], wire)
        tensor.set_data_from_numpy(np.array([[value]], dtype=dtype))
        inputs.append(tensor)
    raw = [tensor._get_content() for tensor in inputs]
    made = pb.ModelInferRequest(model_name=model, raw_input_contents=raw)
    made.inputs.extend(tensor._get_tensor() for tensor in inputs)
    return bytes(made.SerializeToString())


def stream(port: int, body: bytes, times: int) -> int:
    """The messages of so many requests, one after the other."""
    own = [("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(f"127.0.0.1:{port}", options=own) as channel:
        ask = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
        return sum(1 for _ in range(times) for _ in ask(iter([body]), timeout=60))


def per_message_s(port: int, body: bytes, streams: int, times: int) -> tuple[float, int]:
    """Seconds for each message of one stream, when so many run at once; and the messages of all."""
    with ThreadPoolExecutor(streams) as pool:
        begin = time.perf_counter()
        count = sum(pool.map(lambda _: stream(port, body, times), range(streams)))
        return (time.perf_counter() - begin) * streams / count, count


def paired(measure: Callable[[bool], float]) -> list[float]:
    """How much more the port takes than Triton itself, pair by pair."""
    more = []
    for number in range(PAIRS):
        found = {way: measure(way) for way in ((False, True) if number % 2 == 0 else (True, False))}
        more.append(found[True] - found[False])
    return more


def at_once(deploy: Deploy, straight: int, streams: int) -> dict[str, float | list[float]]:
    body, spent, counts = request(deploy.model, TOKENS), [0.0], [0]

    def measure(is_through: bool) -> float:
        before = processor_s(deploy.process.pid)
        port = deploy.ports[1] if is_through else straight
        seconds, count = per_message_s(port, body, streams, max(8 // streams, 1))
        if is_through:
            spent[0] += processor_s(deploy.process.pid) - before
            counts[0] += count
        straights.extend([] if is_through else [seconds])
        return seconds

    straights: list[float] = []
    more = paired(measure)
    return {
        "streams": streams,
        "straight_us": round(1e6 * statistics.median(straights), 1),
        "more_us": round(1e6 * statistics.median(more), 1),
        "spread": [round(1e6 * min(more), 1), round(1e6 * max(more), 1)],
        "port_us": round(1e6 * spent[0] / counts[0], 1),
    }


def first(deploy: Deploy, straight: int) -> list[float]:
    body = request(deploy.model, 1)
    return paired(lambda through: per_message_s(deploy.ports[1] if through else straight, body, 1, FIRSTS)[0])


def main() -> None:
    with deployed() as deploy:
        straight = port_behind(deploy, "grpc")
        at_once(deploy, straight, 1)
        levels = [at_once(deploy, straight, streams) for streams in (1, 16)]
        more = first(deploy, straight)
    spread = [round(1e3 * min(more), 2), round(1e3 * max(more), 2)]
    found = {"first_ms_more": round(1e3 * statistics.median(more), 2), "first_spread": spread}
    print(json.dumps({**found, "levels": levels}, indent=2))


if __name__ == "__main__":
    main()
