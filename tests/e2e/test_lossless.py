"""Speculation changes the speed, never the text: on the tiny pair and prompts that it was not trained on."""

from __future__ import annotations

import asyncio
import sysconfig
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.fakes.suffix import SUFFIX
from tests.support.command_line import trtspec
from trtspec.serving.adaptive.policy import Policy
from trtspec.serving.assembly import assemble
from trtspec.serving.completion import NO_END, CompletionRequest
from trtspec.serving.coordinator import Coordinator
from trtspec.serving.drafters.source import DRAFT_MODEL, Drafting
from trtspec.serving.executor import SamplingConfig
from trtspec.serving.executors.torch.device_thread import DeviceThread
from trtspec.serving.executors.torch.torch_executor import TorchExecutor
from trtspec.serving.tokenizer import Tokenizer

TINY = Path(__file__).parents[2] / "recipes" / "tiny"
FEW, MANY = 40, 200  # prompts
MAX_TOKENS = 16
NEAR_TIE = 2.0**-2  # four units in the last place of a bfloat16 between 8 and 16, where these logits lie


@dataclass(frozen=True)
class Pair:
    """A loaded pair behind a coordinator, on the loop that it belongs to."""

    loop: asyncio.AbstractEventLoop
    target: TorchExecutor
    draft: TorchExecutor
    coordinator: Coordinator
    tokenizer: Tokenizer

    def drafting(self, drafting: Drafting, policy: Policy) -> Pair:
        """The same engines behind another coordinator."""
        coordinator = assemble(self.target, self.draft, self.tokenizer, drafting=drafting, policy=policy)
        return replace(self, coordinator=coordinator)

    def complete(self, requests: Sequence[CompletionRequest], concurrency: int) -> list[list[int]]:
        """The token ids of each completion, in the order of the requests."""
        return self.loop.run_until_complete(self._complete(requests, concurrency))

    async def _complete(self, requests: Sequence[CompletionRequest], concurrency: int) -> list[list[int]]:
        gate = asyncio.Semaphore(concurrency)

        async def one(request: CompletionRequest) -> list[int]:
            async with gate:
                return (await self.coordinator.complete(request)).token_ids

        return list(await asyncio.gather(*(one(request) for request in requests)))


def build(folder: Path, dtype: str) -> Path:
    recipe = folder / "recipe.yaml"
    text = (TINY / "recipe.yaml").read_text()
    for model in ("target", "draft"):
        text = text.replace(f"./{model}", str(TINY / model))
    recipe.write_text(text.replace("dtype: float32", f"dtype: {dtype}"))
    result = trtspec("build", recipe, "--output", folder / "build")
    assert result.returncode == 0, result.stderr
    return folder / "build"


def load(folder: Path) -> Iterator[Pair]:
    loop = asyncio.new_event_loop()
    device_thread = DeviceThread()
    draft = TorchExecutor(folder / "draft" / "engine", device_thread=device_thread)
    target = TorchExecutor(folder / "target" / "engine", device_thread=device_thread)
    tokenizer = Tokenizer.load(folder / "tokenizer")
    yield Pair(loop, target, draft, assemble(target, draft, tokenizer), tokenizer)
    target.shutdown()
    draft.shutdown()
    loop.close()


@pytest.fixture(scope="module")
def float32_pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    yield from load(build(tmp_path_factory.mktemp("float32"), "float32"))


@pytest.fixture(scope="module")
def bfloat16_pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    yield from load(build(tmp_path_factory.mktemp("bfloat16"), "bfloat16"))


@pytest.fixture(scope="module")
def prompts() -> list[str]:
    """Beginnings of 40 to 400 characters, cut evenly from the held-out files."""
    library = Path(sysconfig.get_paths()["stdlib"])
    files = [library / line for line in (TINY / "heldout.txt").read_text().split()]
    texts = [file.read_text(encoding="utf-8") for file in files]
    cuts = []
    for number in range(MANY):
        text = texts[number % len(texts)]
        start = (number * 7919) % max(1, len(text) - 400)
        cuts.append(text[start : start + 40 + (number * 53) % 361])
    return cuts


def greedy(prompt: str, num_draft_tokens: int | None) -> CompletionRequest:
    return CompletionRequest(prompt=prompt, max_tokens=MAX_TOKENS, num_draft_tokens=num_draft_tokens)


def said(
    pair: Pair, prompts: Sequence[str], num_draft_tokens: int | None, concurrency: int
) -> list[list[int]]:
    return pair.complete([greedy(prompt, num_draft_tokens) for prompt in prompts], concurrency)


@pytest.fixture(scope="module")
def plain_text(float32_pair: Pair, prompts: list[str]) -> list[list[int]]:
    """What the target alone says after the first few prompts."""
    return said(float32_pair, prompts[:FEW], 0, 1)


@pytest.mark.parametrize(
    ("num_draft_tokens", "concurrency"),
    [*(pytest.param(*case, marks=pytest.mark.sweep) for case in ((1, 16), (4, 1))), (8, 16)],
)
def test_a_draft_model_leaves_greedy_text_unchanged(
    float32_pair: Pair,
    prompts: list[str],
    plain_text: list[list[int]],
    num_draft_tokens: int,
    concurrency: int,
) -> None:
    assert said(float32_pair, prompts[:FEW], num_draft_tokens, concurrency) == plain_text


@pytest.fixture(scope="module")
def much_plain_text(float32_pair: Pair, prompts: list[str]) -> list[list[int]]:
    return said(float32_pair, prompts, 0, 1)


@pytest.mark.sweep
@pytest.mark.parametrize("concurrency", [1, 16])
@pytest.mark.parametrize("num_draft_tokens", range(1, 9))
def test_a_draft_model_leaves_200_greedy_texts_unchanged(
    float32_pair: Pair,
    prompts: list[str],
    much_plain_text: list[list[int]],
    num_draft_tokens: int,
    concurrency: int,
) -> None:
    assert said(float32_pair, prompts, num_draft_tokens, concurrency) == much_plain_text


LOOKUP = {"prompt_lookup_min": 2, "prompt_lookup_max": 8}
METHODS = {
    "draft_model": DRAFT_MODEL,
    "ngram": Drafting("ngram", LOOKUP),
    "hybrid": Drafting("hybrid", LOOKUP),
    "suffix": SUFFIX,
}
POLICIES: tuple[Policy, ...] = ("fixed", "adaptive")


@pytest.mark.sweep
@pytest.mark.parametrize("concurrency", [1, 16])
@pytest.mark.parametrize(("method", "policy"), list(product(METHODS, POLICIES))[1:])
def test_greedy_text_is_the_target_alone_with_any_drafter_and_policy(
    float32_pair: Pair,
    prompts: list[str],
    much_plain_text: list[list[int]],
    method: str,
    policy: Policy,
    concurrency: int,
) -> None:
    pair = float32_pair.drafting(METHODS[method], policy)
    assert said(pair, prompts, None, concurrency) == much_plain_text
    counts = pair.coordinator.stats.by_origin
    drafted = {origin for origin in counts if counts[origin].num_accepted_draft_tokens}
    expected = {"draft_model": {"engine"}, "hybrid": {"engine", "lookup"}}
    assert drafted == expected.get(method, {"lookup"})


def test_greedy_text_is_what_transformers_generates(
    prompts: list[str], plain_text: list[list[int]], float32_pair: Pair
) -> None:
    model = AutoModelForCausalLM.from_pretrained(TINY / "target", dtype=torch.float32)
    for prompt, expected in list(zip(prompts, plain_text, strict=False))[::2]:
        ids = torch.tensor([float32_pair.tokenizer.encode(prompt)])
        output = model.generate(ids, max_new_tokens=MAX_TOKENS, do_sample=False)[0, ids.shape[1] :].tolist()
        assert model.generation_config is not None
        end = model.generation_config.eos_token_id
        assert [token for token in output if token != end] == expected


@pytest.mark.sweep
@pytest.mark.parametrize("count", [FEW, MANY])
def test_a_bfloat16_difference_starts_at_a_near_tie(
    bfloat16_pair: Pair, prompts: list[str], count: int
) -> None:
    """Other batch shapes round otherwise; that may decide only between tokens the target holds for equal."""
    model = AutoModelForCausalLM.from_pretrained(TINY / "target", dtype=torch.bfloat16)
    plain = said(bfloat16_pair, prompts[:count], 0, 1)
    for concurrency in (1, 16):
        texts = said(bfloat16_pair, prompts[:count], 4, concurrency)
        for prompt, expected, found in zip(prompts, plain, texts, strict=False):
            if expected == found:
                continue
            same = next(i for i, (a, b) in enumerate(zip(expected, found, strict=False)) if a != b)
            ids = torch.tensor([bfloat16_pair.tokenizer.encode(prompt) + expected[:same]])
            with torch.inference_mode():
                logits = model(ids).logits[0, -1].float()
            first, second = logits.topk(2).values.tolist()
            assert first - second <= NEAR_TIE, (prompt, same, first, second)
            assert {expected[same], found[same]} <= set(logits.topk(3).indices.tolist())


def sampled(prompt: str, seed: int, num_draft_tokens: int, max_tokens: int) -> CompletionRequest:
    sampling = SamplingConfig(temperature=0.8, top_k=20, seed=seed)
    return CompletionRequest(
        prompt=prompt,
        max_tokens=max_tokens,
        num_draft_tokens=num_draft_tokens,
        sampling=sampling,
        end_id=NO_END,
    )


@pytest.mark.sweep
def test_a_draft_model_leaves_a_seeded_text_unchanged(float32_pair: Pair, prompts: list[str]) -> None:
    alone = [sampled(prompt, 7, 0, MAX_TOKENS) for prompt in prompts[:40]]
    with_draft = [sampled(prompt, 7, 4, MAX_TOKENS) for prompt in prompts[:40]]
    assert float32_pair.complete(with_draft, 16) == float32_pair.complete(alone, 1)


def first_tokens(pair: Pair, prompt: str, seeds: range, num_draft_tokens: int) -> list[tuple[int, ...]]:
    requests = [sampled(prompt, seed, num_draft_tokens, max_tokens=4) for seed in seeds]
    return [tuple(tokens[:2]) for tokens in pair.complete(requests, 16)]


def same_distribution(one: list[tuple[int, ...]], other: list[tuple[int, ...]]) -> float:
    """The p-value of Pearson's chi-square test of two samples; outcomes seen under 10 times are pooled."""
    both = Counter(one) + Counter(other)
    common = [outcome for outcome, count in both.items() if count >= 10]
    counts = [
        Counter(outcome if outcome in common else None for outcome in sample) for sample in (one, other)
    ]
    table = torch.tensor([[count[outcome] for outcome in [*common, None]] for count in counts])
    table = table[:, table.sum(0) > 0].double()
    expected = table.sum(1, keepdim=True) * table.sum(0, keepdim=True) / table.sum()
    statistic = ((table - expected) ** 2 / expected).sum()
    freedom = torch.tensor(table.shape[1] - 1.0, dtype=torch.float64)
    return float(torch.special.gammaincc(freedom / 2, statistic / 2))


@pytest.mark.parametrize(
    ("number", "count"),
    [pytest.param(number, 1000, marks=pytest.mark.sweep) for number in (3, 11, 42)],
)
def test_sampled_tokens_have_the_distribution_of_the_target(
    float32_pair: Pair, prompts: list[str], number: int, count: int
) -> None:
    """Other seeds on either side, so that nothing but the distribution can make them agree."""
    alone = first_tokens(float32_pair, prompts[number], range(count), 0)
    with_draft = first_tokens(float32_pair, prompts[number], range(10**6, 10**6 + count), 3)
    assert same_distribution(alone, with_draft) > 1e-3


def test_the_distribution_test_sees_a_difference() -> None:
    fair: list[tuple[int, ...]] = [(i % 4,) for i in range(500)]
    loaded: list[tuple[int, ...]] = [(i % 4 if i % 5 else 0,) for i in range(500)]
    assert same_distribution(fair, loaded) < 1e-3
