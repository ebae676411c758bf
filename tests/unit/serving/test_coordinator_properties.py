"""Whatever proposes, breaks, comes or leaves: each text is the target's own, and nothing is left."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import cycle

import pytest
import tokenizers
from hypothesis import HealthCheck, Phase, given, settings

from tests.fakes.expected import Expected, assert_is, expect
from tests.fakes.scripted_executor import ScriptedExecutor
from tests.fakes.trimming import Trimming, sometimes
from tests.fakes.unreliable import Fault, Unreliable
from tests.fakes.virtual_time import run_virtually
from tests.fakes.worlds import Visit, World, worlds
from tests.support.draft_failures import draft_failures
from trtspec.serving.admission import ServingBounds
from trtspec.serving.assembly import assemble
from trtspec.serving.completion import Completion, CompletionRequest, Delta, EndReason
from trtspec.serving.coordinator import CHECK_S
from trtspec.serving.errors import Busy, EngineFailure, ServingError, TimedOut
from trtspec.serving.executor import Request
from trtspec.serving.rollout.rollout import Rollout
from trtspec.serving.rollout.state import RolloutReading
from trtspec.serving.stats import SpeculationCounts, Stats
from trtspec.serving.tokenizer import Tokenizer

STEP_S = 0.037
LIMIT_S, DRAFT_LIMIT_S, ROUNDING_S = 100.0, 0.1, 1e-9
LATE_S = 5 * CHECK_S
"""A deadline that passes between two calls of an engine is seen at the next check."""


@dataclass
class Told:
    """What a client heard: the deltas of each sequence, and the error that ended them; None where it left."""

    deltas: dict[int, list[Delta]] = field(default_factory=dict)
    error: ServingError | None = None
    has_left: bool = False
    took_s: float = 0.0

    @property
    def is_whole(self) -> bool:
        return self.error is None and not self.has_left

    def whole(self, index: int) -> Delta:
        deltas = self.deltas.get(index, [])
        return Delta(
            "".join(delta.text for delta in deltas),
            [token_id for delta in deltas for token_id in delta.token_ids],
            deltas[-1].completion if deltas else None,
        )


class Deployment:
    """The coordinator of a world, its engines and what was told to its clients."""

    def __init__(self, world: World, tokenizer: Tokenizer) -> None:
        self.world = world
        target_delay, draft_delay = world.delays
        self.verifying = ScriptedExecutor(world.target, world.language, target_delay)
        self.drafting = ScriptedExecutor(world.draft, world.drafted, draft_delay)
        keep = (lambda length: length) if world.trims is None else sometimes(world.trims)
        self.target = Unreliable(Trimming(self.verifying, keep), self.verifying, self._target_fault)
        self.draft = Unreliable(self.drafting, self.drafting, self._draft_fault)
        self._asked = Counter[int]()
        self._drafted, self._is_over = 0, False
        self._rollout = Rollout()
        self.coordinator = assemble(
            self.target,
            None if world.drafting.kind == "ngram" else self.draft,
            tokenizer,
            num_draft_tokens=world.num_draft_tokens,
            bounds=ServingBounds(
                world.places,
                world.kv_tokens,
                world.queue,
                default_timeout_s=LIMIT_S,
                draft_timeout_s=DRAFT_LIMIT_S,
            ),
            drafting=world.drafting,
            policy=world.policy,
            rollout=self._rollout,
        )

    def _target_fault(self, request: Request) -> Fault | None:
        client = request.input_token_ids[0]
        number, self._asked[client] = self._asked[client], self._asked[client] + 1
        at, fault = self.world.visits[client].target_fault or (-1, None)
        return fault if number == at and not self._is_over else None

    def _draft_fault(self, request: Request) -> Fault | None:
        faults = self.world.draft_faults
        self._drafted += 1
        return faults[self._drafted % len(faults)] if faults else None

    async def serve(self) -> list[Told]:
        steps = asyncio.ensure_future(self._roll_out())
        told = await asyncio.gather(*(self._visit(visit) for visit in self.world.visits))
        self._is_over = True
        steps.cancel()
        await asyncio.gather(steps, return_exceptions=True)
        return list(told)

    async def _roll_out(self) -> None:
        """Moves on while requests run."""
        for state in cycle(self.world.stands):
            self._rollout.take(RolloutReading(state))
            await asyncio.sleep(STEP_S)

    async def _visit(self, visit: Visit) -> Told:
        told, clock = Told(), asyncio.get_running_loop().time
        await asyncio.sleep(visit.at_s)
        begin = clock()
        task = asyncio.ensure_future(self._listen(visit, told))
        if visit.leaves_after_s is not None:
            await asyncio.wait([task], timeout=visit.leaves_after_s)
            task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            told.has_left = True
        except ServingError as error:
            told.error = error
        told.took_s = clock() - begin
        return told

    async def _listen(self, visit: Visit, told: Told) -> None:
        request = visit.request
        if not visit.streams and request.num_return_sequences == 1:
            told.deltas[0] = [await self.coordinator.complete(request)]
            return
        async with aclosing(self.coordinator.stream(request)) as deltas:
            async for delta in deltas:
                told.deltas.setdefault(delta.sequence_index, []).append(delta)


def completions(told: list[Told]) -> list[Completion]:
    """The summaries of all that ended well."""
    last = [deltas[-1].completion for end in told for deltas in end.deltas.values()]
    return [completion for completion in last if completion is not None]


Oracle = dict[tuple[int, int], Expected]
"""What the target alone says to each client, for each of its sequences."""


def expected(world: World, tokenizer: Tokenizer, byte_level: tokenizers.Tokenizer) -> Oracle:
    return {
        (client, index): expect(
            world.wanted(visit, index), world.language, tokenizer, byte_level.decode, world.target.vocab_size
        )
        for client, visit in enumerate(world.visits)
        for index in range(visit.request.num_return_sequences)
    }


def check_texts(world: World, told: list[Told], oracle: Oracle) -> None:
    """What is whole is the target's own text, and what is not is a beginning of it."""
    for (client, index), own in oracle.items():
        heard = told[client].whole(index)
        if told[client].is_whole:
            assert_is(heard, own)
        else:
            assert own.text.startswith(heard.text)
            assert own.token_ids[: len(heard.token_ids)] == heard.token_ids


def check_ends(deployment: Deployment, told: list[Told]) -> None:
    """Each error has its reason, and comes in time."""
    struck = {(request.input_token_ids[0], fault) for request, fault in deployment.target.struck}
    for client, (visit, end) in enumerate(zip(deployment.world.visits, told, strict=True)):
        limit_s = LIMIT_S if visit.request.timeout_s is None else visit.request.timeout_s
        assert end.took_s <= limit_s + LATE_S
        fails, hangs = (client, Fault.FAILS) in struck, (client, Fault.HANGS) in struck
        if isinstance(end.error, TimedOut):
            assert end.took_s >= limit_s - ROUNDING_S
            # A client without a limit of its own may wait for a place that a hanging one holds.
            assert visit.request.timeout_s is not None or Fault.HANGS in {fault for _, fault in struck}
        elif isinstance(end.error, EngineFailure):
            assert fails
        else:
            assert end.error is None or isinstance(end.error, Busy)
        assert not (end.is_whole and (fails or hangs))
        assert not end.has_left or visit.leaves_after_s is not None


def check_counts(deployment: Deployment, told: list[Told]) -> None:
    world, stats = deployment.world, deployment.coordinator.stats
    own = [each.speculation for each in completions(told)]
    for counts in (*stats.by_origin.values(), *own, stats.rollout.shadow):
        positions = counts.accepted_per_position
        assert sum(positions) == counts.num_accepted_draft_tokens <= counts.num_draft_tokens
        assert positions == sorted(positions, reverse=True)
        assert max(positions, default=0) <= counts.num_spec_steps <= counts.num_draft_tokens
    for each in completions(told):
        if each.end_reason is EndReason.LENGTH:
            accepted, rounds = each.speculation.num_accepted_draft_tokens, each.speculation.num_spec_steps
            assert accepted + rounds <= each.num_output_tokens
    known, counted = total(own), total(list(stats.by_origin.values()))
    assert all(part <= whole for part, whole in zip(known, counted, strict=True))
    if all(end.is_whole for end in told):
        assert known == counted
    for origin, kind in (("engine", "ngram"), ("lookup", "draft_model")):
        assert stats.by_origin[origin].num_spec_steps == 0 or world.drafting.kind != kind

    check_times(stats, completions(told), are_all=all(end.is_whole for end in told))

    failed = sum(fault in (Fault.FAILS, Fault.HANGS) for _, fault in deployment.draft.struck)
    shadow = stats.rollout.shadow_fallbacks
    assert draft_failures(stats) + shadow["draft_failed"] + shadow["draft_timed_out"] <= failed
    if all(end.is_whole for end in told) and not world.stands:
        assert draft_failures(stats) == failed
    for request in deployment.verifying.requests:
        visit = world.visits[request.input_token_ids[0]]
        assert len(request.draft_token_ids) <= world.longest_draft(visit)


def check_times(stats: Stats, told: list[Completion], *, are_all: bool) -> None:
    """Each output of a completion is in one histogram, and each round or burst has its K."""
    firsts, between, ends = (
        histogram.cumulative()[-1]
        for histogram in (stats.time_to_first_token, stats.inter_token_latency, stats.e2e_latency)
    )
    assert stats.queue_time.cumulative()[-1] >= max(firsts, ends)
    assert ends == sum(stats.ended.values()) >= len(told)
    assert firsts + between <= stats.generation_tokens
    assert stats.generation_tokens >= sum(each.num_output_tokens for each in told)
    rounds = stats.rounds.items()
    num_steps, num_draft_tokens, _ = total(list(stats.by_origin.values()))
    assert num_steps <= sum(number for length, number in rounds if length)
    assert num_draft_tokens <= sum(length * number for length, number in rounds)
    if are_all:
        assert ends == len(told)
        assert stats.generation_tokens == sum(each.num_output_tokens for each in told)
        assert firsts == sum(each.num_output_tokens > 0 for each in told)


def total(counts: list[SpeculationCounts]) -> tuple[int, int, int]:
    return (
        sum(each.num_spec_steps for each in counts),
        sum(each.num_draft_tokens for each in counts),
        sum(each.num_accepted_draft_tokens for each in counts),
    )


async def check_nothing_is_left(deployment: Deployment) -> None:
    world, coordinator = deployment.world, deployment.coordinator
    assert (deployment.target.in_flight, deployment.draft.in_flight) == (0, 0)
    assert (coordinator.stats.running, coordinator.stats.waiting) == (0, 0)
    assert deployment.target.most_at_once <= world.places
    assert coordinator.failure is None
    if policy := coordinator._policy:
        batch = policy.batch
        assert batch.mean_length == 0
        batch.begin(3, 0.0, is_behind=False)
        assert batch.mean_length == 3  # So nothing else counts as running.
        batch.end(None, 3, 0.0, is_behind=False)
    # All places are there again, as far as the cache holds so many texts.
    again = CompletionRequest(prompt_token_ids=[0], max_tokens=2, num_draft_tokens=0)
    fitting = (world.kv_tokens or 10**6) // (3 + world.target.max_draft_len)
    working = [coordinator.complete(again) for _ in range(min(world.places, fitting))]
    tasks = [asyncio.ensure_future(each) for each in working]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert (coordinator.stats.running, coordinator.stats.waiting) == (len(tasks), 0)
    await asyncio.gather(*tasks)


def look(world: World, tokenizer: Tokenizer, byte_level: tokenizers.Tokenizer) -> Counter[str]:
    """Runs a world and checks it; says what happened there."""

    async def main() -> Counter[str]:
        deployment = Deployment(world, tokenizer)
        told = await deployment.serve()
        check_texts(world, told, expected(world, tokenizer, byte_level))
        check_ends(deployment, told)
        check_counts(deployment, told)
        happened = seen(deployment, told)
        await check_nothing_is_left(deployment)
        return happened

    return run_virtually(main())


def seen(deployment: Deployment, told: list[Told]) -> Counter[str]:
    stats, happened = deployment.coordinator.stats, Counter[str]()
    for origin, counts in stats.by_origin.items():
        happened[f"accepted of {origin}"] += counts.num_accepted_draft_tokens
        happened[f"refused of {origin}"] += counts.num_draft_tokens - counts.num_accepted_draft_tokens
    happened["scored in the shadow"] += stats.rollout.shadow.num_spec_steps
    happened.update(f"draft {fault.name}" for _, fault in deployment.draft.struck)
    happened.update(type(end.error).__name__ for end in told if end.error)
    happened["left"] += sum(end.has_left for end in told)
    happened.update(completion.end_reason.name for completion in completions(told))
    return happened


DRAFTS = (
    "scored in the shadow",
    "accepted of engine",
    "refused of engine",
    "accepted of lookup",
    "refused of lookup",
)
MANY = 3000
CALM = {*DRAFTS, "STOP", "END_ID", "LENGTH"}
STORMY = {*CALM, "EngineFailure", "TimedOut", "left"}


@pytest.mark.parametrize(
    ("is_calm", "examples"),
    [
        (True, 150),
        (False, 150),
        pytest.param(True, MANY, marks=pytest.mark.sweep),
        pytest.param(False, MANY, marks=pytest.mark.sweep),
    ],
)
def test_in_any_world(
    tokenizer: Tokenizer, byte_level: tokenizers.Tokenizer, is_calm: bool, examples: int
) -> None:
    happened = Counter[str]()

    @settings(
        max_examples=examples,
        derandomize=examples < MANY,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink],
        report_multiple_bugs=False,
    )
    @given(world=worlds(is_calm))
    def explore(world: World) -> None:
        happened.update(look(world, tokenizer, byte_level))

    explore()
    # A world without drafts or faults would prove nothing.
    found = {what for what, count in happened.items() if count}
    assert found >= (CALM if is_calm else STORMY), happened
    assert len({f"draft {fault.name}" for fault in Fault} & found) >= 5, happened
