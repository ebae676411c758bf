"""What a round of prompt lookup costs; prints JSON.

A round is an offer and its proposal of 8 tokens, behind a text of 8,192 tokens and 4 more each time, so that
what it reads of the text is part of it. `us_a_round` is the median and `us_p99` the 99th percentile, both of
the best of five runs; `found` is the share of rounds that found something. The texts have no ending that
stood before, some, or one everywhere. `us_prompt` is what 4,096 tokens of a prompt take to be read.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import time
from collections.abc import Callable
from statistics import median, quantiles

from trtspec.serving.drafters.lookup import MOST_READ, LookupSource
from trtspec.serving.executor import Request
from trtspec.serving.text import Text

LENGTH, ROUNDS, GROWTH, PROPOSAL = 8192, 500, 4, 8
TEXTS: dict[str, Callable[[random.Random, int], int]] = {
    "never repeats itself": lambda dice, place: place,
    "like code": lambda dice, place: min(int(dice.paretovariate(0.6)), 32000),
    "one token": lambda dice, place: 7,
}


async def measure(token: Callable[[random.Random, int], int]) -> dict[str, float]:
    dice = random.Random(0)
    tokens = [token(dice, place) for place in range(LENGTH + ROUNDS * GROWTH)]
    text = Text(tokens[:LENGTH])
    drafter = LookupSource(2, 8).drafter(text)
    pieces = math.ceil(LENGTH / MOST_READ)
    begin = time.perf_counter()
    for _ in range(pieces):
        drafter.offer()
    prompt = time.perf_counter() - begin
    rounds, found = [], 0
    for number in range(ROUNDS):
        at = LENGTH + number * GROWTH
        text.extend(tokens[at : at + GROWTH])
        request = Request(text, PROPOSAL)
        begin = time.perf_counter()
        if drafter.offer():
            await drafter.propose(request, math.inf)
            found += 1
        rounds.append(time.perf_counter() - begin)
    return {
        "us_a_round": round(median(rounds) * 1e6, 2),
        "us_p99": round(quantiles(rounds, n=100)[-1] * 1e6, 2),
        "us_prompt": round(prompt / pieces * 1e6, 1),
        "found": round(found / ROUNDS, 2),
    }


def main() -> None:
    results = {}
    for name, token in TEXTS.items():
        runs = [asyncio.run(measure(token)) for _ in range(5)]
        results[name] = {key: min(run[key] for run in runs) for key in runs[0]}
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
