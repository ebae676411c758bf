"""Streams through OpenAI's API beside the same streams straight at Triton's own HTTP; JSON on stdout.

    python -m tests.perf.openai_front [BUILD]

Blocks of the same work alternate, in both orders, so that other work on the machine is in both; the median
over the pairs counts, and `spread` has the least and the most of them. `us_per_chunk` is the processor time
of the whole process of the API, requests included.
"""

from __future__ import annotations

import json
import socket
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.e2e.conftest import Deploy, wait_until
from tests.perf.deployment import deployed, port_behind, processor_s
from tests.support.processes import command_lines

STREAMS = (1, 16, 64)
PAIRS, FIRSTS, TOKENS = 8, 60, 96


@dataclass(frozen=True)
class Way:
    """One way to the model: where it is, and what is sent there for so many tokens."""

    port: int
    path: str
    body: Callable[[int], dict[str, Any]]

    def head(self, tokens: int) -> bytes:
        body = json.dumps(self.body(tokens)).encode()
        kind = f"Content-Type: application/json\r\nContent-Length: {len(body)}"
        return f"POST {self.path} HTTP/1.1\r\nHost: localhost\r\n{kind}\r\n\r\n".encode() + body


def straight(deploy: Deploy) -> Way:
    shared = {"text_input": "class A:\n", "num_draft_tokens": 0, "end_id": -1, "stream": True}
    path = f"/v2/models/{deploy.model}/generate_stream"
    return Way(port_behind(deploy, "http"), path, lambda tokens: {**shared, "max_tokens": tokens})


def through(deploy: Deploy) -> Way:
    shared = {"prompt": "class A:\n", "num_draft_tokens": 0, "ignore_eos": True, "stream": True}
    asked = {**shared, "model": deploy.model, "temperature": 0}
    return Way(deploy.api_port, "/v1/completions", lambda tokens: {**asked, "max_tokens": tokens})


def connect(way: Way) -> socket.socket:
    line = socket.create_connection(("127.0.0.1", way.port), timeout=60)
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return line


def stream(line: socket.socket, way: Way, tokens: int) -> tuple[float, int]:
    """Seconds to the first text, and the number of chunks."""
    begin, first, chunks, tail = time.perf_counter(), 0.0, 0, b""
    line.sendall(way.head(tokens))
    while b"\r\n0\r\n\r\n" not in tail:
        piece = line.recv(65536)
        assert piece, "the server hung up"
        chunks += piece.count(b"data: {")
        if not first and chunks:
            first = time.perf_counter() - begin
        tail = tail[-8:] + piece
    return first, chunks


def seconds(way: Way, streams: int) -> tuple[float, int]:
    """How long so many streams at once take, each one completion after another; and the chunks."""
    each, counts = max(4 // streams, 1), [0] * streams

    def run(number: int) -> None:
        with connect(way) as line:
            counts[number] = sum(stream(line, way, TOKENS)[1] for _ in range(each))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(streams)]
    begin = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - begin, sum(counts)


def api_pid(port: int) -> int:
    (found,) = [
        pid for pid, line in command_lines() if "trtspec.gateway.openai" in line and _listens(pid, port)
    ]
    return found


def _listens(pid: int, port: int) -> bool:
    wanted = f":{port:04X} 00000000:0000 0A"
    inodes = [row.split()[9] for row in Path("/proc/net/tcp").read_text().splitlines() if wanted in row]
    links = [str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir()]
    return any(f"socket:[{inode}]" in links for inode in inodes)


def first_text(one: Way, other: Way) -> list[float]:
    """The milliseconds that the second way adds to the time to the first text, for each pair of blocks."""
    more = []
    for number in range(PAIRS):
        found = {}
        for way in (one, other) if number % 2 == 0 else (other, one):
            with connect(way) as line:
                found[way] = statistics.median(stream(line, way, 1)[0] for _ in range(FIRSTS))
        more.append(1e3 * (found[other] - found[one]))
    return more


def side_by_side(deploy: Deploy, one: Way, other: Way, streams: int) -> dict[str, Any]:
    pid, ratios, spent, chunks = api_pid(other.port), [], 0.0, 0
    for number in range(PAIRS):
        taken = {}
        for way in (one, other) if number % 2 == 0 else (other, one):
            before = processor_s(pid)
            taken[way], count = seconds(way, streams)
            if way is other:
                spent, chunks = spent + processor_s(pid) - before, chunks + count
            wait_until(lambda: deploy.metric("num_requests_running") == 0, "an idle server")
        ratios.append(taken[one] / taken[other])
    return {
        "streams": streams,
        "ratio": round(statistics.median(ratios), 3),
        "spread": [round(min(ratios), 3), round(max(ratios), 3)],
        "us_per_chunk": round(1e6 * spent / chunks, 1),
    }


def measured(deploy: Deploy) -> dict[str, Any]:
    one, other = straight(deploy), through(deploy)
    seconds(one, 16), seconds(other, 16)
    more = first_text(one, other)
    levels = [side_by_side(deploy, one, other, streams) for streams in STREAMS]
    return {
        "first_text_ms_more": round(statistics.median(more), 2),
        "first_text_spread": [round(min(more), 2), round(max(more), 2)],
        "levels": levels,
    }


def main() -> None:
    with deployed(with_api=True) as deploy:
        found = measured(deploy)
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
