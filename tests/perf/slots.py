"""How long the KV cache's slots take to find the one for a new text, while no other text goes on.

    python -m tests.perf.slots [--slots 100 350 1000]

All texts begin with the same 1,500 tokens, as those of chats with one system's prompt do, and then differ.
Milliseconds, the median of 15, JSON on stdout.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time

from tests.perf.pair import machine
from trtspec.serving.executors.torch.cache_slots import CacheSlots
from trtspec.serving.text import Text

COMMON, OWN, VOCABULARY, TIMES = 1500, 50, 2048, 15


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--slots", type=int, nargs="+", default=[100, 350, 1000])
    options = parser.parse_args()
    dice = random.Random(0)
    common = tokens(dice, COMMON)
    found = {str(number): milliseconds(dice, common, number) for number in options.slots}
    json.dump({"machine": machine(), "milliseconds": found}, sys.stdout, indent=2)
    print()


def tokens(dice: random.Random, number: int) -> list[int]:
    return [dice.randrange(VOCABULARY) for _ in range(number)]


def milliseconds(dice: random.Random, common: list[int], number: int) -> float:
    slots = CacheSlots(budget=2 * (number + 1) * (COMMON + OWN))
    for _ in range(number):
        take(slots, common + tokens(dice, OWN))
    times = []
    for _ in range(TIMES):
        text = common + tokens(dice, OWN)
        begin = time.perf_counter()
        slots.free(take(slots, text))
        times.append(time.perf_counter() - begin)
    return round(1000 * statistics.median(times), 2)


def take(slots: CacheSlots, text: list[int]) -> int:
    """Holds a text in a slot, which stays busy."""
    lease = slots.take(Text(text), len(text), [], len(text))
    assert lease is not None
    slots.grow(lease.slot, len(text))
    return lease.slot


if __name__ == "__main__":
    main()
