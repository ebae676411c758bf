"""A server of the tiny pair whose number of requests goes up and down across a threshold of its schedule.

    python -m tests.perf.crossing [--vllm PYTHON]

Each run is made with the schedule and with either K of it, in turns on the same prompts. Ratios are of tokens
per second of the schedule over the better of the other two. trtspec's own server has the adaptive policy
within the schedule that `tune --schedule` measured for it; `--vllm` measures vLLM's server, started anew for
each run, with drafts that end at a threshold. JSON on stdout.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

import trtspec
from tests.perf.bar import Bar
from tests.perf.bench import TINY
from tests.perf.pair import heldout, machine
from trtspec.backends.table import load
from trtspec.deployment.build import find_build
from trtspec.measure.bench.deployed import served
from trtspec.measure.workloads.workload import Prompt, Workload
from trtspec.recipe.edit import edit, places
from trtspec.train.tune.load_race import LEAST_HELD, Crossing
from trtspec.train.tune.schedule_session import (
    AskedServer,
    RunningServers,
    ScheduleOptions,
    ScheduleSession,
    StartedServers,
)

OWN, VLLM = {1: 3, 2: 2}, {1: 4, 5: 0}
TOKENS, MOST = 32, 8


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--vllm", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = of_vllm(Path(folder), options.vllm) if options.vllm else of_trtspec(Path(folder))
    bars = [
        Bar(
            f"across {one.first} requests, schedule / the better of K = {one.before} and {one.after}",
            round(one.share.value, 2),
            LEAST_HELD,
            True,
            (round(one.share.low, 2), round(one.share.high, 2)),
        )
        for one in found
    ]
    result = {"machine": machine(), "crossings": [asdict(one) for one in found]}
    json.dump({**result, "bars": [asdict(bar) for bar in bars]}, sys.stdout, indent=2)
    print()
    for bar in bars:
        print(bar, file=sys.stderr)
    return 0 if all(bar.is_met for bar in bars) else 1


def session(servers: RunningServers | StartedServers) -> ScheduleSession:
    prompts = tuple(Prompt(str(number), (text,)) for number, text in enumerate(heldout(400)))
    wanted = ScheduleOptions((1, MOST), 4, None, TOKENS, 0.0, False, 600.0)
    return ScheduleSession(servers, Workload("code", "heldout", prompts), wanted, say)


def of_trtspec(folder: Path) -> list[Crossing]:
    servers: list[AskedServer] = []
    with ExitStack() as stack:
        for name, schedule in (("every", None), ("schedule", OWN)):
            recipe = folder / f"{name}.yaml"
            changes = {**places(load(TINY), None), "speculation.schedule": schedule}
            recipe.write_text(edit(TINY.read_text(), changes, TINY))
            trtspec.build(recipe, output=folder / name)
            build = find_build(recipe, folder / name)
            target = stack.enter_context(served(build, chat=False, python=None, say=say))
            servers.append(AskedServer(target.url, target.model_name, takes_k=schedule is None))
        every, own = servers
        return session(RunningServers(every, {None: own})).cross(OWN)


def of_vllm(folder: Path, python: Path) -> list[Crossing]:
    text = TINY.with_name("recipe-vllm.yaml").read_text()
    recipe = folder / "vllm.yaml"
    recipe.write_text(text.replace("model: ./", f"model: {TINY.parent}/"))
    servers = StartedServers(load(recipe), folder / "work", 4, False, python, say, VLLM)
    return session(servers).cross(VLLM)


def say(line: str) -> None:
    print(line, file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
