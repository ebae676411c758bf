"""The tiny pair alone on the machine, and beside one program that is busy on one of its processors.

    python -m tests.perf.busy_core [--rounds 3] [--seconds 4]

Tokens/s of one stream with drafts and without, in one process, quiet and busy by turns. JSON on stdout.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.perf.pair import built, heldout
from trtspec.serving.assembly import assemble
from trtspec.serving.completion import NO_END, CompletionRequest
from trtspec.serving.coordinator import Coordinator
from trtspec.serving.executors.torch.host import look
from trtspec.serving.executors.torch.torch_executor import load_engines
from trtspec.serving.tokenizer import Tokenizer

TOKENS = 64


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = asyncio.run(measure(built(Path(folder), "float32"), options.rounds, options.seconds))
    json.dump(result, sys.stdout, indent=2)
    print()


async def measure(build: Path, rounds: int, seconds: float) -> dict[str, object]:
    target, draft = load_engines([build / "target" / "engine", build / "draft" / "engine"])
    tokenizer = Tokenizer.load(build / "tokenizer")
    coordinator = assemble(target, draft, tokenizer)
    prompts = [tokenizer.encode(text) for text in heldout(12)]
    found: dict[str, list[float]] = {}
    await speed(coordinator, prompts, 4, 1.0)
    for _ in range(rounds):
        for way, num_draft_tokens in (("speculative", 4), ("plain", 0)):
            quiet = await speed(coordinator, prompts, num_draft_tokens, seconds)
            with busy_program():
                busy = await speed(coordinator, prompts, num_draft_tokens, seconds)
            for name, value in (("quiet", quiet), ("busy", busy), ("busy / quiet", busy / quiet)):
                found.setdefault(f"{way}, {name}", []).append(value)
    target.shutdown()
    draft.shutdown()
    threads, reason = look().threads
    medians = {name: round(statistics.median(values), 2) for name, values in found.items()}
    return {"threads": threads, "because": reason, "tokens_per_second": medians}


async def speed(
    coordinator: Coordinator, prompts: list[list[int]], num_draft_tokens: int, seconds: float
) -> float:
    """Tokens a second of one stream after another, for so long."""
    start, tokens = time.perf_counter(), 0
    while time.perf_counter() < start + seconds:
        request = CompletionRequest(
            prompt_token_ids=prompts[tokens // TOKENS % len(prompts)],
            max_tokens=TOKENS,
            num_draft_tokens=num_draft_tokens,
            end_id=NO_END,
        )
        tokens += len((await coordinator.complete(request)).token_ids)
    return tokens / (time.perf_counter() - start)


@contextmanager
def busy_program() -> Iterator[None]:
    program = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        program.kill()
        program.wait()


if __name__ == "__main__":
    main()
