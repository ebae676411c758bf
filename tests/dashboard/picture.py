"""Draws `docs/dashboard.png`: the dashboard over minutes of changing load, as Grafana would show it.

    make picture        # npm, Prometheus and Chromium must be there

The tiny pair is deployed, streams come and go, a roll-out moves on, and Prometheus scrapes it. Its answers to
the queries of `trtspec monitoring dashboard` are drawn by Grafana's own components (`page.tsx`), since the
registries have no Grafana to start.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from tests.e2e.conftest import RECIPE, TINY, TRTSPEC, Deploy, Deployer, wait_until
from tests.perf.load import Texts
from tests.support.chromium import Tab, look
from tests.support.ports import free_port
from tests.support.prometheus import Prometheus
from trtspec.cli.monitoring import shipped
from trtspec.client.endpoint import AskError, ChatMessage, Endpoint, EndpointRequest
from trtspec.client.finding import find

HERE = Path(__file__).parent
PICTURE = HERE.parents[1] / "docs" / "dashboard.png"
WIDTH, ROW = 1800, 38  # of `page.tsx`
STEP_S, RATE = 1.0, "8s"
METHOD = {"kind": "hybrid", "earlier_answers": 100_000}


@dataclass(frozen=True)
class Phase:
    """Some seconds in which so many streams ask, and what is said to the roll-out before them.

    Of the requests the share `leaving` is given up after a moment. With `again` all ask the same.
    """

    seconds: float
    streams: int
    rollout: str | None = None
    temperature: float = 0.0
    leaving: float = 0.0
    again: bool = False


PHASES = (
    Phase(20, 1),
    Phase(30, 4),
    Phase(40, 16, leaving=0.05),
    Phase(25, 40, leaving=0.1),
    Phase(30, 8, temperature=1.3),
    Phase(20, 2, again=True),
    Phase(20, 6, rollout="off"),
    Phase(25, 6, rollout="next"),
    Phase(20, 6, rollout="next"),
    Phase(20, 6, rollout="next"),
    Phase(15, 6, rollout="next"),
    Phase(15, 6, rollout="next"),
    Phase(15, 3),
)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--picture", type=Path, default=PICTURE)
    parser.add_argument("--share", type=float, default=1.0, help="how much of each phase's seconds")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        with watched(Path(folder)) as (deploy, prometheus):
            began = time.time()
            asyncio.run(load(deploy, Path(folder), options.share))
            time.sleep(2 * STEP_S)
            panels = list(answered(prometheus, began, time.time()))
        draw(panels, Path(folder), options.picture)


@contextmanager
def watched(folder: Path) -> Iterator[tuple[Deploy, Prometheus]]:
    """A deployment of the tiny pair, and a Prometheus that scrapes it."""
    recipe, build = folder / "recipe.yaml", folder / "build"
    values = yaml.safe_load(RECIPE.read_text())
    for role in ("target", "draft"):
        values[role]["model"] = str(TINY / role)
    values["speculation"] = {"max_draft_len": 8, "method": METHOD}
    values["serving"] = {"max_queue_size": 16}
    recipe.write_text(yaml.safe_dump(values))
    subprocess.run([TRTSPEC, "build", recipe, "--output", build], check=True, stdout=sys.stderr)
    deployer = Deployer(folder)
    try:
        deploy = deployer(build, recipe=recipe)
        wait_until(lambda: deploy.is_ready, "the server ready")
        scraped = f"127.0.0.1:{deploy.ports[2]}"
        prometheus = Prometheus(folder, scraped, free_port(), shipped("alerts.yaml"))
        try:
            wait_until(lambda: prometheus.value("trtspec:num_requests_running") is not None, "a scrape")
            yield deploy, prometheus
        finally:
            prometheus.end()
    finally:
        deployer.end_all()


async def load(deploy: Deploy, folder: Path, share: float) -> None:
    texts, chance = Texts(folder / "build"), random.Random(1)
    found = await find(f"http://127.0.0.1:{deploy.ports[0]}", None, chat=False, timeout_s=60)
    try:
        for phase in PHASES:
            if phase.rollout:
                await asyncio.to_thread(roll_out, phase.rollout, deploy, folder)
            print(phase, file=sys.stderr)
            until = time.monotonic() + share * phase.seconds
            stream = partial(ask, found.endpoint, texts, phase, until, chance)
            await asyncio.gather(*(stream() for _ in range(phase.streams)))
    finally:
        await found.endpoint.close()


def roll_out(word: str, deploy: Deploy, folder: Path) -> None:
    options = [f"--output={folder / 'build'}", f"--url=127.0.0.1:{deploy.ports[2]}"]
    forced = ["--force"] if word == "next" else []
    command = [str(TRTSPEC), "rollout", word, str(folder / "recipe.yaml"), *options, *forced]
    subprocess.run(command, check=True, stdout=sys.stderr)


async def ask(endpoint: Endpoint, texts: Texts, phase: Phase, until: float, chance: random.Random) -> None:
    """One stream: a request after the other; one that is refused waits before it asks again."""
    number = 0
    while time.monotonic() < until:
        number += 1
        text = "class Stack:\n" if phase.again else texts.one(chance.choice((20, 40, 200)))
        tokens = chance.choice((60, 120, 200, 400))
        seed = number if phase.temperature else None
        question = EndpointRequest((ChatMessage("user", text),), tokens, None, phase.temperature, seed)
        patience = 0.05 if chance.random() < phase.leaving else 60.0
        try:
            await asyncio.wait_for(endpoint.ask(question), patience)
        except TimeoutError:
            continue
        except AskError:
            await asyncio.sleep(chance.uniform(0.2, 1.0))


def answered(prometheus: Prometheus, began: float, ended: float) -> Iterator[dict[str, Any]]:
    """The panels of the dashboard, each with the series that Prometheus has for its queries.

    A panel without any, as of GPUs that this machine lacks, leaves its place to the next one of its row.
    """
    room = 0
    variables = {"$model": ".*", "$instance": ".*", "$__rate_interval": RATE}
    times = [began + number * STEP_S for number in range(int((ended - began) / STEP_S))]
    for panel in json.loads(shipped("dashboard.json"))["panels"]:
        series = []
        for target in panel.get("targets", ()):
            query = target["expr"]
            for name, value in variables.items():
                query = query.replace(name, value)
            asked = {"start": str(began), "end": str(times[-1]), "step": str(STEP_S)}
            for found in prometheus.get("query_range", query=query, **asked)["result"]:
                values = {round((at - began) / STEP_S): number(value) for at, value in found["values"]}
                name = target["legendFormat"]
                for label, value in found["metric"].items():
                    name = name.replace(f"{{{{{label}}}}}", value)
                series.append({"name": name, "values": [values.get(at) for at in range(len(times))]})
        place = panel["gridPos"]
        if panel.get("targets") and not series:
            room = place["w"]
            continue
        place = {**place, "x": place["x"] - room, "w": place["w"] + room}
        room = 0
        yield {**panel, "gridPos": place, "series": series, "times": [round(at * 1000) for at in times]}


def number(text: str) -> float | None:
    """A value of Prometheus; JSON has neither NaN nor infinity."""
    value = float(text)
    return value if math.isfinite(value) else None


def draw(panels: list[dict[str, Any]], folder: Path, picture: Path) -> None:
    page = folder / "page"
    shutil.copytree(HERE, page, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    install = ["npm", "install", "--no-audit", "--no-fund", "--legacy-peer-deps", "--ignore-scripts"]
    for command in (install, ["npm", "run", "build"]):
        subprocess.run(command, cwd=page, check=True, stdout=sys.stderr)
    content = json.dumps({"times": panels[0]["times"], "panels": panels}).replace("<", "\\u003c")
    height = ROW * max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels)
    file = page / "index.html"
    file.write_text(
        f'<!doctype html><meta charset="utf-8"><body style="margin:0;background:#fff;height:{height}px">'
        f'<div id="root"></div><script type="application/json" id="picture">{content}</script>'
        '<link rel="stylesheet" href="page.css"><script src="page.js"></script>'
    )

    async def shoot(tab: Tab) -> None:
        await asyncio.sleep(3)
        await tab.screenshot(page / "picture.png")

    # Grafana's server would have its fonts.
    complaints = [
        said for said in look(file, folder, shoot, width=WIDTH).complaints if "resource" not in said
    ]
    if complaints:
        raise SystemExit("\n".join(complaints))
    shutil.copy(page / "picture.png", picture)


if __name__ == "__main__":
    main()
