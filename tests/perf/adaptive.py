"""The adaptive draft length beside every fixed one, on a workload that drifts.

    python -m tests.perf.adaptive [--seconds 60] [--slice 1] [--phases 1-4] [--draft good|wrong|slow]

Phases follow one another without a pause: code that the draft knows, text that it cannot guess, then 64
completions at once, then one again. Every way (the target alone, fixed lengths, adaptive) goes through all of
them with engines and an event loop of its own, which stand still while the others run: all take turns, a
slice of a second each, so that what another program takes of the machine meets each alike. Engines use one
thread.
`--draft wrong` is right one time in ten, `--draft slow` takes as long a step as the target. Ratios are of
tokens per second over a whole phase, the time to adapt included. JSON on stdout. Each tenth slice of each way
stderr has the tokens per second since the last ones, and how many rounds of each K the adaptive way has had.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from tests.fakes.around import Around
from tests.perf.pair import built, heldout, machine
from tests.perf.turns import Turns
from trtspec.serving.assembly import assemble
from trtspec.serving.completion import NO_END, CompletionRequest
from trtspec.serving.executor import Executor, Listener, Request, Response, SamplingConfig
from trtspec.serving.executors.torch.torch_executor import TorchExecutor
from trtspec.serving.tokenizer import Tokenizer

TOKENS = 128
LENGTHS = (2, 4, 8)
SLICES = 10
"""The slices of each way between two lines on stderr."""
RIGHT, SLOW_S = 0.1, 0.002


@dataclass(frozen=True)
class Phase:
    name: str
    clients: int
    temperature: float | None = None


PHASES = (
    Phase("easy", 1),
    Phase("hard", 1, temperature=2.0),
    Phase("easy, 64 at once", 64),
    Phase("easy again", 1),
)


class Altered(Around):
    """The draft engine, with answers that are mostly wrong or late; `step_s` is added for each token."""

    def __init__(self, engine: TorchExecutor, right: float = 1.0, step_s: float = 0.0) -> None:
        super().__init__(engine)
        self._right, self._step_s, self._dice = right, step_s, random.Random(0)

    def enqueue_request(self, request: Request, listener: Listener) -> int:
        loop, vocab_size = asyncio.get_running_loop(), self.limits.vocab_size

        def listen(response: Response) -> None:
            tokens = [
                token_id if self._dice.random() < self._right else (token_id + 1) % vocab_size
                for token_id in response.token_ids
            ]
            altered = replace(response, token_ids=tokens)
            if self._step_s:
                loop.call_later(self._step_s * len(tokens), listener, altered)
            else:
                listener(altered)

        return super().enqueue_request(request, listen)


DRAFTS: Mapping[str, Callable[[TorchExecutor], Executor]] = {
    "good": lambda engine: engine,
    "wrong": partial(Altered, right=RIGHT),
    "slow": partial(Altered, step_s=SLOW_S),
}


class Way:
    """A coordinator with engines of its own, and clients that keep it busy; `tokens` counts what it said."""

    def __init__(self, build: Path, length: int | None, altered: Callable[[TorchExecutor], Executor]) -> None:
        self.tokens, self._length = 0, length
        self._turns = Turns()
        self._phase, self._clients = Phase("none", 0), list[asyncio.Task[None]]()
        self._tokenizer = Tokenizer.load(build / "tokenizer")
        self._prompts = itertools.cycle(heldout(200))
        engine, target = (
            TorchExecutor(build / role / "engine", device_thread=self._turns.device_thread)
            for role in ("draft", "target")
        )
        self.coordinator = assemble(
            target, altered(engine), self._tokenizer, policy="adaptive" if length is None else "fixed"
        )

    def enter(self, phase: Phase) -> None:
        """Starts the clients that are missing; those that are too many finish what they began."""
        self._phase, self.tokens = phase, 0
        for index in range(len(self._clients), phase.clients):
            self._clients.append(self._turns.loop.create_task(self._client(index)))
        del self._clients[phase.clients :]

    def run_for(self, seconds: float) -> None:
        """Goes on for so long, and stops between two steps of the engines."""
        self._turns.turn(asyncio.sleep(seconds))

    async def _client(self, index: int) -> None:
        while index < self._phase.clients:
            request = CompletionRequest(
                prompt_token_ids=self._tokenizer.encode(next(self._prompts)),
                max_tokens=TOKENS,
                num_draft_tokens=self._length,
                end_id=NO_END,
                sampling=SamplingConfig(temperature=self._phase.temperature),
            )
            async with aclosing(self.coordinator.stream(request)) as deltas:
                async for delta in deltas:
                    self.tokens += len(delta.token_ids)


def main() -> None:
    options = parse()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        build = built(Path(folder), "float32", max_batch_size=64)
        lengths = {"plain": 0, **{f"K = {length}": length for length in LENGTHS}, "adaptive": None}
        ways = {name: Way(build, length, DRAFTS[options.draft]) for name, length in lengths.items()}
        phases = {phase.name: measure(ways, phase, options) for phase in options.phases}
    result = {"machine": machine(), "draft": options.draft, "seconds": options.seconds, "phases": phases}
    json.dump(result, sys.stdout, indent=2)
    print(flush=True)
    os._exit(0)  # The clients are in the middle of something.


def some(phases: str) -> tuple[Phase, ...]:
    first, _, last = phases.partition("-")
    return PHASES[int(first) - 1 : int(last or first)]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--phases", type=some, default=PHASES, help="from which to which, from 1: 2-3")
    parser.add_argument("--slice", type=float, default=1)
    parser.add_argument("--draft", default="good", choices=list(DRAFTS))
    return parser.parse_args()


def measure(ways: Mapping[str, Way], phase: Phase, options: argparse.Namespace) -> dict[str, object]:
    """Tokens per second of each way, and what the adaptive one has of the best fixed one and of plain."""
    for way in ways.values():
        way.enter(phase)
    number = max(1, round(options.seconds / options.slice))
    before, rounds_before = dict.fromkeys(ways, 0), Counter(ways["adaptive"].coordinator.stats.rounds)
    for turn in range(number):
        for way in list(ways.values())[:: 1 if turn % 2 else -1]:
            way.run_for(options.slice)
        if turn % SLICES == SLICES - 1:
            rates = {
                name: (way.tokens - before[name]) / (SLICES * options.slice) for name, way in ways.items()
            }
            rounds = Counter(ways["adaptive"].coordinator.stats.rounds)
            said = {name: round(rate) for name, rate in rates.items()}
            print(
                phase.name, said, dict(sorted((rounds - rounds_before).items())), file=sys.stderr, flush=True
            )
            before, rounds_before = {name: way.tokens for name, way in ways.items()}, rounds
    rates = {name: way.tokens / (number * options.slice) for name, way in ways.items()}
    best = max(rate for name, rate in rates.items() if name != "adaptive")
    print(phase.name, {name: round(rate) for name, rate in rates.items()}, file=sys.stderr)
    return {
        "tokens_per_second": {name: round(rate, 1) for name, rate in rates.items()},
        "of the best fixed": round(rates["adaptive"] / best, 3),
        "of plain": round(rates["adaptive"] / rates["plain"], 3),
    }


if __name__ == "__main__":
    main()
