"""`trtspec tune` beside measuring every K: whether it finds the K that is best, and in what time.

    python -m tests.perf.tune [--prompts 20] [--tokens 96]

First `trtspec tune` is timed, as a user calls it, from prompts to its recipe. Then every K from 0 to 8
answers the same prompts by the clock: each prompt is a block, which goes through all K before the next one
does, forwards and backwards in turn, and all of it is done twice; the shorter of the two times counts, since
a shared machine only ever adds to them, and half of the time of it all.

`best` is the K with most tokens per second. The best of many that differ by noise looks better than it is,
so `of_best` is what the K of `tune` has of the tokens per second of the best K of the other half of the
blocks, with the 5th and the 95th percentile of its bootstrap: where that reaches 1, the two cannot be told
apart. `predicted` and `measured` are speed-ups. JSON on stdout, the bars on stderr; the exit status is 1
when one is missed.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from tests.perf.bar import Bar
from tests.perf.methods import ratio
from tests.perf.pair import TINY, Run, built, machine, ours
from tests.perf.workloads import SOME_CODE, code
from trtspec.serving.completion import Completion
from trtspec.serving.executors.torch.device_thread import DeviceThread
from trtspec.serving.tokenizer import Tokenizer

LONGEST, TIMES = 8, 2
SHARE_OF_TIME = 1 / 3
WITHIN = 0.15
"""How far a predicted speed-up may be from the measured one."""


def main() -> int:
    options = parse()
    texts = [code(number, SOME_CODE) for number in range(options.prompts + 1)]
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        tuned = tune(Path(folder), texts[1:], options.tokens)
        tune_s = time.perf_counter() - begin
        begin = time.perf_counter()
        seconds = measured(Path(folder), texts, options.tokens)
        exhaustive_s = (time.perf_counter() - begin) / TIMES
    chosen = tuned["best"]["scores"][0]["length"] if tuned["best"] else 0
    totals = [sum(of_length) for of_length in seconds]
    best = min(range(LONGEST + 1), key=totals.__getitem__)
    share = ratio(seconds[chosen], of_others_best(seconds))
    predicted = {score["length"]: score["speedup"]["value"] for score in tuned["standings"][0]["scores"]}
    found = {length: totals[0] / total for length, total in enumerate(totals)}
    off = max(abs(predicted[length] / found[length] - 1) for length in predicted)
    bars = [
        Bar(
            "the K of tune, of the best K's tokens/s",
            share["ratio"],
            1.0,
            True,
            (share["low"], share["high"]),
        ),
        Bar("time of tune / of measuring every K", round(tune_s / exhaustive_s, 3), SHARE_OF_TIME, False),
        Bar("furthest that a predicted speed-up is off", round(off, 3), WITHIN, False),
    ]
    result = {
        "machine": machine(),
        "prompts": options.prompts,
        "tokens": options.tokens,
        "best": best,
        "chosen": chosen,
        "cannot_be_told_from_it": tuned["level_lengths"],
        "of_best": share,
        "tune_s": round(tune_s, 1),
        "exhaustive_s": round(exhaustive_s, 1),
        "measured": {length: round(value, 3) for length, value in found.items()},
        "predicted": {length: round(value, 3) for length, value in sorted(predicted.items())},
        "bars": [asdict(bar) for bar in bars],
    }
    json.dump(result, sys.stdout, indent=2)
    print()
    print(*bars, sep="\n", file=sys.stderr)
    return 0 if all(bar.is_met for bar in bars) else 1


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prompts", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=96)
    return parser.parse_args()


def tune(folder: Path, texts: Sequence[str], tokens: int) -> dict[str, Any]:
    """Returns what `trtspec tune` says of every K for the pair as it is."""
    prompts = folder / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
    done = subprocess.run(
        [
            *(sys.executable, "-m", "trtspec", "tune", TINY / "recipe.yaml", "--workload", prompts, "--json"),
            *("--method", "draft_model", "--longest", str(LONGEST), "--max-tokens", str(tokens)),
            *("--prompts", str(len(texts)), "--work", folder / "work", "--output", folder / "tuned.yaml"),
        ],
        check=True,
        stdout=subprocess.PIPE,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def measured(folder: Path, texts: Sequence[str], tokens: int) -> list[list[float]]:
    """Returns the seconds of each K, 0 first, for each prompt but the first, which warms up."""
    build = built(folder, "float32")
    torch.set_num_threads(2)
    tokenizer, device_thread, spoken = Tokenizer.load(build / "tokenizer"), DeviceThread(), list[Completion]()
    ways: list[Run] = [
        ours(device_thread, build, tokenizer, tokens, length, spoken) for length in range(LONGEST + 1)
    ]
    warm_up, *prompts = map(tokenizer.encode, texts)
    for run in ways:
        run(warm_up)
    seconds = [[math.inf] * len(prompts) for _ in ways]
    for number, prompt in enumerate([*prompts] * TIMES):
        for length in range(LONGEST + 1)[:: 1 if number % 2 else -1]:
            start = time.perf_counter()
            ways[length](prompt)
            own, place = seconds[length], number % len(prompts)
            own[place] = min(own[place], time.perf_counter() - start)
    return seconds


def of_others_best(seconds: Sequence[Sequence[float]]) -> list[float]:
    """Returns the seconds of each block with the K that is best in the half of the blocks without it."""
    best = [min(seconds, key=lambda own: sum(own[1 - half :: 2])) for half in (0, 1)]
    return [best[block % 2][block] for block in range(len(seconds[0]))]


if __name__ == "__main__":
    sys.exit(main())
