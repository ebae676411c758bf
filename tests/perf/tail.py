"""What the draft's own probabilities say of its tokens, and what cutting an unlikely tail would bring.

    python -m tests.perf.tail [--prompts 48]
    python -m tests.perf.tail --ways 0 4 4:0.05 adaptive adaptive:0.05 [--clients 16] [--temperature 1]

A proposal is cut before the first token whose probability of being reached and accepted is under `least`:
the product of the draft's probabilities so far (`product`), or of how often tokens with such probabilities
were accepted in every second text (`learnt`), which the other texts judge.

Without `--ways`: how often tokens were accepted by what the draft thought of them; and from measured steps,
the tokens per second of the best cut, chosen in hindsight, with K = 4, with K = 8 and with the best K, beside
the same without a cut. With `--ways`: tokens per second, measured; `4:0.05` is K = 4 with a cut, `4:0` one
that asks for probabilities and cuts nothing. All take turns of a second. Engines use one thread. JSON on
stdout.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import torch

from tests.fakes.around import Around
from tests.perf.adaptive import Phase, Way
from tests.perf.pair import built, machine
from tests.perf.traces import Round, StepCosts, step_costs, traces
from trtspec.serving.adaptive.policy import AdaptiveLengths, AdaptivePolicy
from trtspec.serving.executor import Executor, Listener, Request, Response, SamplingConfig
from trtspec.serving.executors.torch.torch_executor import TorchExecutor
from trtspec.serving.rounds import VerificationCounts

LONGEST = 8
TOKENS = 128
EDGES = (0.0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1.01)
LEASTS = (0.0, *(0.001 * 1.5**step for step in range(17)))
SETTINGS = {
    "greedy": SamplingConfig(),
    "temperature 0.5": SamplingConfig(temperature=0.5),
    "temperature 1": SamplingConfig(temperature=1.0),
}


def main() -> None:
    options = parse()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        build = built(Path(folder), "float32", max_batch_size=64)
        found = speeds(build, options) if options.ways else reckoned(build, options.prompts)
    json.dump({"machine": machine(), **found}, sys.stdout, indent=2)
    print(flush=True)
    os._exit(0)  # The clients are in the middle of something.


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prompts", type=int, default=48)
    parser.add_argument("--ways", nargs="*", default=[], help="K or adaptive, with :LEAST for a cut")
    parser.add_argument("--clients", type=int, default=1)
    parser.add_argument("--temperature", type=float)
    parser.add_argument("--seconds", type=int, default=20)
    return parser.parse_args()


def reckoned(build: Path, prompts: int) -> dict[str, object]:
    costs = {clients: step_costs(build, clients) for clients in (1, 16, 64)}
    found: dict[str, object] = {"ms": {clients: asdict(cost) for clients, cost in costs.items()}}
    for name, sampling in SETTINGS.items():
        seen = traces(build, prompts, TOKENS, LONGEST, sampling)
        learnt_from, judged = ([one for trace in seen[half::2] for one in trace.rounds] for half in (0, 1))
        rates = acceptance(learnt_from)
        learnt = [[math.log(rates[place(math.exp(value))]) for value in one.log_probs] for one in judged]
        product = [one.log_probs for one in judged]
        found[name] = {
            "rounds": len(judged),
            "accepted by the token's probability": table(acceptance(learnt_from + judged)),
            "accepted by the product": table(reached(learnt_from + judged)),
            "expected tokens, cut at a product of 0.05": estimates(judged, 0.05),
            "tokens/s, cut / not": {
                f"{clients} at once": gains(judged, {"product": product, "learnt": learnt}, cost)
                for clients, cost in costs.items()
            },
        }
    return found


def kept(log_probs: Sequence[float], least: float) -> int:
    """Returns how many tokens stand before the first whose product is under `least`."""
    total, floor = 0.0, math.log(least) if least else -math.inf
    for number, value in enumerate(log_probs):
        total += value
        if total < floor:
            return number
    return len(log_probs)


def acceptance(rounds: Sequence[Round]) -> list[float]:
    """Returns the share of accepted tokens among those that were reached, by their own probability."""
    counts = [[1, 2] for _ in EDGES[1:]]
    for one in rounds:
        for position, value in enumerate(one.log_probs[: one.accepted + 1]):
            count = counts[place(math.exp(value))]
            count[0] += position < one.accepted
            count[1] += 1
    return [accepted / of for accepted, of in counts]


def reached(rounds: Sequence[Round]) -> list[float]:
    """Returns the share of accepted tokens among all, by the product of the probabilities up to theirs."""
    counts = [[1, 2] for _ in EDGES[1:]]
    for one in rounds:
        for position in range(len(one.log_probs)):
            count = counts[place(math.exp(sum(one.log_probs[: position + 1])))]
            count[0] += position < one.accepted
            count[1] += 1
    return [accepted / of for accepted, of in counts]


def place(probability: float) -> int:
    return next(number for number, edge in enumerate(EDGES[1:]) if probability < edge)


def table(rates: Sequence[float]) -> dict[str, float]:
    return {f"from {edge}": round(rate, 2) for edge, rate in zip(EDGES[:-1], rates, strict=True)}


def gains(
    rounds: Sequence[Round], chances: dict[str, list[list[float]]], costs: StepCosts
) -> dict[str, object]:
    """Returns what the best cut brings where K is fixed, and where K is the best one too."""

    def rate(length: int, chance: list[list[float]] | None = None, least: float = 0.0) -> float:
        tokens = rows = 0
        for number, one in enumerate(rounds):
            width = kept(chance[number][:length], least) if chance else length
            tokens += min(one.accepted, width) + 1
            rows += width + 1
        mean = rows / len(rounds)
        return tokens / len(rounds) / costs.round(length, mean, with_log_probs=chance is not None)

    lengths = range(1, LONGEST + 1)
    alone, uncut = 1 / (costs.base + costs.row), {length: rate(length) for length in lengths}
    best = max(lengths, key=lambda length: uncut[length])
    found: dict[str, object] = {"alone / best K": round(alone / uncut[best], 3), "best K": best}
    for name, chance in chances.items():
        cut = {length: max((rate(length, chance, least), least) for least in LEASTS) for length in lengths}
        found[name] = {
            **{f"K = {length}": round(cut[length][0] / uncut[length], 3) for length in (4, 8)},
            "best K": round(max(cut.values())[0] / max(alone, uncut[best]), 3),
            "best least": round(max(cut.values())[1], 3),
        }
    return found


def estimates(rounds: Sequence[Round], least: float) -> dict[str, float]:
    """Returns the tokens of a cut round of K = `LONGEST`, and what the rates of positions make of them."""
    widths = [kept(one.log_probs, least) for one in rounds]
    accepted = [min(one.accepted, width) for one, width in zip(rounds, widths, strict=True)]

    def expected(tried: Callable[[int, int], bool]) -> float:
        total = survives = 1.0
        for position in range(LONGEST):
            at = [
                n
                for n, width in zip(accepted, widths, strict=True)
                if n >= position and tried(position, width)
            ]
            survives *= sum(n > position for n in at) / max(len(at), 1)
            total += survives
        return round(total, 2)

    return {
        "in fact": round(1 + sum(accepted) / len(accepted), 2),
        "what is cut left out": expected(lambda position, width: position < width),
        "what is cut counted as rejected": expected(lambda position, width: True),
    }


class Cut(Around):
    """The draft engine, whose proposals end before a product under `least`."""

    def __init__(self, engine: TorchExecutor, least: float) -> None:
        super().__init__(engine)
        self._least = least

    def enqueue_request(self, request: Request, listener: Listener) -> int:
        def listen(response: Response) -> None:
            width = kept([said.value for said in response.log_probs or ()], self._least)
            listener(replace(response, token_ids=response.token_ids[:width], log_probs=None))

        return super().enqueue_request(replace(request, return_log_probs=True), listen)


class CutLengths(AdaptiveLengths):
    """Counts the first token that was cut as rejected, so that K is judged by what it brings once cut."""

    def verified(self, origin: str, counts: VerificationCounts, load: int, now: float) -> None:
        if counts.num_accepted == counts.num_verified < self._length:
            counts = VerificationCounts(counts.num_verified + 1, counts.num_accepted)
        super().verified(origin, counts, load, now)


class CutPolicy(AdaptivePolicy):
    def lengths(self, kind: int = 0) -> AdaptiveLengths:
        return CutLengths(self, kind)


def speeds(build: Path, options: argparse.Namespace) -> dict[str, object]:
    ways = {name: way(build, name) for name in options.ways}
    phase = Phase("", options.clients, options.temperature)
    for one in ways.values():
        one.enter(phase)
        one.run_for(3)
        one.tokens = 0
    for turn in range(options.seconds):
        for one in list(ways.values())[:: 1 if turn % 2 else -1]:
            one.run_for(1)
    return {
        "clients": options.clients,
        "temperature": options.temperature,
        "tokens_per_second": {name: round(one.tokens / options.seconds, 1) for name, one in ways.items()},
    }


def way(build: Path, name: str) -> Way:
    length, _, least = name.partition(":")
    altered: Callable[[TorchExecutor], Executor] = partial(Cut, least=float(least)) if least else as_it_is
    made = Way(build, None if length == "adaptive" else int(length), altered)
    if least and length == "adaptive":
        made.coordinator._policy = CutPolicy(LONGEST, {})
    return made


def as_it_is(engine: TorchExecutor) -> Executor:
    return engine


if __name__ == "__main__":
    main()
