"""Streams through the front of `trtspec deploy` beside streams straight at Triton; JSON on stdout.

    python -m tests.perf.front [BUILD]

Short runs alternate, in both orders, so that other work on the machine is in both; the median of the ratios
of pairs counts.
`front_us_per_event` is the processor time of the whole deploy process.
"""

from __future__ import annotations

import json
import socket
import statistics
import threading
import time

from tests.e2e.conftest import Deploy, wait_until
from tests.perf.deployment import deployed, port_behind, processor_s

BODY = {"text_input": "class A:\n", "max_tokens": 200, "num_draft_tokens": 4, "end_id": -1, "stream": True}
SECONDS, PAIRS = 3.0, 4


def events(port: int, model: str, streams: int) -> float:
    """Events a second over so many streams at once, each one request after the other."""
    body = json.dumps(BODY).encode()
    head = f"POST /v2/models/{model}/generate_stream HTTP/1.1\r\nHost: localhost\r\n"
    head += f"Content-Length: {len(body)}\r\n\r\n"
    end, counts = time.monotonic() + SECONDS, [0] * streams

    def run(number: int) -> None:
        with socket.create_connection(("127.0.0.1", port), timeout=30) as line:
            while time.monotonic() < end:
                line.sendall(head.encode() + body)
                tail = b""
                while b"\r\n0\r\n\r\n" not in tail and time.monotonic() < end:
                    piece = line.recv(65536)
                    assert piece, "the server hung up"
                    counts[number] += piece.count(b"data: ")
                    tail = tail[-8:] + piece

    threads = [threading.Thread(target=run, args=(number,)) for number in range(streams)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / SECONDS


def main() -> None:
    with deployed() as deploy:
        print(json.dumps([measured(deploy, streams) for streams in (1, 16)], indent=2))


def measured(deploy: Deploy, streams: int) -> dict[str, float]:
    straight, through, spent = [], [], 0.0
    for number in range(2 * PAIRS):
        if number % 4 in (0, 3):
            straight.append(events(port_behind(deploy, "http"), deploy.model, streams))
        else:
            before = processor_s(deploy.process.pid)
            through.append(events(deploy.ports[0], deploy.model, streams))
            spent += processor_s(deploy.process.pid) - before
        wait_until(lambda: deploy.metric("num_requests_running") == 0, "an idle server")
    return {
        "streams": streams,
        "straight_events_s": round(statistics.median(straight), 1),
        "through_events_s": round(statistics.median(through), 1),
        "ratio": round(statistics.median(b / a for a, b in zip(straight, through, strict=True)), 3),
        "front_us_per_event": round(1e6 * spent / (SECONDS * sum(through)), 1),
    }


if __name__ == "__main__":
    main()
