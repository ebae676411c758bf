"""The coordinator, which runs the rounds of speculative decoding for many requests at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from functools import partial

from trtspec.serving.adaptive.acceptance import kind_of
from trtspec.serving.adaptive.policy import AdaptivePolicy, Pace, Policy
from trtspec.serving.admission import AdmissionQueue, ServingBounds
from trtspec.serving.async_executor import AsyncExecutor, Liveness
from trtspec.serving.awaiting import interleave, within
from trtspec.serving.completion import CompletionRequest, Delta
from trtspec.serving.drafters.source import DRAFT_MODEL, Drafting, DraftSource
from trtspec.serving.drafters.sources import SourceInputs, make_source
from trtspec.serving.drafters.translation import Dictionary, draw_alike
from trtspec.serving.errors import Busy, Cancelled, EngineFailure, GuideError, Overdue, RequestError, TimedOut
from trtspec.serving.executor import GUIDE_REFUSED, GUIDE_WAITS, Executor, Guide, GuideType, Request
from trtspec.serving.guides.guides import Guides
from trtspec.serving.intake import begin, is_long
from trtspec.serving.rollout.rollout import Rollout, Shadow
from trtspec.serving.rollout.state import SHADOW, SPECULATE
from trtspec.serving.rounds import Rounds
from trtspec.serving.state import CompletionState, of_sequence
from trtspec.serving.stats import ArmStats, Stats
from trtspec.serving.text import TenantTexts
from trtspec.serving.timeline import Timeline
from trtspec.serving.tokenizer import Tokenizer

MAX_FAILURES = 8
"""After this many consecutive errors of the target, a probe checks whether it serves any request."""
ALLOWED_GUIDES = {
    GuideType.JSON: "left out for the type json",
    GuideType.JSON_SCHEMA: "a JSON schema that xgrammar can read",
    GuideType.REGEX: "a regular expression that xgrammar can read",
    GuideType.EBNF_GRAMMAR: "a grammar in EBNF with a rule named root",
    GuideType.STRUCTURAL_TAG: "a structural tag of xgrammar, in JSON",
}
CHECK_S = 0.05
"""The seconds between two checks of deadlines while there are requests."""


class Coordinator:
    """Completes prompts with a `target` engine and a source of drafts.

    `drafting` names the source; None is the `draft` engine. Without either the target decodes alone. A draft
    with another vocabulary needs its `draft_tokenizer`. `num_draft_tokens` is the K of requests that name
    none. With None it is the target's `max_draft_len`, which the adaptive `policy` lowers from round to round
    by acceptance and load. `bounds` None lets as many completions run as the target's batch holds. With
    `guides` a broken guide is refused before anything runs. `share`, 0 to 1, is the share of the requests
    without K that have drafts; `rollout` may change it.

    All methods are called on the thread of one asyncio loop. Any thread may read `stats` and `failure`.
    """

    def __init__(
        self,
        target: Executor,
        draft: Executor | None,
        tokenizer: Tokenizer,
        num_draft_tokens: int | None = None,
        bounds: ServingBounds | None = None,
        drafting: Drafting | None = None,
        policy: Policy = "fixed",
        guides: Guides | None = None,
        share: float = 1.0,
        draft_tokenizer: Tokenizer | None = None,
    ) -> None:
        self._bounds = bounds or ServingBounds(target.limits.max_batch_size)
        self.stats = Stats(self._bounds.max_places, self._bounds.max_queue_size)
        self._queue = AdmissionQueue(self._bounds)
        self._engines = {"target": target, **({"draft": draft} if draft else {})}
        self._target, self._liveness = AsyncExecutor(target), Liveness(target, self._bounds.target_timeout_s)
        self._source: DraftSource | None = None
        if draft is not None or drafting is not None:
            vocab_size, timeout_s = target.limits.vocab_size, self._bounds.draft_timeout_s
            dictionary, draws_alike = None, target.limits.matches_samples
            if draft is not None and draft_tokenizer is not None:
                own_size = draft.limits.vocab_size
                dictionary = Dictionary(tokenizer, draft_tokenizer, vocab_size, own_size)
                draws_alike = draw_alike(target, draft, dictionary)
            inputs = SourceInputs(draft, vocab_size, timeout_s, self.stats, dictionary, draws_alike)
            self._source = make_source(drafting or DRAFT_MODEL, inputs.engine)
            inputs = replace(inputs, stats=Stats(fallbacks=self.stats.rollout.shadow_fallbacks))
            self._shadow_source = make_source(drafting or DRAFT_MODEL, inputs.engine)
        self.rollout = Rollout(share, self.stats.rollout)
        self._tokenizer, self._texts = tokenizer, TenantTexts()
        self._num_draft_tokens, self._guides = num_draft_tokens, guides
        schedule, longest = self._bounds.draft_schedule, target.limits.max_draft_len
        self._policy = AdaptivePolicy(longest, schedule) if policy == "adaptive" else None
        self._fixed = Pace(schedule)
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

    def stream(self, request: CompletionRequest) -> AsyncGenerator[Delta, None]:
        """Yields a `Delta` for each round. The last one of each sequence has its `Completion`.

        Iterating raises `RequestError` or `Busy` before anything runs, or when the target cannot follow the
        guide, at all or now. It raises `TimedOut` when the time limit passes, `EngineFailure` when the target
        fails and `Cancelled` when it ends the request by itself. Closing the generator, or cancelling the
        task that iterates it, cancels the requests on both engines.
        """
        takes_part = False
        if request.num_draft_tokens is None:
            request = replace(request, num_draft_tokens=self._num_draft_tokens)
            takes_part = self.rollout.is_on and self._source is not None
        limit_s = self._bounds.default_timeout_s if request.timeout_s is None else request.timeout_s
        arrived = asyncio.get_running_loop().time()
        if request.num_return_sequences != 1:
            return self._sequences(request, arrived, arrived + limit_s, takes_part)
        return self._run(request, arrived, arrived + limit_s, takes_part)

    async def complete(self, request: CompletionRequest) -> Delta:
        """Returns one completion as a single `Delta`; raises as `stream` does."""
        async with aclosing(self.stream(request)) as stream:
            deltas = [delta async for delta in stream]
        text = "".join(delta.text for delta in deltas)
        token_ids = [token_id for delta in deltas for token_id in delta.token_ids]
        log_probs = [value for delta in deltas for value in delta.log_probs or ()]
        return Delta(text, token_ids, deltas[-1].completion, log_probs if request.return_log_probs else None)

    async def _sequences(
        self, request: CompletionRequest, arrived: float, deadline: float, takes_part: bool
    ) -> AsyncGenerator[Delta, None]:
        """Runs several completions of one prompt, each in its own slot.

        The first begins alone. The others hold their slots and wait until the engines have the prompt in
        their KV caches, so that it is computed once. They must not come before the first in the queue, so all
        are tokenized before the first enters it.
        """
        count, most = request.num_return_sequences, self._bounds.max_places
        if not 1 <= count <= most:
            raise RequestError(
                "num_return_sequences", count, f"1 to {most}, the number of completions that run at once"
            )
        self._queue.check()
        states = [await self._begin(request)]
        known = replace(request, prompt=None, prompt_token_ids=states[0].text[:])
        for index in range(1, count):
            states.append(await self._begin(replace(known, sampling=of_sequence(known.sampling, index))))
            await asyncio.sleep(0)  # Other requests get their rounds meanwhile.
        is_cached = asyncio.Event()

        async def run(index: int) -> AsyncGenerator[Delta, None]:
            after = is_cached if index else None
            own = self._run(request, arrived, deadline, takes_part, states[index], after)
            async with aclosing(own) as deltas:
                async for delta in deltas:
                    yield replace(delta, sequence_index=index)

        async with aclosing(interleave([run(index) for index in range(count)])) as deltas:
            async for delta in deltas:
                is_cached.set()
                yield delta

    async def _run(
        self,
        request: CompletionRequest,
        arrived: float,
        deadline: float,
        takes_part: bool,
        ready: CompletionState | None = None,
        after: asyncio.Event | None = None,
    ) -> AsyncGenerator[Delta, None]:
        """Runs one completion, from the state `ready` if it is given, and after `after` if it is given.

        One that `takes_part` in the roll-out keeps its arm, whatever the roll-out becomes meanwhile.
        """
        arm: ArmStats | None = None
        self._enter()
        try:
            self._queue.check()
            state = ready or await self._begin(request)
            if state.guide is not None and self._guides is not None:
                await self._check_guide(self._guides, state.guide, deadline)
            needed = state.num_input_tokens + state.max_tokens + self._target.limits.max_draft_len
            clock = asyncio.get_running_loop().time
            arm = self.rollout.arm(request, state) if takes_part else None
            timeline = Timeline(self.stats, arrived, clock, arm)
            async with self._queue.slot(needed, deadline):
                self._count()
                timeline.begin(state.num_input_tokens)
                if after is not None:
                    await after.wait()
                own = self._texts.begin(request.tenant, state.text)
                async with aclosing(self._deltas(request, state, arm, deadline)) as deltas:
                    async for delta in deltas:
                        timeline.add(delta)
                        if (end := delta.completion) is not None:
                            told = self._texts.end(request.tenant, state.text, own, end.num_cached_tokens)
                            delta = replace(delta, completion=replace(end, num_cached_tokens=told))
                        yield delta
        except EngineFailure as failure:
            if request.guide is not None:
                _raise_of_guide(request.guide, str(failure))
            if arm:
                arm.failures += 1
            if not isinstance(failure, Overdue):
                raise
            raise TimedOut(f"at token {state.num_output_tokens} of {state.max_tokens}") from None
        finally:
            self._leave()

    async def _begin(self, request: CompletionRequest) -> CompletionState:
        """Tokenizes a long request on a thread, so that the loop goes on with other rounds."""
        work = partial(begin, request, self._target.limits, self._tokenizer)
        return await asyncio.to_thread(work) if is_long(request) else work()

    async def _check_guide(self, guides: Guides, guide: Guide, deadline: float) -> None:
        left = max(deadline - asyncio.get_running_loop().time(), 0.0)
        try:
            await within(left, guides.grammar(guide))
        except asyncio.TimeoutError:
            raise Overdue from None
        except GuideError as error:
            raise _refused(guide, str(error)) from None

    def _deltas(
        self, request: CompletionRequest, state: CompletionState, arm: ArmStats | None, deadline: float
    ) -> AsyncGenerator[Delta, None]:
        if arm is None or arm.name == SPECULATE:
            return self._rounds(request, state).run(deadline)
        shadow = None
        if arm.name == SHADOW:
            limits, stats = self._target.limits, self.stats.rollout
            shadow = Shadow(state, self._shadow_source, request.tenant, limits, stats)
        state.num_draft_tokens, state.undrafted_for = 0, ("rollout",)
        deltas = self._rounds(request, state).run(deadline)
        return shadow.beside(deltas, deadline) if shadow else deltas

    def _rounds(self, request: CompletionRequest, state: CompletionState) -> Rounds:
        drafter = self._source.drafter(state.text, request.tenant) if self._source else None
        is_adaptive = request.num_draft_tokens is None and "rollout" not in state.undrafted_for
        pace = self._policy.pace(kind_of(state.sampling)) if self._policy and is_adaptive else self._fixed
        return Rounds(state, self._target, drafter, pace, self.stats)

    async def _send_probe(self, until: float) -> None:
        """Sends the target a request that no target refuses. If it fails too, the target is lost."""
        try:
            await self._target.answer(Request([0], max_tokens=1), until)
        except (EngineFailure, Cancelled) as failure:
            self._liveness.lose(f"the target fails every request: {failure}")
        finally:
            self._probe = None

    def _enter(self) -> None:
        self._num_present += 1
        self._count()
        if self._check is None:
            self._tick()

    def _leave(self) -> None:
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
            self._probe = loop.create_task(self._send_probe(now + self._bounds.target_timeout_s))
        if self.failure is not None:
            self._queue.close(self.failure)
            self._target.fail(self.failure)
        self._target.reap(now)
        if self._source:
            self._source.reap(now)
            self._shadow_source.reap(now)
        self._queue.reap(now)
        self.stats.longest_wait_s = self._queue.longest_wait(now)
        self._note_kv_use()
        if self._num_present or self._probe:
            self._check = loop.call_later(CHECK_S, self._tick)


def _raise_of_guide(guide: Guide, failure: str) -> None:
    """Raises `RequestError` or `Busy` for a failure that is about the guide."""
    _, is_refused, problem = failure.partition(GUIDE_REFUSED)
    if is_refused:
        raise _refused(guide, problem) from None
    _, waits, why = failure.partition(GUIDE_WAITS)
    if waits:
        raise Busy(why) from None


def _refused(guide: Guide, problem: str) -> RequestError:
    return RequestError("guide", f"refused ({problem})", ALLOWED_GUIDES[guide.guide_type])
