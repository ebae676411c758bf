"""Drafts that live in their target: what is said is what transformers says of the target alone.

A head that has learnt some of the texts, heads that have learnt nothing, and layers of the target.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
from collections.abc import Callable, Coroutine
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.fakes.clock import until
from tests.fakes.drafting import random_head, said, tiny_target, trained_head
from tests.fakes.engine_dir import write_engine
from tests.support.draft_failures import draft_failures
from trtspec.backends.torch.builder import build_head, build_layers
from trtspec.models.heads.reading import read_head
from trtspec.serving.adaptive.policy import Policy
from trtspec.serving.completion import NO_END, Completion, CompletionRequest, Delta
from trtspec.serving.errors import EngineLoadError
from trtspec.serving.executor import SamplingConfig
from trtspec.serving.executors.torch import torch_executor as torch_pair
from trtspec.serving.executors.torch.torch_executor import TorchExecutor
from trtspec.serving.rollout.state import RolloutReading, RolloutState
from trtspec.serving.triton.engines import EnginePair, load

K = 6
TOKENS = 24
METHODS = ("eagle3", "eagle", "medusa", "layers")
PROMPTS = ([8, 4, 2, 7, 3], [1], [20, 3, 3, 9], [8, 4, 2, 7, 21], [17, 5, 8, 13, 4, 11, 12])
Use = Callable[[EnginePair], Coroutine[Any, Any, Any]]


def often(*methods: str) -> pytest.MarkDecorator:
    """With these methods, and under `make test-sweep` with the others; each has a test of two kinds."""
    marks = {method: () if method in methods else pytest.mark.sweep for method in METHODS}
    return pytest.mark.parametrize("method", [pytest.param(name, marks=marks[name]) for name in METHODS])


class Build:
    """The folders of a target and of a draft of each method."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.target = folder, tiny_target()
        with torch.no_grad():  # so that the layers between the first and the last may be left out
            for layer in self.target.model.layers[1:-1]:
                layer.self_attn.o_proj.weight *= 0.1
                layer.mlp.down_proj.weight *= 0.1
        self.says = cache(self._says)
        options = {"plugin_config": {"use_paged_context_fmha": True}, "gather_generation_logits": False}
        engine = write_engine(folder / "target", self.target, max_draft_len=K, **options)
        texts = [[*prompt, *self.says(tuple(prompt))] for prompt in PROMPTS]
        heads = [trained_head(folder / "eagle3-head", self.target, texts, steps=60)]
        heads += [random_head(folder / f"{name}-head", name) for name in ("eagle", "medusa")]
        for head in map(read_head, heads):
            build_head(head, engine, folder / head.method)
        build_layers([0, 6], engine, folder / "layers")

    def run(self, method: str, use: Use, policy: Policy = "fixed") -> Any:
        """What `use` returns of the pair as a server loads it."""
        parameters = {
            "engine_backend": "torch",
            "target_engine_dir": "target",
            "draft_engine_dir": method,
            "tokenizer_dir": "tokenizer",
            "draft_policy": policy,
            **({} if method == "layers" else {"draft_method": method}),
        }

        async def main() -> Any:
            pair = load(parameters, self.folder)
            try:
                return await asyncio.wait_for(use(pair), 300)
            finally:
                pair.shutdown()

        return asyncio.run(main())

    def _says(self, prompt: tuple[int, ...]) -> list[int]:
        return said(self.target, prompt, TOKENS)


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory, saved_llama: Callable[..., Path]) -> Build:
    folder = tmp_path_factory.mktemp("dependents")
    (folder / "tokenizer").symlink_to(saved_llama(1, torch.bfloat16, "5GB", {}))
    return Build(folder)


def ask(prompt: list[int], **options: Any) -> CompletionRequest:
    return CompletionRequest(prompt_token_ids=prompt, max_tokens=TOKENS, end_id=NO_END, **options)


def summary(delta: Delta) -> Completion:
    assert delta.completion is not None
    return delta.completion


def is_at_rest(pair: EnginePair) -> bool:
    """Says whether nobody holds a slot of the target, and each has what it counts."""
    assert isinstance(pair.target, TorchExecutor)
    assert pair.target._home
    slots = pair.target._home.slots
    return slots.busy == 0 and slots.tokens == sum(slot.held for slot in slots._slots.values())


@pytest.mark.parametrize(
    ("method", "policy"),
    [*((method, "fixed") for method in METHODS), ("eagle3", "adaptive"), ("layers", "adaptive")],
)
def test_drafts_from_inside_the_target_leave_its_greedy_text_unchanged(
    build: Build, method: str, policy: Policy
) -> None:
    """All prompts at once, with several K each, twice: first none is in the cache, and then all are."""

    async def complete(pair: EnginePair) -> list[Delta]:
        coordinator = pair.coordinator()
        requests = [
            ask(prompt, num_draft_tokens=length or None)
            for place, prompt in enumerate(PROMPTS)
            for length in (0, 1 + place)
        ]
        deltas = []
        for _ in range(2):
            deltas += await asyncio.gather(*map(coordinator.complete, requests))
        assert is_at_rest(pair)
        assert coordinator.stats.fallbacks["draft_waits"] >= len(PROMPTS)
        assert coordinator.stats.fallbacks["draft_failed"] == 0
        return deltas

    deltas = build.run(method, complete, policy)
    wanted = [build.says(tuple(prompt)) for prompt in PROMPTS for _ in range(2)]
    assert [delta.token_ids for delta in deltas] == 2 * wanted
    counts = [summary(delta).speculation for delta in deltas]
    drafted = sum(count.num_draft_tokens for count in counts)
    accepted = sum(count.num_accepted_draft_tokens for count in counts)
    assert drafted > 100
    assert accepted > drafted / 5 if method in ("eagle3", "layers") else drafted > accepted


@often("eagle3", "medusa")
def test_drafts_from_inside_the_target_leave_a_seeded_text_unchanged(build: Build, method: str) -> None:
    async def complete(pair: EnginePair) -> list[list[int]]:
        coordinator = pair.coordinator()
        sampling = SamplingConfig(temperature=0.8, top_k=20, seed=5)
        requests = [ask(PROMPTS[0], sampling=sampling, num_draft_tokens=length) for length in (0, 2, K)]
        return [(await coordinator.complete(request)).token_ids for request in requests]

    alone, *drafted = build.run(method, complete)
    assert drafted == [alone, alone]
    assert alone != build.says(tuple(PROMPTS[0]))


@often("eagle3", "layers")
def test_a_cache_that_is_too_small(build: Build, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds one text and a bit: slots are dropped under the drafts' eyes."""
    monkeypatch.setattr(torch_pair, "kv_tokens_of", lambda configs, device: 150)

    async def complete(pair: EnginePair) -> list[Delta]:
        coordinator = pair.coordinator()
        requests = [ask(prompt, num_draft_tokens=K) for prompt in PROMPTS]
        deltas = await asyncio.gather(*map(coordinator.complete, [*requests, *requests]))
        assert is_at_rest(pair)
        return deltas

    deltas = build.run(method, complete)
    wanted = [build.says(tuple(prompt)) for prompt in PROMPTS]
    assert [delta.token_ids for delta in deltas] == 2 * wanted


def before_each_step(patch: pytest.MonkeyPatch, pair: EnginePair, work: Callable[[], object]) -> None:
    """Has `work` called at each of the draft's steps, behind what it computes."""
    draft = pair.draft
    assert isinstance(draft, TorchExecutor)
    assert draft._runner
    forward = draft._runner._model.forward

    def step(*arguments: Any) -> torch.Tensor:
        logits = forward(*arguments)
        work()
        return logits

    patch.setattr(draft._runner._model, "forward", step)


@often("eagle", "layers")
def test_who_leaves_in_the_middle_of_a_draft(
    build: Build, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the target holds of the text is as good as before, for the next one who begins alike."""
    begun, may_go_on, steps = threading.Event(), threading.Event(), itertools.count()

    def wait() -> None:
        if next(steps) == 9:
            begun.set()
            assert may_go_on.wait(120)

    async def leave(pair: EnginePair) -> list[int]:
        before_each_step(monkeypatch, pair, wait)
        coordinator = pair.coordinator()
        asked = asyncio.ensure_future(coordinator.complete(ask(PROMPTS[0], num_draft_tokens=K)))
        await until(begun.is_set)
        asked.cancel()
        await until(asked.done)
        await asyncio.sleep(0)
        may_go_on.set()
        again = await coordinator.complete(ask(PROMPTS[0], num_draft_tokens=K))
        assert is_at_rest(pair)
        return again.token_ids

    assert build.run(method, leave) == build.says(tuple(PROMPTS[0]))


@often("eagle", "medusa")
def test_a_draft_that_fails_now_and_then(build: Build, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind what it has written into the target's slots."""
    dice = random.Random(3)

    def fail() -> None:
        if dice.random() < 0.1:
            raise RuntimeError("the machine has no memory left")

    async def complete(pair: EnginePair) -> list[Delta]:
        before_each_step(monkeypatch, pair, fail)
        coordinator = pair.coordinator()
        deltas = await asyncio.gather(
            *(coordinator.complete(ask(prompt, num_draft_tokens=K)) for prompt in PROMPTS)
        )
        assert draft_failures(coordinator.stats)
        assert pair.target.failure is None
        assert is_at_rest(pair)
        return deltas

    found = build.run(method, complete)
    assert [delta.token_ids for delta in found] == [build.says(tuple(prompt)) for prompt in PROMPTS]


def test_several_completions_of_one_prompt(build: Build) -> None:
    """They begin with copies of one slot, of what the head has read of it too."""
    sampling = SamplingConfig(temperature=0.9, seed=11)
    prompt = [(7 * place) % 23 for place in range(80)]

    async def complete(pair: EnginePair) -> list[list[list[int]]]:
        coordinator = pair.coordinator()
        found = []
        for length in (0, K):
            request = ask(prompt, sampling=sampling, num_return_sequences=3, num_draft_tokens=length)
            texts: dict[int, list[int]] = {0: [], 1: [], 2: []}
            async for delta in coordinator.stream(request):
                texts[delta.sequence_index] += delta.token_ids
            found.append(list(texts.values()))
        return found

    alone, drafted = build.run("eagle3", complete)
    assert alone == drafted


def test_beside_texts_that_the_target_says_alone(build: Build) -> None:
    """Drafts that are only scored read slots that are busy, which nobody notices."""

    async def complete(pair: EnginePair) -> tuple[list[Delta], Any]:
        coordinator = pair.coordinator()
        pair.rollout.take(RolloutReading(RolloutState(mode="shadow", share=1.0)))
        deltas = await asyncio.gather(*(coordinator.complete(ask(prompt)) for prompt in PROMPTS))
        assert coordinator.stats.rollout.shadow_fallbacks["draft_failed"] == 0
        return deltas, coordinator.stats.rollout.shadow

    deltas, shadow = build.run("layers", complete)
    assert [delta.token_ids for delta in deltas] == [build.says(tuple(prompt)) for prompt in PROMPTS]
    assert shadow.num_draft_tokens > 100


def test_a_draft_on_another_device(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_pair, "find_device", lambda named: named or "cuda:0")
    with pytest.raises(EngineLoadError, match="is inside its target's engine: on cuda:0, not on cpu"):
        torch_pair.load_engines([build.folder / "target", build.folder / "eagle3"], "cpu")
    with pytest.raises(EngineLoadError, match="eagle3: runs inside a target's engine, and there is none"):
        TorchExecutor(build.folder / "eagle3")
