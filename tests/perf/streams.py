"""The torch backend under many streams at once, in one process and without Triton.

    python tests/perf/streams.py [--streams 1,16,64] [--tokens 64] [--rounds 3]

`max_batch_size` completions are at work at a time, as behind an admission; "all at once" lets every stream
in. Short prompts have 300 characters, long ones 1,500. For each: tokens/s, the target's rows for each token,
the p95 of the time to the first token and the largest gap between two tokens of a stream, in milliseconds.
JSON on stdout.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import sysconfig
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.perf.pair import TINY, built
from trtspec.serving.completion import NO_END, CompletionRequest
from trtspec.serving.coordinator import Coordinator
from trtspec.serving.executors.torch.executor import TorchExecutor
from trtspec.serving.executors.torch.pair import load_pair
from trtspec.serving.tokenizer import Tokenizer

CHARACTERS = {"short": 300, "long": 1500}


@dataclass(slots=True)
class Run:
    """What one run of many streams came to; times in seconds."""

    tokens: int = 0
    seconds: float = 0.0
    rows: int = 0
    first: list[float] = field(default_factory=list)
    largest_gap: float = 0.0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", default="1,16,64")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    streams = [int(number) for number in options.streams.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        build = built(Path(folder), "float32")
        found = asyncio.run(measure(build, streams, options.tokens, options.rounds))
    json.dump(found, sys.stdout, indent=2)
    print()


async def measure(build: Path, streams: list[int], tokens: int, rounds: int) -> dict[str, object]:
    target, draft = load_pair(build / "target" / "engine", build / "draft" / "engine")
    tokenizer, dice = Tokenizer.load(build / "tokenizer"), random.Random(0)
    coordinator, batch = Coordinator(target, draft, tokenizer), target.limits.max_batch_size
    runs: dict[str, list[Run]] = {}
    await run(coordinator, target, prompts(tokenizer, dice, "short", 2), 8, 4, batch)
    for _ in range(rounds):
        for number in streams:
            for length in CHARACTERS:
                for num_draft_tokens in (4, 0):
                    for gate in {batch, number} if number > batch else {batch}:
                        name = f"{number} streams, {length}, K = {num_draft_tokens}"
                        name += ", all at once" if gate > batch else ""
                        texts = prompts(tokenizer, dice, length, number)
                        done = await run(coordinator, target, texts, tokens, num_draft_tokens, gate)
                        runs.setdefault(name, []).append(done)
    target.shutdown()
    draft.shutdown()
    return {name: summary(done) for name, done in runs.items()}


def prompts(tokenizer: Tokenizer, dice: random.Random, length: str, count: int) -> list[list[int]]:
    """Beginnings that no two streams share, from files that the pair was not trained on."""
    library, characters = Path(sysconfig.get_paths()["stdlib"]), CHARACTERS[length]
    texts = [
        (library / name).read_text(encoding="utf-8") for name in (TINY / "heldout.txt").read_text().split()
    ]
    long = [text for text in texts if len(text) > 4 * characters]
    chosen = [long[number % len(long)] for number in range(count)]
    return [tokenizer.encode(text[dice.randrange(len(text) - characters) :][:characters]) for text in chosen]


async def run(
    coordinator: Coordinator,
    target: TorchExecutor,
    texts: list[list[int]],
    tokens: int,
    num_draft_tokens: int,
    gate: int,
) -> Run:
    result, places, rows = Run(), asyncio.Semaphore(gate), target.stats.rows
    start = time.perf_counter()

    async def one(prompt: list[int]) -> None:
        request = CompletionRequest(
            prompt_token_ids=prompt, max_tokens=tokens, num_draft_tokens=num_draft_tokens, end_id=NO_END
        )
        last = None
        async with places:
            async for delta in coordinator.stream(request):
                now = time.perf_counter()
                if last is None:
                    result.first.append(now - start)
                else:
                    result.largest_gap = max(result.largest_gap, now - last)
                last = now
                result.tokens += len(delta.token_ids)

    await asyncio.gather(*(one(text) for text in texts))
    result.seconds, result.rows = time.perf_counter() - start, target.stats.rows - rows
    return result


def summary(runs: list[Run]) -> dict[str, float]:
    """Medians of the runs."""

    def median(values: list[float], digits: int = 1) -> float:
        return round(statistics.median(values), digits)

    return {
        "tokens_per_second": median([run.tokens / run.seconds for run in runs]),
        "rows_per_token": median([run.rows / run.tokens for run in runs], 2),
        "p95_first_token_ms": median([1e3 * sorted(run.first)[len(run.first) * 95 // 100] for run in runs]),
        "largest_gap_ms": median([1e3 * run.largest_gap for run in runs]),
    }


if __name__ == "__main__":
    main()
