"""`python -m tests.chaos.run`: thousands of requests, good and bad, while the server loses its parts.

Prints JSON; the exit status is 1 when something is there that may not be: see `verdict.py` and `left.py`.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tests.chaos.cases import Case, make_cases
from tests.chaos.clients import Answer, Clients
from tests.chaos.faults import Conductor, Fault, plan
from tests.chaos.left import Sampler, left_behind
from tests.chaos.server import MODEL, Server, build, deploy
from tests.chaos.shots import Kind, Shot, draw
from tests.chaos.verdict import is_whole, violations

PATIENCE_S = 300.0
"""A client that has heard nothing of its end for so long has found a fault."""
SHOWN = 40
LONG_RUN = 5000
"""Requests after which a server's memory has its size; what a shorter run sees is its growing up."""


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--clients", type=int, default=256)
    parser.add_argument("--draft-faults", type=int, default=10)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--layout", choices=["in_process", "bls"], default="in_process")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report = chaos(
            Path(folder),
            options.requests,
            options.clients,
            options.draft_faults,
            options.kills,
            options.layout,
            options.seed,
        )
    print(json.dumps(report, indent=1))
    return 1 if report["violations"] else 0


def chaos(
    folder: Path,
    requests: int,
    clients: int,
    num_draft_faults: int,
    num_kills: int,
    layout: str = "in_process",
    seed: int = 0,
) -> dict[str, Any]:
    """The whole run, with a server of its own that is stopped at the end."""
    recipe, output = build(folder, layout)
    cases = make_cases(output)
    shots = draw(requests, cases, seed)
    with deploy(recipe, output, *(["--restart"] if num_kills else [])) as server:
        begin = time.monotonic()
        results, conductor, sampler = asyncio.run(
            _fire(server, cases, shots, clients, plan(layout, num_draft_faults, num_kills))
        )
        seconds = time.monotonic() - begin
        found = [*violations(results, conductor.ups), *conductor.violations]
        if requests >= LONG_RUN:
            found += sampler.violations()
        found += left_behind(server)
    return {
        "layout": layout,
        "requests": requests,
        "clients": clients,
        "seed": seed,
        "seconds": round(seconds, 1),
        "load_of_the_machine": [round(load, 1) for load in os.getloadavg()],
        "outcomes": _outcomes(results),
        "whole_p50_s": round(statistics.median(_times(results)), 2),
        "whole_max_s": round(max(_times(results)), 2),
        "faults": conductor.log,
        "processes": sampler.seen(),
        "num_violations": len(found),
        "violations": found[:SHOWN],
    }


async def _fire(
    server: Server, cases: list[Case], shots: list[Shot], num_clients: int, faults: list[Fault]
) -> tuple[list[tuple[Shot, Answer]], Conductor, Sampler]:
    results: list[tuple[Shot, Answer]] = []
    todo, conductor, sampler = iter(shots), Conductor(server), Sampler(server)

    async def client(clients: Clients, dice: random.Random) -> None:
        for shot in todo:
            answer = await clients.send(shot, PATIENCE_S)
            results.append((shot, answer))
            if answer.error is not None and not conductor.is_up:
                # As one that was told to try later; else nothing would be left when the server is back.
                await conductor.up_or(dice.uniform(1, 60))

    async with Clients(server.http, server.grpc, MODEL) as clients:
        watching = asyncio.create_task(sampler.sample(lambda: len(results) / len(shots)))
        conducting = asyncio.create_task(conductor.conduct(faults, lambda: len(results) / len(shots)))
        await asyncio.gather(*(client(clients, random.Random(number)) for number in range(num_clients)))
        # A draft that was left out comes back when it is asked again.
        for number in itertools.count(len(shots)):
            if conducting.done():
                break
            case = cases[number % len(cases)]
            values = {"text_input": case.prompt, "max_tokens": case.max_tokens, "stop_words": [*case.stop]}
            shot = Shot(number, Kind.WELL_FORMED, "http", False, values, case)
            results.append((shot, await clients.send(shot, PATIENCE_S)))
        await conducting
        conductor.finish()
        watching.cancel()
    return results, conductor, sampler


def _outcomes(results: list[tuple[Shot, Answer]]) -> dict[str, dict[str, int]]:
    counts: dict[str, Counter[str]] = {kind.value: Counter() for kind in Kind}
    for shot, answer in results:
        outcome = "whole" if is_whole(answer) else "error" if answer.is_over else "left"
        counts[shot.kind.value][outcome] += 1
    return {kind: dict(found) for kind, found in counts.items()}


def _times(results: list[tuple[Shot, Answer]]) -> list[float]:
    return [answer.done_at - answer.sent_at for _, answer in results if is_whole(answer)]


if __name__ == "__main__":
    sys.exit(main())
