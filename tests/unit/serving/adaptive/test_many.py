"""The adaptive policy with 64 completions at once, on a simulated device, whose costs are known."""

from __future__ import annotations

import asyncio
import random
from contextlib import aclosing

import pytest

from tests.fakes.simulated_device import VOCAB_SIZE, Cost, Device, SimulatedEngine
from tests.fakes.virtual_time import run_virtually
from tests.perf.coordinator import byte_tokenizer
from trtspec.serving.adaptive.policy import Policy
from trtspec.serving.assembly import assemble
from trtspec.serving.completion import NO_END, CompletionRequest
from trtspec.serving.drafters.source import Drafting
from trtspec.serving.executor import Request

PLACES, TOKENS, LONGEST, PHASE_S, NOISE = 64, 128, 8, 60.0, 0.1
BAR = 0.95
LOOKUP = Drafting("ngram", {"prompt_lookup_min": 2, "prompt_lookup_max": 8})
QUOTING, FEW_WORDS = 2, 12


class QuotingEngine(SimulatedEngine):
    """Of a text that begins with `QUOTING` it says few words, so that a lookup finds some again."""

    def _alphabet(self, request: Request) -> int:
        return FEW_WORDS if request.input_token_ids[0] == QUOTING else VOCAB_SIZE - 1


class DisturbedDevice(Device):
    """Up to `until` of the loop's clock, other programs hold each step up by as much as 30 ms."""

    until = 0.0

    def seconds(self, usual: float) -> float:
        is_disturbed = asyncio.get_running_loop().time() < self.until
        return super().seconds(usual) + (0.03 * self.dice.random() if is_disturbed else 0.0)


class Clients:
    """A server, and clients that keep it busy; `tokens` counts what it said.

    Without a `draft` a lookup drafts, and a share of the texts is `quoting`.
    """

    def __init__(
        self,
        length: int | None,
        target: Cost,
        draft: Cost | None,
        agreement: float,
        max_rows: int,
        quoting: float = 0.0,
        places: int = PLACES,
        seed: int = 1,
        lengths: tuple[int, int] = (TOKENS, TOKENS),
    ) -> None:
        self.lengths = lengths
        self.device = device = DisturbedDevice(seed, NOISE, max_rows)
        drafter = SimulatedEngine(device, draft, LONGEST, places) if draft else None
        verifier = QuotingEngine(device, target, LONGEST, places)
        verifier.agreement = agreement
        policy: Policy = "adaptive" if length is None else "fixed"
        drafting = None if draft else LOOKUP
        self._coordinator = assemble(verifier, drafter, byte_tokenizer(), policy=policy, drafting=drafting)
        self._length, self._quoting, self._places, self.tokens = length, quoting, places, 0

    async def run(self, disturbed_s: float = 0.0, later_s: float = 0.0, seconds: float = PHASE_S) -> float:
        """Returns the tokens per second of all, behind a while in which one was alone.

        The machine is disturbed for `disturbed_s` from the first one on; tokens count `later_s` behind the
        begin of the others, for so many `seconds`.
        """
        self.device.until = asyncio.get_running_loop().time() + disturbed_s
        first = asyncio.ensure_future(self._client(0))
        await asyncio.sleep(PHASE_S / 6)
        others = [asyncio.ensure_future(self._client(seed)) for seed in range(1, self._places)]
        await asyncio.sleep(later_s)
        before = self.tokens
        await asyncio.sleep(seconds)
        said = self.tokens - before
        for client in (first, *others):
            client.cancel()
        await asyncio.wait([first, *others])
        await asyncio.sleep(1)
        return said / seconds

    async def _client(self, seed: int) -> None:
        dice = random.Random(seed)
        while True:
            first = QUOTING if dice.random() < self._quoting else 1
            request = CompletionRequest(
                prompt_token_ids=[first, *[1] * dice.randint(59, 149)],
                max_tokens=dice.randint(*self.lengths),
                num_draft_tokens=self._length,
                end_id=NO_END,
            )
            async with aclosing(self._coordinator.stream(request)) as deltas:
                async for delta in deltas:
                    self.tokens += len(delta.token_ids)


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("target", "draft", "agreement", "max_rows"),
    [
        pytest.param(Cost(0.0015, 0.00036, 0.00014), Cost(0.0004, 0.0001, 0.00003), 0.7, 256, id="a CPU"),
        pytest.param(Cost(0.0015, 0.00036, 0.00014), Cost(0.0004, 0.0001, 0.00003), 0.1, 256, id="in vain"),
        pytest.param(Cost(0.010, 0.00002, 0.00001), Cost(0.0015, 5e-6, 3e-6), 0.7, 2048, id="a GPU"),
        pytest.param(Cost(0.010, 0.00002, 0.00001), Cost(0.0015, 5e-6, 3e-6), 0.95, 2048, id="nearly sure"),
    ],
)
def test_many_have_nearly_the_goodput_of_the_best_fixed_length(
    target: Cost, draft: Cost, agreement: float, max_rows: int
) -> None:
    """In a minute that begins with 63 prompts at once; the target alone is one of the fixed lengths."""

    def goodput(length: int | None) -> float:
        return run_virtually(Clients(length, target, draft, agreement, max_rows).run())

    best = max(goodput(length) for length in (0, 1, 2, 4, 8))
    assert goodput(None) >= BAR * best


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("target", "agreement", "bar"),
    [
        pytest.param(Cost(0.0015, 0.00012, 0.00005), 0.85, BAR, id="it pays"),
        pytest.param(Cost(0.0006, 0.0001, 0.00025), 0.85, 0.97, id="it hardly pays"),
        pytest.param(Cost(0.0006, 0.0001, 0.00025), 0.3, 0.97, id="in vain"),
    ],
)
@pytest.mark.parametrize("quoting", [0.25, 1.0])
def test_occasional_drafts_of_lookups_reach_nearly_the_best_fixed_goodput(
    target: Cost, agreement: float, bar: float, quoting: float
) -> None:
    """Longer rounds for those that a lookup has something for hold up all others."""

    def goodput(length: int | None) -> float:
        return run_virtually(Clients(length, target, None, agreement, 256, quoting, places=16).run())

    best = max(goodput(length) for length in (0, 1, 2, 4, 8))
    assert goodput(None) >= bar * best


@pytest.mark.sweep
@pytest.mark.parametrize("seed", [1, 2])
def test_the_adaptive_policy_recovers_from_times_of_a_disturbed_machine(seed: int) -> None:
    """Pauses hold drafts up most, so that the target alone is in use when they end. Completions begin and end
    all the time.
    """
    target, draft = Cost(0.010, 0.00002, 0.00001), Cost(0.0015, 5e-6, 3e-6)

    def goodput(length: int | None) -> float:
        clients = Clients(length, target, draft, 0.7, 2048, seed=seed, lengths=(TOKENS // 2, TOKENS * 3 // 2))
        return run_virtually(clients.run(PHASE_S, later_s=PHASE_S * 8 / 6, seconds=PHASE_S / 2))

    assert goodput(None) >= 0.85 * goodput(2)
