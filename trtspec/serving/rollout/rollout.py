"""The roll-out of one coordinator: its state, the arm of each request, and the drafts of a shadow."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import aclosing, suppress
from dataclasses import replace

from trtspec.serving.completion import CompletionRequest, Delta, EndReason
from trtspec.serving.coordinator import CompletionCall, Coordinator, Deltas, Feature, Stream
from trtspec.serving.drafters.source import Drafter, DraftSource
from trtspec.serving.errors import EngineFailure, EngineTimedOut, TimedOut
from trtspec.serving.executor import Limits
from trtspec.serving.rollout.state import SHADOW, SPECULATE, RolloutReading, RolloutState, position_of
from trtspec.serving.rounds import draft_length
from trtspec.serving.state import CompletionState
from trtspec.serving.stats import ArmStats, RolloutStats, SpeculationCounts
from trtspec.serving.text import Text, common_prefix

log = logging.getLogger(__name__)


class Rollout(Feature):
    """Assigns requests to arms on the coordinator's loop; without a file the share `usual` has drafts.

    `source` makes the drafts of shadows; `assemble` sets it. A request keeps its arm, whatever the roll-out
    becomes meanwhile.
    """

    source: DraftSource

    def __init__(self, usual: float = 1.0) -> None:
        self.stats = RolloutStats()
        self._usual, self._has_file = RolloutState(share=usual), False
        self._enter(self._usual)

    def take(self, reading: RolloutReading) -> None:
        """Follows the file from the next request on. A malformed file changes nothing."""
        if reading.problem:
            self.stats.is_malformed = True
            log.error(
                "the file of the roll-out %s; it stays at %s of %.4g",
                reading.problem,
                self.state.mode,
                self.state.share,
            )
            return
        self.stats.is_malformed = False
        self._has_file = reading.state is not None
        self._enter(reading.state or self._usual)

    @property
    def is_on(self) -> bool:
        """True if requests without K have arms. Without a file, and with drafts for all, they have none."""
        return self._has_file or self.state.share < 1

    def concerns(self, request: CompletionRequest) -> bool:
        return request.num_draft_tokens is None and self.is_on

    async def around(self, coordinator: Coordinator, stream: Stream, call: CompletionCall) -> Deltas:
        with coordinator.present():
            state = await coordinator.begin(call)
        arm = self._arm(call, state, coordinator.limits)
        timeline = ArmTimeline(arm, call.arrived, asyncio.get_running_loop().time) if arm else None
        try:
            async with aclosing(stream(call)) as deltas:
                async for delta in deltas:
                    if timeline:
                        timeline.add(delta)
                    yield delta
        except (EngineFailure, TimedOut):
            if arm:
                arm.failures += 1
            raise

    def reap(self, now: float) -> None:
        self.source.reap(now)

    def _arm(self, call: CompletionCall, state: CompletionState, target: Limits) -> ArmStats | None:
        """Returns the arm in which a completion begins; None if its options forbid drafts in any case."""
        if not state.max_draft_len:
            return None
        request = call.request
        position = position_of(request.tenant, request.user, state.text.packed(state.num_input_tokens))
        arm = self.stats.arms[self.state.arm(position)]
        arm.requests += 1
        if arm.name == SPECULATE:
            return arm
        if arm.name == SHADOW:
            own = replace(state, text=Text(state.text), speculation=SpeculationCounts())

            def beside(deltas: Deltas) -> Deltas:
                drafter = self.source.drafter(own.text, request.tenant)
                return Shadow(state, own, drafter, target, self.stats).beside(deltas, call.deadline)

            call.around_rounds.append(beside)
        call.request = replace(request, num_draft_tokens=0)
        state.max_draft_len, state.undrafted_for = 0, ("rollout",)
        return arm

    def _enter(self, state: RolloutState) -> None:
        self.state = state
        self.stats.speculation_share = state.share_of("speculate")
        self.stats.shadow_share = state.share_of("shadow")


class ArmTimeline:
    """Records the time to the first tokens of a completion, and the mean time of each later token.

    The arms have outputs of different lengths, so a completion has one value of each. `arrived` is the
    arrival of its request, in seconds of `clock`.
    """

    def __init__(self, arm: ArmStats, arrived: float, clock: Callable[[], float]) -> None:
        self._arm, self._arrived, self._clock = arm, arrived, clock
        self._first, self._last, self._later = 0.0, 0.0, 0

    def add(self, delta: Delta) -> None:
        """Records the output of a round or burst."""
        if count := len(delta.token_ids):
            now = self._clock()
            if self._first:
                self._later += count
            else:
                self._arm.time_to_first_token.observe(now - self._arrived)
                self._first = now
            self._last = now
        if delta.completion is not None and self._later:
            self._arm.time_per_output_token.observe((self._last - self._first) / self._later)


class Shadow:
    """The rounds that a completion would have had: `own` is its state `real` before K was set to 0.

    Its drafts are scored beside plain decoding, whose output they never change. A draft token is accepted if
    the target itself chooses it at its position (rule 4 of `trtspec.serving.executor`). So the plain output
    shows what a verification would have accepted, and where the next round would have begun.

    The shadow has its own sequence, which is the prefix of the real one that the next draft continues. There
    is at most one request for a draft at a time. Nothing waits for it, and the end of the completion cancels
    it.
    """

    def __init__(
        self,
        real: CompletionState,
        own: CompletionState,
        drafter: Drafter,
        target: Limits,
        stats: RolloutStats,
    ) -> None:
        self._real, self._own, self._drafter = real, own, drafter
        self._target, self._stats = target, stats
        self._needed = len(own.text)
        self._asked: asyncio.Task[None] | None = None
        self._draft: list[int] = []
        self._is_over = False

    async def beside(self, deltas: Deltas, deadline: float) -> Deltas:
        """Yields the deltas as they come, and asks for drafts meanwhile."""
        try:
            self._go_on(deadline)
            async with aclosing(deltas):
                async for delta in deltas:
                    self._go_on(deadline)
                    yield delta
        finally:
            self._is_over = True
            if self._asked is not None:
                self._asked.cancel()
                with suppress(asyncio.CancelledError):
                    await self._asked

    def _go_on(self, deadline: float) -> None:
        """Scores the draft if the real sequence is long enough, and asks for the next one."""
        own, real = self._own.text, self._real
        while self._asked is None and not self._is_over:
            if self._draft and not self._score():
                return
            if real.end_reason is not None:
                self._is_over = True
                own.extend(real.text[len(own) :])
                self._drafter.end()
            elif len(real.text) < self._needed:
                return
            else:
                own.extend(real.text[len(own) : self._needed])
                self._ask(deadline)

    def _ask(self, deadline: float) -> None:
        """Asks for a draft, or notes how long the real sequence must be before the next one."""
        own = self._own
        if (endless := own.num_endless) > 0:
            self._needed += endless
        elif (offer := self._drafter.offer()) is None:
            self._stats.shadow_fallbacks[self._drafter.silence] += 1
            self._needed += self._drafter.pause
        elif not (length := draft_length(own, self._target, offer.room)):
            self._needed += own.num_remaining
        else:
            self._asked = asyncio.get_running_loop().create_task(self._propose(length, deadline))

    async def _propose(self, length: int, deadline: float) -> None:
        self._needed += 1  # Without a proposal a round gives one token.
        try:
            self._draft = await self._drafter.propose(self._own.request(length), deadline)
        except EngineTimedOut:
            self._is_over = True
        except Exception:
            log.exception("a draft beside plain decoding failed")
            self._is_over = True
        self._asked = None
        self._go_on(deadline)

    def _score(self) -> bool:
        """Counts the draft once the real sequence shows how much of it is accepted; False until then."""
        real, begin, draft = self._real, len(self._own.text), self._draft
        known = real.text[begin : begin + len(draft)]
        accepted = common_prefix(draft, known, len(known))
        is_open = accepted == len(known) < len(draft)
        if is_open and real.end_reason is None:
            return False
        # After a stop string, or an end token that the engine does not know, the target's next tokens are
        # unknown. After the end token that it knows there are none.
        if not is_open or (real.end_reason is EndReason.END_ID and draft[accepted] not in real.end_ids[1:]):
            self._stats.shadow.record(len(draft), accepted)
        self._draft, self._needed = [], begin + accepted + 1
        return True
