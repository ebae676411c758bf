"""The tiny pair's gain as forecast from a short calibration run, beside the gain that is measured.

    python -m tests.perf.forecast [--prompts 20] [--pieces 3]

Everything runs in one process with one stream on one thread. A piece of text, some 32 tokens, is said plainly
and with drafts of each length, one way after the other, forwards and backwards in turn, and then the next
piece of it. Every other piece is of the calibration run, which has drafts of 1, 4 and 8 tokens, and times
steps, drafts, verifications and rounds, of which `trtspec.forecast.fit` makes costs; the pieces between are
measured with drafts of 1 to 8 tokens. So both meet texts of one kind, and what else the machine does at the
time. A time is the mean of all, but for the first output of a piece. The spread is that of a bootstrap over
prompts. JSON on stdout, the bars on stderr; the exit status is 1 where one is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import aclosing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import mean

from tests.perf.bar import Bar
from tests.perf.pair import built, heldout, machine
from trtspec.forecast.fit import FittedSeconds, fit
from trtspec.forecast.speedup import speedup
from trtspec.serving.assembly import assemble
from trtspec.serving.completion import NO_END, CompletionRequest
from trtspec.serving.executor import Executor, KvReuse, Limits, Listener, Request, Response
from trtspec.serving.executors.torch.device_thread import DeviceThread
from trtspec.serving.executors.torch.torch_executor import TorchExecutor
from trtspec.serving.tokenizer import Tokenizer

LONGEST = 8
LENGTHS = range(1, LONGEST + 1)
PIECE = 32
CALIBRATED = (1, 4, 8)
OFF_BY = 0.15


class Timed(Executor):
    """An engine whose requests are timed from their beginning to their last response, while `is_timed`.

    `seconds` has them by the length of the draft: that is asked of a draft engine, or that a target verifies.
    """

    def __init__(self, engine: TorchExecutor) -> None:
        self._engine, self.is_timed = engine, False
        self.seconds: dict[int, list[float]] = defaultdict(list)

    @property
    def limits(self) -> Limits:
        return self._engine.limits

    @property
    def kv_tokens(self) -> int | None:
        return self._engine.kv_tokens

    def take_kv_use(self) -> float | None:
        return self._engine.take_kv_use()

    @property
    def kv_reuse(self) -> KvReuse | None:
        return self._engine.kv_reuse

    @property
    def progress(self) -> int:
        return self._engine.progress

    @property
    def failure(self) -> str | None:
        return self._engine.failure

    def enqueue_request(self, request: Request, listener: Listener) -> int:
        begin = time.perf_counter()
        drafts = request.draft_token_ids
        length = len(drafts) if drafts else request.max_tokens

        def listen(response: Response) -> None:
            if self.is_timed and response.is_final and (drafts or self.limits.max_draft_len == 0):
                self.seconds[length].append(time.perf_counter() - begin)
            listener(response)

        return self._engine.enqueue_request(request, listen)

    def cancel_request(self, request_id: int) -> None:
        self._engine.cancel_request(request_id)

    def shutdown(self) -> None:
        self._engine.shutdown()


@dataclass
class Said:
    """The tokens of each output and the seconds that it took, without those of the first, and the text."""

    text: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)


class Pair:
    """The engines of the tiny pair behind one coordinator."""

    def __init__(self, build: Path) -> None:
        device_thread = DeviceThread(lambda: 1)
        self.target, self.draft = (
            Timed(TorchExecutor(build / role / "engine", device_thread=device_thread))
            for role in ("target", "draft")
        )
        self.tokenizer = Tokenizer.load(build / "tokenizer")
        self._loop = asyncio.new_event_loop()
        self._coordinator = assemble(self.target, self.draft, self.tokenizer)

    def say(self, prompt: list[int], length: int) -> Said:
        """Returns how a piece was said; the first output is left out, since it may read the prompt."""
        return self._loop.run_until_complete(self._say(prompt, length))

    async def _say(self, prompt: list[int], length: int) -> Said:
        request = CompletionRequest(
            prompt_token_ids=prompt, max_tokens=PIECE + 4 * LONGEST, num_draft_tokens=length, end_id=NO_END
        )
        said, before = Said(), 0.0
        async with aclosing(self._coordinator.stream(request)) as stream:
            async for delta in stream:
                now = time.perf_counter()
                said.text += delta.token_ids
                if before:
                    said.seconds.append(now - before)
                    said.tokens.append(len(delta.token_ids))
                if len(said.text) > PIECE:
                    break
                before = now
        return said


Told = dict[int, list[Said]]
"""What was said of one prompt, a piece after another, by the length of the drafts."""


def tell(pair: Pair, prompt: list[int], pieces: int) -> tuple[Told, Told]:
    """Returns the pieces of the calibration run, and those between."""
    calibrated: Told = {length: [] for length in (0, *CALIBRATED)}
    measured: Told = {length: [] for length in (0, *LENGTHS)}
    for number in range(pieces):
        for told in (calibrated, measured):
            pair.target.is_timed = pair.draft.is_timed = told is calibrated
            for length in told if number % 2 == 0 else reversed(told):
                told[length].append(pair.say(prompt, length))
            assert len({tuple(said[-1].text[:PIECE]) for said in told.values()}) == 1
            prompt = prompt + told[0][-1].text[:PIECE]
    return calibrated, measured


def main() -> int:
    options = parse()
    with tempfile.TemporaryDirectory() as folder:
        pair = Pair(built(Path(folder), "float32"))
        texts = heldout(1 + options.prompts)
        warm_up, *prompts = (pair.tokenizer.encode(text) for text in texts)
        tell(pair, warm_up, 1)
        told = []
        for number, prompt in enumerate(prompts, 1):
            told.append(tell(pair, prompt, options.pieces))
            print(f"prompt {number}/{len(prompts)}", file=sys.stderr)
    calibrated, measured = [one for one, _ in told], [other for _, other in told]
    acceptance, calibration = accepted(calibrated), times(pair, calibrated)
    costs = fit(calibration)
    lengths = {length: compared(measured, length, speedup(acceptance[:length], costs)) for length in LENGTHS}
    off = {length: round(abs(row["forecast / measured"] - 1), 3) for length, row in lengths.items()}
    found = [
        Bar(f"forecast / measured - 1, K = {length}", much, OFF_BY, False) for length, much in off.items()
    ]
    result = {
        "machine": machine(),
        "acceptance": [round(value, 3) for value in acceptance],
        "costs": asdict(costs),
        "calibration_ms": in_ms(calibration),
        "best_length": {
            "forecast": max(
                range(len(acceptance) + 1), key=lambda length: speedup(acceptance[:length], costs)
            ),
            "measured": max(lengths, key=lambda length: lengths[length]["measured"]),
        },
        "lengths": {str(length): row for length, row in lengths.items()},
        "bars": [asdict(bar) for bar in found],
    }
    json.dump(result, sys.stdout, indent=2)
    print()
    print(*found, sep="\n", file=sys.stderr)
    return 0 if all(bar.is_met for bar in found) else 1


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prompts", type=int, default=20)
    parser.add_argument("--pieces", type=int, default=3)
    return parser.parse_args()


def accepted(told: list[Told]) -> list[float]:
    """Returns how likely each position is accepted where those before it were."""
    reached, found = [0] * LONGEST, [0] * LONGEST
    for length in CALIBRATED:
        for tokens in (tokens for one in told for said in one[length] for tokens in said.tokens):
            for position in range(min(tokens, length)):
                reached[position] += 1
                found[position] += position < tokens - 1
    return [a / b for a, b in zip(found, reached, strict=True)]


def times(pair: Pair, told: list[Told]) -> FittedSeconds:
    return FittedSeconds(
        output_s(told, 0),
        {length: output_s(told, length) for length in CALIBRATED},
        {length: mean(pair.draft.seconds[length]) for length in CALIBRATED},
        {length: mean(pair.target.seconds[length]) for length in CALIBRATED},
    )


def output_s(told: list[Told], length: int) -> float:
    """Returns the mean seconds of an output."""
    return mean(seconds for one in told for said in one[length] for seconds in said.seconds)


def compared(told: list[Told], length: int, forecast: float) -> dict[str, float]:
    """Returns what was forecast and measured of a length, with the 5th and 95th percentile of the latter."""
    choose = random.Random(0)
    again = sorted(gain(choose.choices(told, k=len(told)), length) for _ in range(500))
    measured = gain(told, length)
    found = {
        "forecast": forecast,
        "measured": measured,
        "low": again[25],
        "high": again[474],
        "forecast / measured": forecast / measured,
        "tokens_a_round": tokens_a_round(told, length),
    }
    return {name: round(value, 3) for name, value in found.items()}


def gain(told: list[Told], length: int) -> float:
    """Returns the tokens a second with drafts of that length over those without."""
    return tokens_a_round(told, length) * output_s(told, 0) / output_s(told, length)


def tokens_a_round(told: list[Told], length: int) -> float:
    return mean(tokens for one in told for said in one[length] for tokens in said.tokens)


def in_ms(calibration: FittedSeconds) -> dict[str, object]:
    return {
        "plain": round(calibration.plain_s * 1000, 3),
        **{
            name: {str(length): round(seconds * 1000, 3) for length, seconds in times.items()}
            for name, times in (
                ("drafts", calibration.drafts),
                ("verifications", calibration.verifications),
                ("rounds", calibration.rounds),
            )
        },
    }


if __name__ == "__main__":
    sys.exit(main())
