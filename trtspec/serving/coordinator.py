"""The coordinator, which runs the rounds of speculative decoding for many requests at once.

It knows rounds, slots and deadlines. A `Feature` stands around the streams of the requests that use it;
`assembly.py` has all of them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

from trtspec.serving.adaptive.estimates import kind_of
from trtspec.serving.adaptive.policy import AdaptivePolicy, Policy
from trtspec.serving.admission import AdmissionQueue, ServingBounds
from trtspec.serving.async_executor import AsyncExecutor, Liveness
from trtspec.serving.completion import CompletionRequest, Delta, EndReason
from trtspec.serving.drafters.source import DraftSource
from trtspec.serving.errors import Cancelled, EngineFailure, EngineTimedOut, TimedOut
from trtspec.serving.executor import Executor, Request
from trtspec.serving.intake import begin, is_long
from trtspec.serving.rounds import DraftLengths, FixedLengths, Rounds
from trtspec.serving.state import CompletionState
from trtspec.serving.stats import Stats
from trtspec.serving.text import Text, common_prefix
from trtspec.serving.tokenizer import Tokenizer

MAX_FAILURES = 8
"""After this many consecutive errors of the target, a probe checks whether it serves any request."""
CHECK_S = 0.05
"""The seconds between two checks of deadlines while there are requests."""

Deltas = AsyncGenerator[Delta, None]


@dataclass(slots=True, eq=False)
class CompletionCall:
    """A request for one completion, and what the coordinator and the features know of it.

    Times are on the loop's clock.
    """

    request: CompletionRequest
    arrived: float
    deadline: float
    state: CompletionState | None = None
    """None before `Coordinator.begin`."""
    around_rounds: list[Callable[[Deltas], Deltas]] = field(default_factory=list)
    """What features put around the rounds, which begin once there is a slot; the outermost comes first."""


Stream = Callable[[CompletionCall], Deltas]


class Feature(Protocol):
    """Something that only some requests use."""

    def concerns(self, request: CompletionRequest) -> bool:
        """Says whether a request uses it, when the request arrives. The streams of others do without it."""

    def around(self, coordinator: Coordinator, stream: Stream, call: CompletionCall) -> Deltas:
        """Yields what `stream` yields for the call, or for other calls."""

    def reap(self, now: float) -> None:
        """Ends what has passed its deadline, periodically."""
        return


class Coordinator:
    """Completes prompts with the `target` of the `engines`, which have names, and drafts of the `source`.

    Without a source the target decodes alone. `num_draft_tokens` is the K of requests that name none. With
    None it is the target's `max_draft_len`, which the adaptive `policy` lowers from round to round by
    acceptance and load. The first of the `features` is the innermost around a stream.

    All methods are called on the thread of one asyncio loop. Any thread may read `stats` and `failure`.
    """

    def __init__(
        self,
        engines: Mapping[str, Executor],
        source: DraftSource | None,
        tokenizer: Tokenizer,
        bounds: ServingBounds,
        stats: Stats,
        num_draft_tokens: int | None = None,
        policy: Policy = "fixed",
        features: Sequence[Feature] = (),
    ) -> None:
        target = engines["target"]
        self.bounds, self.limits, self.stats = bounds, target.limits, stats
        self._queue = AdmissionQueue(bounds)
        self._engines, self._source, self._features = engines, source, features
        self._target, self._liveness = AsyncExecutor(target), Liveness(target, bounds.target_timeout_s)
        self._tokenizer, self._texts = tokenizer, TenantTexts()
        self._num_draft_tokens = num_draft_tokens
        schedule, longest = bounds.draft_schedule, target.limits.max_draft_len
        self._policy = AdaptivePolicy(longest, schedule) if policy == "adaptive" else None
        self._fixed = FixedLengths(schedule)
        self._num_present = 0
        self._check: asyncio.Handle | None = None
        self._probe: asyncio.Task[None] | None = None
        self._note_kv_use()

    @property
    def failure(self) -> str | None:
        """The reason why no completion can succeed any more, in one line; None while they can."""
        return self._liveness.failure

    def close(self, why: str) -> None:
        """Refuses waiting and new completions with `Busy` and `why`; running ones go on."""
        self._queue.close(why)

    def stream(self, request: CompletionRequest) -> Deltas:
        """Yields a `Delta` for each round. The last one of each sequence has its `Completion`.

        Iterating raises `RequestError` or `Busy` before anything runs, or when the target cannot follow the
        guide, at all or now. It raises `TimedOut` when the deadline passes, `EngineFailure` when the target
        fails and `Cancelled` when it ends the request by itself. Closing the generator, or cancelling the
        task that iterates it, cancels the requests on both engines.
        """
        stream: Stream = self._run
        for feature in self._features:
            if feature.concerns(request):
                stream = partial(feature.around, self, stream)
        if request.num_draft_tokens is None:
            request = replace(request, num_draft_tokens=self._num_draft_tokens)
        now = asyncio.get_running_loop().time()
        timeout_s = self.bounds.default_timeout_s if request.timeout_s is None else request.timeout_s
        return stream(CompletionCall(request, now, now + timeout_s))

    async def complete(self, request: CompletionRequest) -> Delta:
        """Returns one completion as a single `Delta`; raises as `stream` does."""
        async with aclosing(self.stream(request)) as stream:
            deltas = [delta async for delta in stream]
        text = "".join(delta.text for delta in deltas)
        token_ids = [token_id for delta in deltas for token_id in delta.token_ids]
        log_probs = [value for delta in deltas for value in delta.log_probs or ()]
        return Delta(text, token_ids, deltas[-1].completion, log_probs if request.return_log_probs else None)

    async def _run(self, call: CompletionCall) -> Deltas:
        """Runs one completion: its state, its slot, and its rounds."""
        with self.present():
            state, tenant = await self.begin(call), call.request.tenant
            timeline = Timeline(self.stats, call.arrived, asyncio.get_running_loop().time)
            needed = state.num_input_tokens + state.max_tokens + self.limits.max_draft_len
            try:
                async with self._queue.slot(needed, call.deadline):
                    self._count()
                    timeline.begin(state.num_input_tokens)
                    own = self._texts.begin(tenant, state.text)
                    async with aclosing(self._deltas(call, state)) as deltas:
                        async for delta in deltas:
                            timeline.add(delta)
                            if (end := delta.completion) is not None:
                                cached = self._texts.end(tenant, state.text, own, end.num_cached_tokens)
                                delta = replace(delta, completion=replace(end, num_cached_tokens=cached))
                            yield delta
            except EngineTimedOut:
                raise TimedOut(f"at token {state.num_output_tokens} of {state.max_tokens}") from None

    async def begin(self, call: CompletionCall) -> CompletionState:
        """Returns the state of a completion, and makes it at first; raises `RequestError` or `Busy`.

        It tokenizes a long request on a thread, so that the loop goes on with other rounds.
        """
        self._queue.check()
        if call.state is None:
            work = partial(begin, call.request, self.limits, self._tokenizer)
            call.state = await asyncio.to_thread(work) if is_long(call.request) else work()
        return call.state

    def _deltas(self, call: CompletionCall, state: CompletionState) -> Deltas:
        drafter = self._source.drafter(state.text, call.request.tenant) if self._source else None
        lengths: DraftLengths = self._fixed
        if self._policy and call.request.num_draft_tokens is None:
            lengths = self._policy.lengths(kind_of(state.sampling))
        deltas = Rounds(state, self._target, drafter, lengths, self.stats).run(call.deadline)
        for around in reversed(call.around_rounds):
            deltas = around(deltas)
        return deltas

    @contextmanager
    def present(self) -> Iterator[None]:
        """Counts a completion that runs or waits, for the block, in which deadlines are checked."""
        self._num_present += 1
        self._count()
        if self._check is None:
            self._tick()
        try:
            yield
        finally:
            self._num_present -= 1
            self._count()

    def _count(self) -> None:
        self.stats.running = self._queue.running
        self.stats.waiting = self._num_present - self._queue.running

    def _note_kv_use(self) -> None:
        for name, engine in self._engines.items():
            if (use := engine.take_kv_use()) is not None:
                self.stats.kv_use[name] = use if self._num_present else 0.0
            if (reuse := engine.kv_reuse) is not None:
                self.stats.kv_reuse[name] = reuse

    def _tick(self) -> None:
        """Ends whatever takes too long: a silent engine would hold its completions for ever."""
        loop = asyncio.get_running_loop()
        now, self._check = loop.time(), None
        self._liveness.look(now, self._target.is_busy)
        if self._target.failures_in_a_row >= MAX_FAILURES and self._probe is None:
            self._probe = loop.create_task(self._send_probe(now + self.bounds.target_timeout_s))
        if self.failure is not None:
            self._queue.close(self.failure)
            self._target.fail(self.failure)
        self._target.reap(now)
        if self._source:
            self._source.reap(now)
        for feature in self._features:
            feature.reap(now)
        self._queue.reap(now)
        self.stats.longest_wait_s = self._queue.longest_wait(now)
        self._note_kv_use()
        if self._num_present or self._probe:
            self._check = loop.call_later(CHECK_S, self._tick)

    async def _send_probe(self, deadline: float) -> None:
        """Sends the target a request that no target refuses. If it fails too, the target is lost."""
        try:
            await self._target.answer(Request([0], max_tokens=1), deadline)
        except (EngineFailure, Cancelled) as failure:
            self._liveness.lose(f"the target fails every request: {failure}")
        finally:
            self._probe = None


class Timeline:
    """Records the times of one completion: its slot, its first tokens, its later outputs and its end.

    `arrived` is the arrival of its request, in seconds of `clock`. The time between two outputs is one value
    for any number of tokens in the second, as in vLLM's metrics, because that is the wait of a client.
    """

    __slots__ = ("_arrived", "_clock", "_last", "_stats")

    def __init__(self, stats: Stats, arrived: float, clock: Callable[[], float]) -> None:
        self._stats, self._arrived, self._clock, self._last = stats, arrived, clock, 0.0

    def begin(self, num_input_tokens: int) -> None:
        """Records that the completion has its slot."""
        self._stats.prompt_tokens += num_input_tokens
        self._stats.queue_time.observe(self._clock() - self._arrived)

    def add(self, delta: Delta) -> None:
        """Records the output of a round or burst."""
        stats, now = self._stats, self._clock()
        if count := len(delta.token_ids):
            stats.generation_tokens += count
            if self._last:
                stats.inter_token_latency.observe(now - self._last)
            else:
                stats.time_to_first_token.observe(now - self._arrived)
            self._last = now
        if delta.completion is not None:
            stats.ended["length" if delta.completion.end_reason is EndReason.LENGTH else "stop"] += 1
            stats.e2e_latency.observe(now - self._arrived)


class TenantTexts:
    """The latest sequences of each tenant, so that none learns what others have in the KV cache.

    All tenants share that cache. So of the tokens that the cache had for a request, only those are reported
    that also began an earlier sequence of its tenant. While all requests are of one tenant, all are reported,
    and nothing is stored. The sequences are `most` at most, with `most_tokens` tokens in all.
    """

    def __init__(self, most: int = 500, most_tokens: int = 2_000_000) -> None:
        self._most, self._most_bytes = most, 4 * most_tokens
        self._texts: deque[tuple[str, bytes]] = deque()
        self._num_bytes, self._are_several = 0, False
        self._first: str | None = None

    def begin(self, tenant: str, text: Text) -> int | None:
        """Returns how many tokens of `text` began an earlier one of the tenant; None for the only tenant."""
        if self._first is None:
            self._first = tenant
        self._are_several |= tenant != self._first
        if not self._are_several:
            return None
        packed, same = bytes(text.packed(len(text))), 0
        token = packed[:4]
        for other, earlier in self._texts:
            # Hundreds may share a prefix, so only those are compared that may have a longer one.
            if other == tenant and earlier.startswith(token, same):
                found = common_prefix(earlier, packed, min(len(earlier), len(packed))) // 4 * 4
                if found > same:
                    same, token = found, packed[found : found + 4]
        return same // 4

    def end(self, tenant: str, text: Text, own: int | None, cached: int | None) -> int | None:
        """Stores a finished sequence; returns the number of `cached` tokens to report, None for nothing.

        `own` is the result of `begin`.
        """
        if not self._are_several:
            return cached
        # The engine has not computed the last token.
        self._texts.append((tenant, bytes(text.packed(len(text) - 1))))
        self._num_bytes += len(self._texts[-1][1])
        while self._num_bytes > self._most_bytes or len(self._texts) > self._most:
            self._num_bytes -= len(self._texts.popleft()[1])
        return None if own is None or cached is None else min(own, cached)
