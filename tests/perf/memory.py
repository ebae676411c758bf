"""Memory of each process of `trtspec deploy` of the tiny pair under a steady load; prints JSON.

Every answer is streamed, and no two prompts begin alike. A line is the end of a minute. `requests` counts
from the start. Each process has two numbers, in MB: `anonymous` memory is what its allocators keep, and
`shared` is what it has touched of the regions through which Triton and the model's process talk. Files count
in neither.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.chaos.server import Server, build, deploy
from tests.perf.load import Texts, whole
from trtspec.client.finding import find
from trtspec.measure.bench.traffic import Manner, closed_loop
from trtspec.measure.workloads.prompt import Prompt

PATIENCE_S = 60.0


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=16, help="of an answer")
    parser.add_argument("--layout", choices=("in_process", "bls"), default="in_process")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        recipe, output = build(Path(folder), options.layout)
        with deploy(recipe, output) as server:
            print(json.dumps(asyncio.run(watch(server, options)), indent=1))


async def watch(server: Server, options: argparse.Namespace) -> list[dict[str, Any]]:
    texts, rows, asked, begun = Texts(server.build), list[dict[str, Any]](), 0, time.monotonic()
    manner = Manner(options.tokens, 0.0, 0, True, None, None, whole)
    found = await find(server.http, None, chat=False, timeout_s=PATIENCE_S)
    try:
        while time.monotonic() - begun < 60 * options.minutes:
            minute = time.monotonic() + 60
            while time.monotonic() < minute:
                prompts = [Prompt(str(number), (text,)) for number, text in enumerate(texts.cut(20))]
                await closed_loop(found.endpoint, prompts, options.streams, manner)
                asked += len(prompts)
            rows.append({"requests": asked, **_memory(server)})
            print(rows[-1], file=sys.stderr, flush=True)
    finally:
        await found.endpoint.close()
    return rows


def _memory(server: Server) -> dict[str, dict[str, float]]:
    return {process.name: _of(process.pid) for process in server.processes()}


def _of(pid: int) -> dict[str, float]:
    status = dict(re.findall(r"^(\w+):\s+(\d+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE))
    return {"anonymous": int(status["RssAnon"]) / 1000, "shared": int(status["RssShmem"]) / 1000}


if __name__ == "__main__":
    main()
