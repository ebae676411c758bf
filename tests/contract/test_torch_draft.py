"""A draft of the torch backend beside a target of TensorRT-LLM, on a stand-in for NVIDIA's bindings.

What is said is what transformers says of the target, whatever becomes of the draft.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from tests.fakes.around import Around
from tests.fakes.bindings import change_config, stand_in, write_trtllm_engine
from tests.fakes.clock import Clock, until
from tests.fakes.engine_dir import tiny_llama, write_engine
from tests.support.draft_failures import draft_failures
from trtspec.serving.adaptive.policy import ROUNDS, Policy
from trtspec.serving.completion import NO_END, Completion, CompletionRequest, Delta
from trtspec.serving.errors import EngineLoadError
from trtspec.serving.executor import Executor, Listener, Request, Response, SamplingConfig
from trtspec.serving.executors.tensorrt_llm.trtllm_executor import TrtLlmExecutor
from trtspec.serving.executors.torch.torch_executor import TorchExecutor
from trtspec.serving.triton.engines import EnginePair, load

K = 6
TOKENS = 60
TEXTS = 12
PROMPTS = ([8, 40, 2, 71, 30], [1], [200, 3, 3, 9], [17, 5, 88, 130, 41, 11, 12])
PARAMETERS = {
    "engine_backend": "tensorrt_llm",
    "image": "nvcr.io/image",
    "kv_cache_free_gpu_mem_fraction": "0.1",
    "target_engine_dir": "target",
    "target_gpu_device_id": "0",
    "target_enable_chunked_context": "false",
    "draft_engine_dir": "draft",
    "draft_device": "cpu",
    "tokenizer_dir": "tokenizer",
}
Use = Callable[[EnginePair], Coroutine[Any, Any, Any]]


class Build:
    """The folders of a pair whose draft says mostly, but not always, what its target says."""

    def __init__(self, folder: Path, trtllm: Any) -> None:
        self.folder, self.trtllm = folder, trtllm
        self.target = tiny_llama(vocab_size=264)
        write_trtllm_engine(folder / "target", self.target, max_draft_len=K)
        write_engine(folder / "draft", _like(self.target), max_draft_len=0, speculative_decoding_mode=1)

    def run(self, use: Use, parameters: dict[str, str] | None = None, limit_s: float = 300) -> Any:
        """What `use` returns of the pair as a server loads it."""

        async def main() -> Any:
            pair = load(parameters or PARAMETERS, self.folder)
            try:
                return await asyncio.wait_for(use(pair), limit_s)
            finally:
                pair.shutdown()

        return asyncio.run(main())

    def says(self, prompt: list[int]) -> list[int]:
        """What transformers says after a prompt."""
        asked = torch.tensor([prompt])
        mask = torch.ones_like(asked)
        said = self.target.generate(asked, attention_mask=mask, max_new_tokens=TOKENS, do_sample=False)
        return [int(token) for token in said[0, len(prompt) :]]


def _like(target: LlamaForCausalLM) -> LlamaForCausalLM:
    """The target with a little noise in its embedding."""
    draft = tiny_llama(vocab_size=264)
    draft.load_state_dict(target.state_dict())
    with torch.no_grad():
        draft.model.embed_tokens.weight += 0.03 * torch.randn_like(draft.model.embed_tokens.weight)
    return draft


@pytest.fixture
def build(tmp_path: Path, llama_folder: Callable[..., Path]) -> Iterator[Build]:
    llama_folder("tokenizer")
    with stand_in() as trtllm:
        yield Build(tmp_path, trtllm)


def ask(prompt: list[int], **options: Any) -> CompletionRequest:
    return CompletionRequest(prompt_token_ids=prompt, max_tokens=TOKENS, end_id=NO_END, **options)


def summary(delta: Delta) -> Completion:
    assert delta.completion is not None
    return delta.completion


def test_each_engine_has_its_own_runtime(build: Build) -> None:
    async def look(pair: EnginePair) -> None:
        assert isinstance(pair.target, TrtLlmExecutor)
        assert isinstance(pair.draft, TorchExecutor)
        assert len(build.trtllm.Executor.MADE) == 1

    build.run(look)
    assert not build.trtllm.Executor.MADE[0].can_enqueue_requests()


@pytest.mark.parametrize(
    ("length", "policy"),
    [
        (1, "fixed"),
        (3, "adaptive"),
        *(
            pytest.param(length, policy, marks=pytest.mark.sweep)
            for length in (0, 1, 3, K)
            for policy in ("fixed", "adaptive")
            if (length, policy) not in ((1, "fixed"), (3, "adaptive"))
        ),
    ],
)
def test_a_torch_draft_leaves_the_text_of_a_tensorrt_llm_target_unchanged(
    build: Build, length: int, policy: Policy
) -> None:
    """All prompts at once; some of the drafts are accepted, and some are not."""

    async def complete(pair: EnginePair) -> list[Delta]:
        coordinator = pair.coordinator()
        requests = [ask(prompt, num_draft_tokens=length or None) for prompt in PROMPTS]
        return await asyncio.gather(*map(coordinator.complete, requests))

    found = build.run(complete, PARAMETERS | {"draft_policy": policy})
    assert [delta.token_ids for delta in found] == [build.says(prompt) for prompt in PROMPTS]
    counts = [summary(delta).speculation for delta in found]
    drafted = sum(count.num_draft_tokens for count in counts)
    assert 0 < sum(count.num_accepted_draft_tokens for count in counts) < drafted


@pytest.mark.parametrize("length", [1, K])
def test_a_round_is_a_draft_here_and_a_verification_there(build: Build, length: int) -> None:
    """With the target's own weights for the draft, every draft is accepted whole."""
    write_engine(build.folder / "draft", build.target, max_draft_len=0, speculative_decoding_mode=1)

    async def complete(pair: EnginePair) -> tuple[Completion, int]:
        assert isinstance(pair.draft, TorchExecutor)
        delta = await pair.coordinator().complete(ask(PROMPTS[0], num_draft_tokens=length))
        return summary(delta), pair.draft.stats.steps

    completion, steps = build.run(complete)
    rounds = TOKENS // (length + 1)
    counts = completion.speculation
    assert counts.draft_acceptance_rate == 1
    assert counts.num_spec_steps in (rounds, rounds + 1)
    assert steps == counts.num_draft_tokens
    verified = [request.external_draft_tokens_config for request in build.trtllm.Executor.MADE[0].requests]
    assert sum(len(draft.tokens) for draft in verified if draft) == counts.num_draft_tokens


def test_a_sampled_draft_is_verified_with_logits_that_are_sure_of_it(build: Build) -> None:
    """And the same seed with the same lengths of drafts gives the same text."""

    async def complete(pair: EnginePair) -> list[list[int]]:
        coordinator = pair.coordinator()
        request = ask(
            PROMPTS[0], sampling=SamplingConfig(temperature=0.8, top_k=20, seed=5), num_draft_tokens=K
        )
        return [(await coordinator.complete(request)).token_ids for _ in range(2)]

    first, again = build.run(complete)
    assert first == again
    assert first != build.says(PROMPTS[0])
    verified = [request.external_draft_tokens_config for request in build.trtllm.Executor.MADE[0].requests]
    drafts = [draft for draft in verified if draft]
    assert drafts
    for draft in drafts:
        assert draft.logits.shape == (len(draft.tokens), build.target.config.vocab_size)


def before_each_step(
    patch: pytest.MonkeyPatch, pair: EnginePair, work: Callable[[], object]
) -> TorchExecutor:
    """Has `work` called on the thread of the draft; returns the draft."""
    draft = pair.draft
    assert isinstance(draft, TorchExecutor)
    assert draft._runner
    model, forward = draft._runner._model, draft._runner._model.forward

    def step(*arguments: Any) -> torch.Tensor:
        work()
        return forward(*arguments)

    patch.setattr(model, "forward", step)
    return draft


def test_who_leaves_ends_the_work_of_both(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the first of the steps of a draft: the others are not made."""
    begun, may_go_on = threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        assert may_go_on.wait(120)

    async def leave(pair: EnginePair) -> None:
        draft = before_each_step(monkeypatch, pair, wait)
        coordinator, (engine,) = pair.coordinator(), build.trtllm.Executor.MADE
        asked = asyncio.ensure_future(coordinator.complete(ask(PROMPTS[0], num_draft_tokens=K)))
        await until(begun.is_set)
        asked.cancel()
        await until(asked.done)
        await asyncio.sleep(0)  # what the loop has for the draft's thread goes there once it turns
        may_go_on.set()
        other = await coordinator.complete(ask(PROMPTS[1], num_draft_tokens=1))
        assert other.token_ids == build.says(PROMPTS[1])
        assert draft.stats.steps == 1 + summary(other).speculation.num_draft_tokens
        assert not draft._listeners
        assert len(engine.requests) >= TOKENS // 2
        assert coordinator.stats.running == 0

    build.run(leave)


class TestADraftThatFails:
    def test_in_the_middle_of_a_text(self, build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
        """It counts as broken at last; its target knows nothing of that."""

        async def complete(pair: EnginePair) -> None:
            steps = itertools.count()

            def fail() -> None:
                if next(steps) > 10:
                    raise RuntimeError("the machine has no memory left")

            draft, coordinator = before_each_step(monkeypatch, pair, fail), pair.coordinator()
            said = [await coordinator.complete(ask(prompt, num_draft_tokens=3)) for prompt in PROMPTS]
            assert [delta.token_ids for delta in said] == [build.says(prompt) for prompt in PROMPTS]
            assert draft_failures(coordinator.stats) >= 3
            assert not coordinator.stats.draft_available
            assert draft.failure == "The engine failed 3 times in a row: the machine has no memory left"
            assert (coordinator.failure, pair.target.failure) == (None, None)

        build.run(complete)

    def test_in_time(self, build: Build, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
        """Rounds go on without it after `draft_timeout_microseconds`, and after three of them it rests."""
        begun, may_go_on = threading.Event(), threading.Event()

        def wait() -> None:
            begun.set()
            assert may_go_on.wait(120)

        async def complete(pair: EnginePair) -> None:
            before_each_step(monkeypatch, pair, wait)
            coordinator = pair.coordinator()
            asked = asyncio.ensure_future(coordinator.complete(ask(PROMPTS[0], num_draft_tokens=3)))
            await until(begun.is_set)
            for failures in (1, 2, 3):
                clock.seconds += 2.5
                await until(lambda number=failures: draft_failures(coordinator.stats) >= number)  # type: ignore[misc]
            assert (await asked).token_ids == build.says(PROMPTS[0])
            assert not coordinator.stats.draft_available
            may_go_on.set()

        build.run(complete, PARAMETERS | {"draft_timeout_microseconds": "2000000"})

    def test_before_the_target_is_loaded(self, build: Build) -> None:
        change_config(build.folder / "draft", "pretrained_config", hidden_act="relu")
        with pytest.raises(EngineLoadError, match="hidden_act is 'relu'; the torch backend runs only"):
            build.run(_nothing)
        assert build.trtllm.Executor.MADE == []

    def test_a_target_that_does_not_load_leaves_no_thread_of_it(self, build: Build) -> None:
        before = set(threading.enumerate())
        with pytest.raises(EngineLoadError, match="invalid device ordinal"):
            build.run(_nothing, PARAMETERS | {"target_gpu_device_id": "7"})
        assert "trtspec-steps" not in {thread.name for thread in set(threading.enumerate()) - before}


async def _nothing(pair: EnginePair) -> None:
    pytest.fail("it was loaded")


class Timed(Around):
    """An engine whose every token takes so long on the clock."""

    def __init__(self, engine: Executor | None, clock: Clock, step_s: float) -> None:
        assert engine is not None
        super().__init__(engine)
        self._clock, self._step_s = clock, step_s

    def enqueue_request(self, request: Request, listener: Listener) -> int:
        return super().enqueue_request(request, partial(self._hear, request, listener))

    def _hear(self, request: Request, listener: Listener, response: Response) -> None:
        steps = 1 if request.draft_token_ids else len(response.token_ids)
        self._clock.seconds += self._step_s * steps
        listener(response)


@pytest.mark.parametrize(("step_s", "pays"), [(0.005, True), (0.3, False)])
def test_the_policy_sees_what_the_draft_costs(build: Build, clock: Clock, step_s: float, pays: bool) -> None:
    """A step of the target takes 0.1 s; beside a slower draft K is 0, but for a probe now and then.

    The draft is always right, so that its time alone decides.
    """
    write_engine(build.folder / "draft", build.target, max_draft_len=0, speculative_decoding_mode=1)

    async def complete(pair: EnginePair) -> list[int]:
        target, draft = Timed(pair.target, clock, 0.1), Timed(pair.draft, clock, step_s)
        coordinator = EnginePair(target, draft, pair.tokenizer, policy="adaptive").coordinator()
        drafted = []
        for index in range(TEXTS):
            delta = await coordinator.complete(ask([index, 8, 40]))
            drafted.append(summary(delta).speculation.num_draft_tokens)
        return drafted

    drafted = build.run(complete, limit_s=86_400)[3:]  # what it has learnt by then
    if pays:
        assert min(drafted) >= TOKENS / 3
    else:
        assert drafted.count(0) > len(drafted) / 2
        assert sum(drafted) <= 2 * K * ROUNDS
