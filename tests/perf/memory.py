"""Memory of each process of `trtspec deploy` of the tiny pair under a steady load; JSON on stdout.

Every answer is streamed, and no two prompts begin alike. With `--hang-up` a share of the clients leaves in
the middle of its answer. A line is the end of a minute; `requests` counts from the start. Each process has
two numbers, in MB: `anonymous` memory is what its allocators keep, and `shared` is what it has touched of the
regions through which Triton and the model's process talk. Files count in neither.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.chaos.clients import Clients
from tests.chaos.server import MODEL, Server, build, deploy
from tests.chaos.shots import Kind, Shot
from tests.perf.load import Texts
from tests.support.processes import numbers_of

PATIENCE_S = 60.0
PROMPT, LEAVES_S = 20, 0.05


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=16, help="of an answer")
    parser.add_argument("--rest", type=float, default=0.0, help="seconds of a client between two requests")
    parser.add_argument("--wires", nargs="+", choices=("http", "grpc"), default=("http", "grpc"))
    parser.add_argument("--layout", choices=("in_process", "bls"), default="in_process")
    parser.add_argument("--hang-up", type=float, default=0.0, help="the share of clients that leave early")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        recipe, output = build(Path(folder), options.layout)
        with deploy(recipe, output) as server:
            print(json.dumps(asyncio.run(watch(server, options)), indent=1))


async def watch(server: Server, options: argparse.Namespace) -> list[dict[str, Any]]:
    texts, dice, rows, asked = Texts(server.build), random.Random(0), list[dict[str, Any]](), 0
    begun = minute = time.monotonic()
    end = begun + 60 * options.minutes

    async def stream(clients: Clients) -> None:
        nonlocal asked
        while time.monotonic() < end:
            leaves_s = LEAVES_S if dice.random() < options.hang_up else None
            values = {"text_input": texts.one(PROMPT), "max_tokens": options.tokens, "stream": True}
            shot = Shot(asked, Kind.WELL_FORMED, dice.choice(options.wires), True, values, leaves_s=leaves_s)
            asked += 1
            answer = await clients.send(shot, PATIENCE_S)
            if leaves_s is None and answer.error is not None:
                raise SystemExit(answer.error)
            await asyncio.sleep(options.rest)

    async def look() -> None:
        nonlocal minute
        while (minute := minute + 60) <= end:
            await asyncio.sleep(minute - time.monotonic())
            rows.append({"requests": asked, **_memory(server)})
            print(rows[-1], file=sys.stderr, flush=True)

    async with Clients(server.http, server.grpc, MODEL) as clients:
        await asyncio.gather(look(), *(stream(clients) for _ in range(options.streams)))
    return rows


def _memory(server: Server) -> dict[str, dict[str, float]]:
    return {process.name: _of(process.pid) for process in server.processes()}


def _of(pid: int) -> dict[str, float]:
    numbers = numbers_of(pid)
    return {"anonymous": numbers["RssAnon"] / 1000, "shared": numbers["RssShmem"] / 1000}


if __name__ == "__main__":
    main()
