"""Several completions of one prompt."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import pytest

from tests.fakes.engine_dir import tiny_llama, write_engine
from tests.fakes.languages import DRAFT, TARGET, Run, drafting_for
from tests.fakes.scripted_executor import ScriptedExecutor, babble
from tests.unit.serving.test_coordinator_seeds import Sampler
from trtspec.serving.admission import ServingBounds
from trtspec.serving.assembly import assemble
from trtspec.serving.awaiting import interleave
from trtspec.serving.completion import CompletionRequest, Delta
from trtspec.serving.coordinator import CompletionCall, Coordinator
from trtspec.serving.errors import Busy, EngineFailure, RequestError
from trtspec.serving.executor import Request, SamplingConfig
from trtspec.serving.executors.torch.torch_executor import TorchExecutor
from trtspec.serving.state import CompletionState
from trtspec.serving.tokenizer import Tokenizer

WARM = SamplingConfig(temperature=1.0)
FOUR = CompletionRequest(prompt_token_ids=[1, 2], max_tokens=40, end_id=-1, num_return_sequences=4)


async def sequences(coordinator: Coordinator, request: CompletionRequest) -> dict[int, list[Delta]]:
    heard: dict[int, list[Delta]] = defaultdict(list)
    async with aclosing(coordinator.stream(request)) as deltas:
        async for delta in deltas:
            heard[delta.sequence_index].append(delta)
    return heard


def tokens_of(deltas: list[Delta]) -> list[int]:
    return [token for delta in deltas for token in delta.token_ids]


@pytest.mark.parametrize("num_draft_tokens", [0, 4])
def test_each_is_the_completion_with_its_own_seed(
    run: Run, tokenizer: Tokenizer, num_draft_tokens: int
) -> None:
    seed = 2**64 - 5
    request = replace(FOUR, num_draft_tokens=num_draft_tokens, sampling=replace(WARM, seed=seed))

    async def main() -> None:
        coordinator = assemble(Sampler(TARGET, 0.5), Sampler(DRAFT, 0.5), tokenizer)
        heard = await sequences(coordinator, request)
        assert sorted(heard) == [0, 1, 2, 3]
        for index, deltas in heard.items():
            own = replace(WARM, seed=(seed + index * 2**40) % 2**64)
            alone = await coordinator.complete(replace(request, num_return_sequences=1, sampling=own))
            assert tokens_of(deltas) == alone.token_ids
            assert [delta.completion is not None for delta in deltas] == [False] * (len(deltas) - 1) + [True]
            assert "".join(delta.text for delta in deltas) == alone.text
        assert len({tuple(tokens_of(deltas)) for deltas in heard.values()}) == 4

    run(main())


def test_without_a_seed_each_has_a_random_one(run: Run, tokenizer: Tokenizer) -> None:
    async def main() -> None:
        target = Sampler(TARGET, 0.5)
        heard = await sequences(assemble(target, None, tokenizer), replace(FOUR, sampling=WARM))
        seeds = {request.sampling.seed for request in target.requests}
        assert len(seeds) == len({tuple(tokens_of(deltas)) for deltas in heard.values()}) == 4

    run(main())


def test_a_prompt_is_read_once(run: Run, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    encode = tokenizer.encode

    def counted(text: str, add_special_tokens: bool = True) -> list[int]:
        read.append(text)
        return encode(text, add_special_tokens)

    async def main() -> None:
        monkeypatch.setattr(tokenizer, "encode", counted)
        target = ScriptedExecutor(TARGET, babble(300))
        coordinator = assemble(target, drafting_for(target, 0.6), tokenizer)
        heard = await sequences(coordinator, replace(FOUR, prompt="hello", prompt_token_ids=None))
        assert read == ["hello"]
        assert len({tuple(tokens_of(deltas)) for deltas in heard.values()}) == 1  # It is greedy.

    run(main())


def test_the_engine_computes_the_prompt_once(run: Run, tokenizer: Tokenizer, tmp_path: Path) -> None:
    """On the torch backend, of whose prompts the last token alone is always computed again."""
    prompt = [(13 * i) % 96 for i in range(100)]
    folder = write_engine(tmp_path, tiny_llama(vocab_size=96), max_seq_len=160, max_batch_size=4)

    async def main() -> None:
        for num_draft_tokens in (0, 4):
            executor = TorchExecutor(folder)
            request = replace(
                FOUR,
                prompt_token_ids=prompt,
                max_tokens=12,
                num_draft_tokens=num_draft_tokens,
                sampling=replace(WARM, seed=3),
            )
            heard = await sequences(assemble(executor, executor, tokenizer), request)
            rows = executor.stats.rows
            executor.shutdown()
            assert 100 + 4 * 11 <= rows < 2 * 100
            assert len({tuple(tokens_of(deltas)) for deltas in heard.values()}) == 4

    run(main())


def test_each_has_a_place_and_more_than_there_are_is_refused(
    run: Run, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        target = ScriptedExecutor(TARGET, babble(300), delay=0.001)
        coordinator = assemble(target, None, tokenizer, bounds=ServingBounds(max_places=4, max_queue_size=2))
        for count in (5, 0, -1):
            with pytest.raises(RequestError, match=rf"num_return_sequences is {count}; allowed: 1 to 4"):
                await sequences(coordinator, replace(FOUR, num_return_sequences=count))
        assert target.requests == []

        stream = coordinator.stream(FOUR)
        await anext(stream)
        assert coordinator.stats.running == 4
        waiting = asyncio.create_task(sequences(coordinator, replace(FOUR, num_return_sequences=2)))
        while coordinator.stats.waiting < 2:
            await asyncio.sleep(0)
        monkeypatch.setattr(tokenizer, "encode", None)  # Nothing is read for whom there is no place.
        with pytest.raises(Busy):
            await sequences(coordinator, replace(FOUR, prompt="hello", prompt_token_ids=None))
        async for _ in stream:
            pass
        assert sorted(await waiting) == [0, 1]
        assert (coordinator.stats.running, coordinator.stats.waiting) == (0, 0)

    run(main())


def test_closing_ends_all(run: Run, tokenizer: Tokenizer) -> None:
    async def main() -> None:
        target = ScriptedExecutor(TARGET, babble(300), delay=0.001)
        draft = drafting_for(target, 0.7)
        coordinator = assemble(target, draft, tokenizer)
        stream = coordinator.stream(replace(FOUR, max_tokens=300))
        indices = set()
        async for delta in stream:
            indices.add(delta.sequence_index)
            if len(indices) == 4:
                break
        await stream.aclose()
        assert (target.in_flight, draft.in_flight, coordinator.stats.running) == (0, 0, 0)

    run(main())


def test_an_error_of_one_ends_all(run: Run, tokenizer: Tokenizer) -> None:
    seed = 10

    def fails(request: Request) -> str | None:
        is_third = (request.sampling.seed or 0) >= seed + 2 * 2**40
        return "out of memory" if is_third and len(request.input_token_ids) > 10 else None

    async def main() -> None:
        target = ScriptedExecutor(TARGET, babble(300), delay=0.001, fails=fails)
        coordinator = assemble(target, drafting_for(target, 0.7), tokenizer)
        request = replace(FOUR, max_tokens=300, sampling=replace(WARM, seed=seed))
        with pytest.raises(EngineFailure, match="out of memory"):
            await sequences(coordinator, request)
        assert (target.in_flight, coordinator.stats.running) == (0, 0)

    run(main())


def test_streams_are_interleaved_as_they_speak(run: Run) -> None:
    turns = [asyncio.Event() for _ in range(4)]

    async def speak(index: int) -> AsyncGenerator[Delta, None]:
        for word in range(2):
            await turns[2 * word + index].wait()
            yield Delta(f"{index}{word}", [], sequence_index=index)

    async def main() -> None:
        order = [turns[1], turns[0], turns[2], turns[3]]
        heard = []
        order.pop(0).set()
        async for delta in interleave([speak(0), speak(1)]):
            heard.append((delta.sequence_index, delta.text))
            if order:
                order.pop(0).set()
        assert heard == [(1, "10"), (0, "00"), (0, "01"), (1, "11")]

    run(main())


def test_requests_that_share_the_places_do_not_wait_for_one_another(
    run: Run, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts take longer or shorter to read, so that any of the completions may be ready first."""
    dice, begin = random.Random(5), Coordinator.begin

    async def slowly(coordinator: Coordinator, call: CompletionCall) -> CompletionState:
        for _ in range(0 if call.state else dice.randrange(30)):
            await asyncio.sleep(0)
        return await begin(coordinator, call)

    async def main() -> None:
        target = ScriptedExecutor(TARGET, babble(300))
        bounds = ServingBounds(max_places=4, max_queue_size=1000)
        coordinator = assemble(target, drafting_for(target, 0.7), tokenizer, bounds=bounds)
        requests = [replace(FOUR, num_return_sequences=2 + number % 3) for number in range(40)]
        heard = await asyncio.gather(*(sequences(coordinator, request) for request in requests))
        assert [len(found) for found in heard] == [request.num_return_sequences for request in requests]

    monkeypatch.setattr(Coordinator, "begin", slowly)
    run(main())
