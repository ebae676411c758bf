"""What the coordinator costs; prints JSON.

Engines take 0.5 ms a draft token and 10 ms a verification, whatever is in flight beside it.
`us_a_round`: nobody waits for them, the loop's clock is put forward instead; so all time is the coordinator's
and asyncio's own. It must not depend on how long the text is. `adaptive`: the policy chooses K, 4 at most;
what it tries in between without a draft is counted, but not as rounds.
`share_of_ideal`: they are waited for; the ideal is their time alone. `tokens_per_s` is of the same run.
Agreement is 0.7, and K 4.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import json
import random
import threading
import time
from collections.abc import Callable
from statistics import mean

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from trtspec.serving.adaptive.policy import Policy
from trtspec.serving.assembly import assemble
from trtspec.serving.completion import NO_END, Completion, CompletionRequest
from trtspec.serving.executor import FinishReason, KvReuse, Limits, Listener, Request, Response
from trtspec.serving.tokenizer import Tokenizer

NUM_DRAFT_TOKENS = 4
AGREEMENT = 0.7
DICE = 9973
"""Throws before they repeat themselves: a prime, so that rounds do not repeat with them."""
DRAFT_TOKEN_S = 0.0005
VERIFICATION_S = 0.010
PROMPT = "def fibonacci(n):\n"


class Clock:
    """Calls back after a time, more exactly than the millisecond of asyncio's own timers."""

    def __init__(self) -> None:
        self._due: list[tuple[float, int, Callable[[], object]]] = []
        self._order = itertools.count()
        self._changed = threading.Condition()
        threading.Thread(target=self._run, daemon=True).start()

    def after(self, seconds: float, loop: asyncio.AbstractEventLoop, call: Callable[[], object]) -> None:
        def call_there() -> None:
            loop.call_soon_threadsafe(call)

        with self._changed:
            heapq.heappush(self._due, (time.perf_counter() + seconds, next(self._order), call_there))
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._due:
                    self._changed.wait()
                wait = self._due[0][0] - time.perf_counter()
                if wait > 0:
                    self._changed.wait(wait)
                    continue
                call = heapq.heappop(self._due)[2]
            call()


class SkippingClock:
    """Calls back at once, and puts the clock of the event loop forward instead."""

    def __init__(self) -> None:
        self._skipped = 0.0

    def rule(self, loop: asyncio.AbstractEventLoop) -> None:
        """Makes it the loop's clock; what has asked the loop for its clock before keeps that one."""
        setattr(loop, "time", self._time)  # noqa: B010  mypy takes no assignment to a method

    def after(self, seconds: float, loop: asyncio.AbstractEventLoop, call: Callable[[], object]) -> None:
        if not self._skipped:
            self.rule(loop)
        self._skipped += seconds
        loop.call_soon(call)

    def _time(self) -> float:
        return time.monotonic() + self._skipped


class TimedEngine:
    """Says random tokens; as a target it agrees with each draft token by `AGREEMENT`.

    It takes `seconds` for a step and `seconds_a_token` for each token.
    """

    def __init__(
        self, limits: Limits, clock: Clock | SkippingClock, seconds_a_token: float, seconds: float
    ) -> None:
        self.limits = limits
        self.kv_tokens: int | None = None
        self.failure: str | None = None
        self.progress = 0
        self._clock, self._seconds_a_token, self._seconds = clock, seconds_a_token, seconds
        # Dice that are thrown before: a round's own time is that of the coordinator, not of this engine.
        dice = random.Random(0)
        self._tokens = itertools.cycle([dice.randrange(1, 255) for _ in range(DICE)])
        self._agrees = itertools.cycle([dice.random() < AGREEMENT for _ in range(DICE)])
        self._ids = itertools.count()

    def take_kv_use(self) -> float | None:
        return None

    @property
    def kv_reuse(self) -> KvReuse | None:
        return None

    def enqueue_request(self, request: Request, listener: Listener) -> int:
        request_id = next(self._ids)
        self.progress += 1
        response = Response(request_id, self._say(request), True, FinishReason.LENGTH)
        steps = 1 if request.draft_token_ids else len(response.token_ids)
        seconds = self._seconds * steps + self._seconds_a_token * len(response.token_ids)
        self._clock.after(seconds, asyncio.get_running_loop(), lambda: listener(response))
        return request_id

    def cancel_request(self, request_id: int) -> None: ...

    def shutdown(self) -> None: ...

    def _say(self, request: Request) -> list[int]:
        if not request.draft_token_ids:
            return list(itertools.islice(self._tokens, request.max_tokens))
        accepted = 0
        while accepted < len(request.draft_token_ids) and next(self._agrees):
            accepted += 1
        said = [*request.draft_token_ids[:accepted], next(self._tokens)]
        if accepted < len(request.draft_token_ids) and said[-1] == request.draft_token_ids[accepted]:
            said[-1] = 1 + said[-1] % 255
        return said


def byte_tokenizer() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = tokenizers.Tokenizer(models.BPE(vocab={char: i for i, char in enumerate(alphabet)}, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    return Tokenizer(inner)


async def measure(
    clock: Clock | SkippingClock,
    streams: int,
    max_tokens: int,
    prompt_tokens: int | None = None,
    policy: Policy = "fixed",
) -> dict[str, float]:
    """`prompt_tokens` None is the short prompt, as text."""
    if isinstance(clock, SkippingClock):
        clock.rule(asyncio.get_running_loop())
    longest = 8192 if prompt_tokens is None else prompt_tokens + max_tokens + 9
    limits = Limits(64, longest, longest, max_draft_len=NUM_DRAFT_TOKENS, vocab_size=256)
    target = TimedEngine(limits, clock, 0.0, VERIFICATION_S)
    draft = TimedEngine(limits, clock, DRAFT_TOKEN_S, 0.0)
    coordinator = assemble(target, draft, byte_tokenizer(), policy=policy)
    request = CompletionRequest(
        PROMPT if prompt_tokens is None else None,
        None if prompt_tokens is None else [1] * prompt_tokens,
        max_tokens=max_tokens,
        stop=("\n\n\n",),
        end_id=NO_END,
    )

    async def one() -> tuple[Completion, float]:
        begin = time.perf_counter()
        delta = await coordinator.complete(request)
        assert delta.completion is not None
        return delta.completion, time.perf_counter() - begin

    begin = time.perf_counter()
    completions = await asyncio.gather(*(one() for _ in range(streams)))
    seconds = time.perf_counter() - begin
    rounds = sum(completion.speculation.num_spec_steps for completion, _ in completions)
    tokens = sum(completion.num_output_tokens for completion, _ in completions)
    return {
        "us_a_round": round(seconds / rounds * 1e6, 1),
        "tokens_per_s": round(tokens / seconds, 1),
        "share_of_ideal": round(mean(_ideal_s(completion) / took for completion, took in completions), 3),
    }


def _ideal_s(completion: Completion) -> float:
    """What the engines alone take; the rounds' tokens leave at most one request for the target alone."""
    counts = completion.speculation
    in_rounds = counts.num_spec_steps + counts.num_accepted_draft_tokens
    verifications = counts.num_spec_steps + (completion.num_output_tokens > in_rounds)
    return verifications * VERIFICATION_S + counts.num_draft_tokens * DRAFT_TOKEN_S


def main() -> None:
    clock = Clock()
    results: dict[str, dict[str, float]] = {}
    for streams in (1, 32):
        instant = [asyncio.run(measure(SkippingClock(), streams, 2048)) for _ in range(5)]
        chosen = [asyncio.run(measure(SkippingClock(), streams, 2048, policy="adaptive")) for _ in range(5)]
        timed = asyncio.run(measure(clock, streams, 512))
        results[f"{streams} streams"] = {
            "us_a_round": min(run["us_a_round"] for run in instant),
            "us_a_round, adaptive": min(run["us_a_round"] for run in chosen),
            "tokens_per_s": timed["tokens_per_s"],
            "share_of_ideal": timed["share_of_ideal"],
        }
    for length in (1024, 131072):
        runs = [asyncio.run(measure(SkippingClock(), 1, 2048, length)) for _ in range(5)]
        results[f"1 stream after {length} tokens"] = {"us_a_round": min(run["us_a_round"] for run in runs)}
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
