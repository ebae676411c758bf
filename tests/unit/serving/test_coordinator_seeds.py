"""Random numbers in the coordinator: one stream for a completion, shared by both engines."""

from __future__ import annotations

import random
import zlib

from tests.fakes.languages import DRAFT, TARGET, OneShot, Run
from trtspec.serving.assembly import assemble, of_sequence
from trtspec.serving.completion import CompletionRequest
from trtspec.serving.executor import FinishReason, Limits, Request, SamplingConfig
from trtspec.serving.state import NUM_SEEDS, at_token, with_seed
from trtspec.serving.tokenizer import Tokenizer
from trtspec.serving.verification import decode, verify


def test_a_round_continues_the_stream_of_random_numbers() -> None:
    assert at_token(SamplingConfig(temperature=1.0, seed=5), 3) == SamplingConfig(temperature=1.0, seed=8)


def test_the_stream_wraps_around() -> None:
    assert at_token(SamplingConfig(temperature=1.0, seed=NUM_SEEDS - 1), 2).seed == 1


def test_completions_of_one_prompt_share_no_number() -> None:
    sampling = SamplingConfig(temperature=1.0, seed=NUM_SEEDS - 2)
    seeds = [of_sequence(sampling, index).seed or 0 for index in range(3)]
    assert seeds == [NUM_SEEDS - 2, 2**40 - 2, 2**41 - 2]
    assert of_sequence(SamplingConfig(temperature=1.0), 3).seed is None


def test_sampling_without_a_seed_gets_one_of_its_own() -> None:
    seeds = {with_seed(SamplingConfig(temperature=1.0)).seed for _ in range(20)}
    assert len(seeds) == 20
    assert all(seed is not None and 0 <= seed < NUM_SEEDS for seed in seeds)


def test_greedy_and_seeded_requests_stay_as_they_are() -> None:
    for sampling in (
        SamplingConfig(),
        SamplingConfig(top_k=1, seed=4),
        SamplingConfig(temperature=1.0, seed=4),
    ):
        assert with_seed(sampling) == sampling
    assert at_token(SamplingConfig(), 7) == SamplingConfig()


class Sampler(OneShot):
    """Draws token i of a request with number `seed + i`, as the contract has it."""

    def __init__(self, limits: Limits, skill: float) -> None:
        super().__init__(limits)
        self.skill = skill

    def say(self, request: Request) -> tuple[list[int], FinishReason]:
        draft = list(request.draft_token_ids)
        said: list[int] = []
        if draft:
            chosen = [self.draw(request, draft[:length]) for length in range(len(draft) + 1)]
            outcome = verify(draft, chosen, request.end_id, len(draft) + 1)
            return outcome.token_ids, outcome.finish_reason
        reason = FinishReason.NOT_FINISHED
        while reason is FinishReason.NOT_FINISHED:
            step = decode(self.draw(request, said), request.end_id, request.max_tokens - len(said))
            said, reason = said + step.token_ids, step.finish_reason
        return said, reason

    def draw(self, request: Request, said: list[int]) -> int:
        assert request.sampling.seed is not None
        number = random.Random((request.sampling.seed + len(said)) % NUM_SEEDS).random()
        sequence = [*request.input_token_ids, *said]
        likely = zlib.crc32(repr(sequence[-3:]).encode()) % 200
        if number < self.skill:
            return likely
        return (likely + int(number * 1e6)) % 200


class TestSeeds:
    def test_the_coordinator_gives_one_seeded_text_for_every_number_of_draft_tokens(
        self, run: Run, tokenizer: Tokenizer
    ) -> None:
        async def main() -> None:
            texts = set()
            for seed in (0, 1, 2**64 - 20):
                sampling = SamplingConfig(temperature=1.0, seed=seed)
                said = []
                for num_draft_tokens in range(9):
                    coordinator = assemble(Sampler(TARGET, 0.7), Sampler(DRAFT, 0.6), tokenizer)
                    delta = await coordinator.complete(
                        CompletionRequest(
                            prompt_token_ids=[1, 2],
                            max_tokens=60,
                            num_draft_tokens=num_draft_tokens,
                            sampling=sampling,
                            end_id=199,
                        )
                    )
                    said.append(delta.token_ids)
                assert said.count(said[0]) == 9
                texts.add(tuple(said[0]))
            assert len(texts) == 3

        run(main())

    def test_draft_and_target_draw_the_same_numbers(self, run: Run, tokenizer: Tokenizer) -> None:
        async def main() -> None:
            target, draft = Sampler(TARGET, 0.7), Sampler(DRAFT, 0.6)
            request = CompletionRequest(
                prompt_token_ids=[1, 2], max_tokens=60, sampling=SamplingConfig(temperature=1.0, seed=1000)
            )
            await assemble(target, draft, tokenizer).complete(request)
            for engine in (target, draft):
                for asked in engine.requests:
                    assert asked.sampling.seed == 1000 + len(asked.input_token_ids) - 2
            assert len(draft.requests) > 5

        run(main())

    def test_without_a_seed_completions_differ_and_rounds_continue(
        self, run: Run, tokenizer: Tokenizer
    ) -> None:
        async def main() -> None:
            target = Sampler(TARGET, 0.5)
            coordinator = assemble(target, Sampler(DRAFT, 0.5), tokenizer)
            request = CompletionRequest(
                prompt_token_ids=[1, 2], max_tokens=30, sampling=SamplingConfig(temperature=1.0)
            )
            first, second = await coordinator.complete(request), await coordinator.complete(request)
            assert first.token_ids != second.token_ids

        run(main())
