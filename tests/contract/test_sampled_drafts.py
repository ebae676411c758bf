"""Sampled text with drafts has the target's own distribution (rules 4 and 5), on engines of TensorRT-LLM.

The engines verify drafts as NVIDIA's kernels do (`tests/fakes/external_drafts.py`); what the distribution is,
transformers say. The end token is likely, so that texts that run on past their end show.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.contract.test_sampling import p_value
from tests.contract.test_trimming import _tokenizer
from tests.fakes.bindings import stand_in, write_trtllm_engine
from tests.fakes.cpp_backend import CppBackend
from tests.fakes.engine_dir import tiny_llama, write_engine
from tests.fakes.external_drafts import Row, accept, masked, stream
from tests.fakes.suffix import SUFFIX
from tests.fakes.trimming import Keep, sometimes
from trtspec.serving.assembly import assemble
from trtspec.serving.completion import CompletionRequest
from trtspec.serving.coordinator import Coordinator
from trtspec.serving.drafters.source import Drafting
from trtspec.serving.executor import Executor, SamplingConfig
from trtspec.serving.executors.bls_executor import BlsExecutor
from trtspec.serving.executors.tensorrt_llm.trtllm_executor import KvBudget, TrtLlmExecutor, read_engine
from trtspec.serving.executors.validation import read_limits

LAYOUTS = ("in_process", "bls")
VOCAB_SIZE, TOKENS, DRAWS = 8, 3, 1000
PROMPT = [3, 5, 3, 5, 3]
LIMITS = {"max_batch_size": 16, "max_seq_len": 64, "max_draft_len": 2}
LOOKUP = {"prompt_lookup_min": 1, "prompt_lookup_max": 4}
TARGET, DRAFT = (tiny_llama(seed, vocab_size=VOCAB_SIZE, initializer_range=0.15) for seed in (1, 2))
METHODS = {
    "draft_model": None,
    "ngram": Drafting("ngram", LOOKUP),
    "hybrid": Drafting("hybrid", LOOKUP),
    "suffix": SUFFIX,
}
WARM = SamplingConfig(temperature=1.0)
Load = Callable[[Keep | None], tuple[Executor, Executor]]
"""Returns a target, which leaves so much of drafts, and a draft."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sampled")
    for name, model in (("target", TARGET), ("draft", DRAFT)):
        limits = (
            LIMITS if name == "target" else {**LIMITS, "max_draft_len": 0, "speculative_decoding_mode": 1}
        )
        write_trtllm_engine(folder / "in_process" / name, model, **limits)
        write_engine(folder / "bls" / name, model, **limits)
    return folder


@pytest.fixture(params=LAYOUTS)
def load(request: pytest.FixtureRequest, folder: Path) -> Iterator[Load]:
    layout = folder / request.param
    if request.param == "bls":
        models: list[CppBackend] = []

        def bls(keep: Keep | None = None) -> tuple[Executor, Executor]:
            models.append(CppBackend(layout / "target", *(keep,) if keep else ()))
            models.append(CppBackend(layout / "draft"))
            target, draft = (
                BlsExecutor(model, read_limits(layout / name))
                for model, name in zip(models[-2:], ("target", "draft"), strict=True)
            )
            return target, draft

        yield bls
        for model in models:
            model.close()
        return
    with stand_in() as trtllm:

        def in_process(keep: Keep | None = None) -> tuple[Executor, Executor]:
            if keep is not None:
                trtllm.Executor.KEEP = staticmethod(keep)
            draft, target = (
                TrtLlmExecutor(trtllm, read_engine(layout / name, "1.2.1"), 0, KvBudget(0.1))
                for name in ("draft", "target")
            )
            return target, draft

        yield in_process


def exact(sampling: SamplingConfig, end_id: int) -> dict[tuple[int, ...], float]:
    """The probability of each text; one that the end token ends is shorter."""
    known: dict[tuple[int, ...], float] = {}
    open_: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(TOKENS):
        longer: dict[tuple[int, ...], float] = {}
        for text, probability in open_.items():
            with torch.inference_mode():
                logits = TARGET(torch.tensor([[*PROMPT, *text]])).logits[0, -1].double().numpy()
            for token, share in enumerate(masked(logits, sampling).tolist()):
                if token == end_id:
                    known[text] = probability * share
                else:
                    longer[(*text, token)] = probability * share
        open_ = longer
    return known | open_


async def texts(
    coordinator: Coordinator, sampling: SamplingConfig, end_id: int, draws: int
) -> list[tuple[int, ...]]:
    gate = asyncio.Semaphore(LIMITS["max_batch_size"])

    async def one(seed: int) -> tuple[int, ...]:
        own = SamplingConfig(sampling.temperature, sampling.top_k, sampling.top_p, seed=seed * 7919)
        wanted = CompletionRequest(
            prompt_token_ids=PROMPT, max_tokens=TOKENS, sampling=own, end_id=end_id, tenant="all"
        )
        async with gate:
            return tuple((await coordinator.complete(wanted)).token_ids)

    return await asyncio.gather(*(one(seed) for seed in range(draws)))


def chance(
    load: Load, method: str, sampling: SamplingConfig, keep: Keep | None = None
) -> tuple[float, Coordinator]:
    """How likely the texts of so many requests are, by Pearson's chi-square."""
    end_id = int(masked(_first(), WARM).argsort()[-2])

    async def main() -> tuple[list[tuple[int, ...]], Coordinator]:
        target, draft = load(keep)
        used = draft if method in ("draft_model", "hybrid") else None
        coordinator = assemble(target, used, _tokenizer(), 2, drafting=METHODS[method])
        try:
            return await texts(coordinator, sampling, end_id, DRAWS), coordinator
        finally:
            for executor in (target, draft):
                executor.shutdown()

    said, coordinator = asyncio.run(main())
    counts, wanted = Counter(said), exact(sampling, end_id)
    assert counts.keys() <= wanted.keys()
    observed = list(itertools.chain.from_iterable([i] * counts[text] for i, text in enumerate(wanted)))
    return p_value(observed, torch.tensor(list(wanted.values()), dtype=torch.float64)), coordinator


def _first() -> Row:
    with torch.inference_mode():
        logits: Row = TARGET(torch.tensor([PROMPT])).logits[0, -1].double().numpy()
    return logits


SAMPLINGS = [
    WARM,
    SamplingConfig(temperature=0.6),
    SamplingConfig(temperature=1.5, top_k=4),
    SamplingConfig(temperature=1.2, top_p=0.8),
    SamplingConfig(top_k=5, top_p=0.9, temperature=0.9),
]
CASES = [("draft_model", sampling) for sampling in SAMPLINGS]
CASES += [(method, WARM) for method in ("ngram", "hybrid", "suffix")]
# Each takes 4 s of a processor: together these have both layouts, a draft model and the text itself, and both
# bounds of sampling. Of hybrid's drafts some are those of ngram.
OFTEN = {("bls", 4), ("in_process", 6)}


@pytest.mark.parametrize(
    ("load", "method", "sampling"),
    [
        pytest.param(layout, *case, marks=() if (layout, number) in OFTEN else pytest.mark.sweep)
        for layout in LAYOUTS
        for number, case in enumerate(CASES)
    ],
    indirect=["load"],
)
def test_texts_with_drafts_are_the_targets(load: Load, method: str, sampling: SamplingConfig) -> None:
    likely, coordinator = chance(load, method, sampling)
    assert likely > 1e-3
    assert sum(each.num_draft_tokens for each in coordinator.stats.by_origin.values()) > DRAWS / 4


@pytest.mark.sweep
@pytest.mark.parametrize("load", ["in_process", pytest.param("bls", marks=pytest.mark.sweep)], indirect=True)
def test_a_trimmed_draft_changes_no_distribution(load: Load) -> None:
    likely, _ = chance(load, "draft_model", WARM, sometimes(3))
    assert likely > 1e-3


@pytest.mark.parametrize(
    ("one_hot", "is_apart", "is_exact"), [(False, True, False), (True, False, False), (True, True, True)]
)
def test_acceptance_is_exact_only_with_one_hot_logits_and_separate_random_numbers(
    one_hot: bool, is_apart: bool, is_exact: bool
) -> None:
    """One-hot logits, and a draft that is not drawn with the numbers by which it is accepted."""
    target, draft = np.array([0.5, 0.3, 0.2]), np.array([0.4, 0.4, 0.2])
    said = []
    for seed in range(8000):
        token = int(np.searchsorted(np.cumsum(draft), stream(seed + 10**6 * is_apart)()))
        row = np.where(np.arange(3) == token, 1000.0, 0.0) if one_hot else None
        own = accept(target, token, row, stream(seed), None)
        said.append(token if own is None else own)
    assert (p_value(said, torch.tensor(target)) > 1e-3) is is_exact
