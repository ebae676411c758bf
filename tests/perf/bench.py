"""Every measurement of the project, each in a process of its own; JSON on stdout, the bars on stderr.

The exit status is 1 when a bar is missed, so that a slower coordinator does not go unnoticed.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.perf.bar import Bar

ROOT = Path(__file__).parents[2]
TINY = ROOT / "recipes" / "tiny" / "recipe.yaml"
RATIOS = {
    "speculative / plain": 1.4,
    "plain / transformers": 2.5,
    "speculative / transformers_assisted": 4.0,
}
SCRIPTS = {
    **{
        script: (script,)
        for script in (
            "pair",
            "coordinator",
            "lookup",
            "methods",
            "forecast",
            "triton_overhead",
            "executor",
            "busy_core",
            "threads",
            "load",
            "openai_front",
            "conversion",
            "adaptive",
            "crossing",
        )
    },
    "adaptive, a draft right one time in ten": ("adaptive", "--draft", "wrong", "--phases", "1"),
    "adaptive, a draft as slow as the target": ("adaptive", "--draft", "slow", "--phases", "1"),
}
"""The measurements, and how each is made."""


def main() -> int:
    results: dict[str, Any] = {"commands_s": commands()}
    for name, (script, *options) in SCRIPTS.items():
        print(f"{name} ...", file=sys.stderr)
        # A script that has bars of its own exits with 1 where it misses one; without JSON it has failed.
        command = [sys.executable, "-m", f"tests.perf.{script}", *options]
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE)
        results[name] = json.loads(done.stdout)
    bars = list(promised(results))
    results["bars"] = [{**asdict(bar), "is_met": bar.is_met} for bar in bars]
    json.dump(results, sys.stdout, indent=2)
    print()
    for bar in bars:
        print(bar, file=sys.stderr)
    return 0 if all(bar.is_met for bar in bars) else 1


def promised(results: dict[str, Any]) -> list[Bar]:
    ratios = results["pair"]["ratios"]
    times = results["commands_s"]
    beside, coordinator = results["busy_core"]["tokens_per_second"], results["coordinator"]
    longer = coordinator["1 stream after 131072 tokens"]["us_a_round"]
    shorter = coordinator["1 stream after 1024 tokens"]["us_a_round"]
    conversion, most = results["conversion"], {"TP 1": 2, "TP 4": 2, "FP8": 4, "FP8, TP 4": 4}
    return [
        Bar("the four ways say the same", float(results["pair"]["same_text"]), 1, True),
        *(
            Bar(f"{name}, tokens/s", found["ratio"], RATIOS[name], True, (found["low"], found["high"]))
            for name, found in ratios.items()
        ),
        *(
            Bar(f"{way}, one busy core / quiet", beside[f"{way}, busy / quiet"], 0.4, True)
            for way in ("speculative", "plain")
        ),
        *(
            Bar(f"threads that are chosen / the better of one and all, {duty}", found["ratio"], 0.85, True)
            for duty, found in results["threads"]["duties"].items()
        ),
        *inside_triton(results["triton_overhead"]),
        Bar("us a round of the coordinator, 32 streams", coordinator["32 streams"]["us_a_round"], 30, False),
        *(
            Bar(f"us a lookup behind 8,192 tokens, text: {name}", found["us_a_round"], 20, False)
            for name, found in results["lookup"].items()
        ),
        Bar("all methods of drafting say the same", float(results["methods"]["same_text"]), 1, True),
        *(Bar(**held) for name in ("methods", "forecast", "crossing") for held in results[name]["bars"]),
        Bar("a round after 131,072 tokens / after 1,024", round(longer / shorter, 2), 1.3, False),
        *under_load(results["load"]),
        *following(results),
        *in_front(results["openai_front"]),
        *(
            Bar(f"conversion of 3 GB / cp -r, {way}", conversion[way]["ratio to cp"], bar, False)
            for way, bar in most.items()
        ),
        *(Bar(f"peak MB of conversion, {way}", conversion[way]["peak_mb"], 1200, False) for way in most),
        Bar("trtspec --help, s", times["trtspec --help"], 0.25, False),
        Bar("a build with nothing to do, s", times["trtspec build, nothing to do"], 1.5, False),
    ]


def inside_triton(results: dict[str, Any]) -> list[Bar]:
    """One stream waits for each round; of 32 one core has to serve 10,000 a second."""
    most = {"1 streams": 60, "32 streams": 100}
    return [
        Bar(f"us a round inside Triton, {name}", found["us_a_round"], bar, False)
        for name, found in results.items()
        for streams, bar in most.items()
        if name.startswith("in_process") and f" {streams}" in name
    ]


def following(results: dict[str, Any]) -> list[Bar]:
    """The adaptive draft length loses little to the best fixed one and to none, in each phase."""
    return [
        Bar(f"{name}, {phase}, {than}", found[than], 0.97, True)
        for name in SCRIPTS
        if name.startswith("adaptive")
        for phase, found in results[name]["phases"].items()
        for than in ("of the best fixed", "of plain")
    ]


def in_front(results: dict[str, Any]) -> list[Bar]:
    """OpenAI's API costs little beside Triton's own HTTP."""
    levels, more = results["levels"], results["first_text_ms_more"]
    (least, most), (low, high) = results["first_text_spread"], levels[-1]["spread"]
    return [
        Bar("ms to the first text, OpenAI's API - Triton's HTTP", more, 2, False, (least, most)),
        *(
            Bar(f"us a chunk of OpenAI's API, {level['streams']} streams", level["us_per_chunk"], 150, False)
            for level in levels
        ),
        Bar("64 streams, OpenAI's API / Triton's HTTP", levels[-1]["ratio"], 0.9, True, (low, high)),
    ]


def under_load(results: dict[str, Any]) -> list[Bar]:
    """More streams than the engine has places cost neither throughput nor work."""
    bars = []
    for case, levels in results.items():
        full = levels["16 streams"]
        for streams in ("64 streams", "256 streams"):
            share = {name: round(levels[streams][name] / full[name], 2) for name in full}
            bars += [
                Bar(f"tokens/s / 16 streams, {case}, {streams}", share["tokens_per_s"], 0.9, True),
                Bar(f"rows a token / 16 streams, {case}, {streams}", share["rows_per_token"], 1.1, False),
            ]
    return bars


def commands() -> dict[str, float]:
    """Median seconds of a whole process, of seven."""
    trtspec = [sys.executable, "-m", "trtspec"]
    with tempfile.TemporaryDirectory() as folder:
        build = [*trtspec, "build", str(TINY), "--output", f"{folder}/build"]
        subprocess.run(build, check=True, capture_output=True)
        return {
            "trtspec --help": seconds([*trtspec, "--help"]),
            "trtspec build, nothing to do": seconds(build),
        }


def seconds(command: list[str]) -> float:
    times = []
    for _ in range(7):
        start = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        times.append(time.perf_counter() - start)
    return round(statistics.median(times), 3)


if __name__ == "__main__":
    sys.exit(main())
