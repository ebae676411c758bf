"""What a round of prompt lookup costs, and one of suffix decoding; prints JSON.

A round is an offer and its proposal of 8 tokens, behind a text of 8,192 tokens and 4 more each time, so that
what it reads of the text is part of it. `us_a_round` is the median and `us_p99` the 99th percentile, both of
the best of five runs, in which all take turns; `found` is the share of rounds that found something. The texts
have no ending that stood before, some, or one everywhere. `us_prompt` is what the longest piece of a prompt
takes that is read at once. `suffix, answers` has 10,000 tokens of the tenant's earlier answers, 200 each.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import time
from collections import defaultdict
from collections.abc import Callable
from statistics import median, quantiles

from trtspec.serving.drafters import lookup, suffix
from trtspec.serving.drafters.lookup import LookupSource
from trtspec.serving.drafters.source import DraftSource
from trtspec.serving.drafters.suffix import SuffixSource
from trtspec.serving.executor import Request
from trtspec.serving.text import Text

LENGTH, ROUNDS, GROWTH, PROPOSAL = 8192, 500, 4, 8
ANSWERS, ANSWER, CLIENT = 50, 200, "client"
Token = Callable[[random.Random, int], int]
TEXTS: dict[str, Token] = {
    "never repeats itself": lambda dice, place: place,
    "like code": lambda dice, place: min(int(dice.paretovariate(0.6)), 32000),
    "one token": lambda dice, place: 7,
}


def ngram(token: Token) -> tuple[DraftSource, int]:
    return LookupSource(2, 8), lookup.MOST_READ


def suffixes(token: Token) -> tuple[DraftSource, int]:
    return SuffixSource(24, 10_000, 1.0, 0.1), suffix.MOST_READ


def answered(token: Token) -> tuple[DraftSource, int]:
    (source, piece), dice = suffixes(token), random.Random(1)
    for _ in range(ANSWERS):
        text = Text([1])
        drafter = source.drafter(text, CLIENT)
        text.extend(token(dice, place) for place in range(ANSWER))
        drafter.end()
    return source, piece


WAYS = {"": ngram, "suffix: ": suffixes, "suffix, answers: ": answered}


async def measure(token: Token, source: DraftSource, piece: int) -> dict[str, float]:
    dice = random.Random(0)
    tokens = [token(dice, place) for place in range(LENGTH + ROUNDS * GROWTH)]
    text = Text(tokens[:LENGTH])
    drafter = source.drafter(text, CLIENT)
    pieces = math.ceil(LENGTH / piece)
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
    runs: dict[str, list[dict[str, float]]] = defaultdict(list)
    for _ in range(5):
        for way, make in WAYS.items():
            for name, token in TEXTS.items():
                runs[way + name].append(asyncio.run(measure(token, *make(token))))
    found = {name: {key: min(run[key] for run in of) for key in of[0]} for name, of in runs.items()}
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
