"""Guides in TensorRT-LLM's runtime: one request each, without drafts, and only what it can follow."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import xgrammar

from tests.fakes.bindings import change_config
from tests.fakes.engine_dir import tiny_llama, write_engine
from trtspec.serving.assembly import assemble
from trtspec.serving.completion import CompletionRequest, Delta, EndReason
from trtspec.serving.errors import RequestError
from trtspec.serving.executor import Executor, Guide, GuideType, Request, SamplingConfig
from trtspec.serving.executors.tensorrt_llm.guided import GUIDE_TYPES, guided_vocabulary
from trtspec.serving.executors.tensorrt_llm.trtllm_executor import (
    EngineLocation,
    TrtLlmExecutor,
    load_engines,
)
from trtspec.serving.executors.torch.torch_executor import TorchExecutor
from trtspec.serving.guides.guides import Guides
from trtspec.serving.tokenizer import Tokenizer

Run = Callable[[Any], Any]
Load = Callable[[], list[TrtLlmExecutor]]
SIZE = 288
PUSH = (*((letter, 6.0) for letter in '",]}!'), ("<|end|>", 9.0))
SCHEMA = '{"type": "array", "items": {"enum": ["hello", 12, "é"]}}'
GUIDED = CompletionRequest(
    "hello",
    max_tokens=90,
    embedding_bias=PUSH,
    guide=Guide(GuideType.JSON_SCHEMA, SCHEMA),
)


@pytest.fixture
def guides(tokenizer: Tokenizer) -> Guides:
    return Guides(tokenizer.vocabulary, SIZE)


@pytest.fixture
def target(write: Any) -> Path:
    folder: Path = write("target", tiny_llama(vocab_size=SIZE))
    return folder


@pytest.fixture
def load(trtllm: Any, write: Any, tokenizer: Tokenizer, target: Path) -> Load:
    """Loads a target that follows guides, and its draft."""
    draft = write("draft", tiny_llama(vocab_size=SIZE), speculative_decoding_mode=1, max_draft_len=0)
    locations = [EngineLocation(folder, 0) for folder in (target, draft)]
    return lambda: load_engines(trtllm, locations, 0.5, guided_vocabulary(tokenizer, SIZE))


@pytest.mark.parametrize("kind", ["byte_level", "sentencepiece"])
def test_xgrammar_reads_the_same_bytes_from_what_the_engine_is_told(
    kind: str, request: pytest.FixtureRequest
) -> None:
    inner: tokenizers.Tokenizer = request.getfixturevalue(kind)
    tokenizer = Tokenizer(inner, (inner.token_to_id("<|end|>") or 2,))
    told = guided_vocabulary(tokenizer, SIZE)
    assert told is not None
    read = xgrammar.TokenizerInfo._detect_metadata_from_hf(told.tokenizer_str)
    tokens = xgrammar.TokenizerInfo(
        told.encoded_vocab, read["vocab_type"], vocab_size=SIZE, stop_token_ids=[told.stop_token_id]
    )
    assert tokens.decoded_vocab == tokenizer.vocabulary(SIZE)
    assert tokens.stop_token_ids == [told.stop_token_id]
    nameless = {index for index, name in enumerate(told.encoded_vocab) if not name}
    assert set(tokens.special_token_ids) == nameless - {told.stop_token_id}


def test_a_tokenizer_without_an_end_token_has_no_guides(byte_level: tokenizers.Tokenizer) -> None:
    assert guided_vocabulary(Tokenizer(byte_level), SIZE) is None


def test_a_guided_text_is_that_of_the_torch_backend_and_nothing_is_drafted(
    run: Run, load: Load, guides: Guides, tokenizer: Tokenizer, trtllm: Any, tmp_path: Path
) -> None:
    async def main() -> tuple[Delta, Delta, Delta]:
        target, draft = load()
        both = assemble(target, draft, tokenizer, guides=guides)
        ours, free = await asyncio.gather(
            both.complete(GUIDED),
            both.complete(replace(GUIDED, guide=None, embedding_bias=(), num_draft_tokens=3)),
        )
        folder = write_engine(tmp_path / "torch", tiny_llama(vocab_size=SIZE))
        plain = TorchExecutor(folder, guides=guides)
        theirs = await assemble(plain, None, tokenizer, guides=guides).complete(GUIDED)
        plain.shutdown()
        return ours, theirs, free

    ours, theirs, free = run(main())
    assert ours.text == theirs.text
    assert isinstance(json.loads(ours.text), list)
    assert ours.completion is not None
    assert free.completion is not None
    assert ours.completion.end_reason is EndReason.END_ID
    assert ours.completion.undrafted_for == ("guided_decoding_guide_type",)
    assert free.completion.undrafted_for == ()
    assert free.completion.speculation.num_draft_tokens > 0
    draft, target = trtllm.Executor.MADE
    assert draft.config.guided_decoding_config is None
    assert target.config.guided_decoding_config.stop_token_ids == [tokenizer.end_ids[0]]
    [asked] = [request for request in target.requests if request.guided_decoding_params]
    params = asked.guided_decoding_params
    assert params.guide_type is trtllm.GuidedDecodingParams.GuideType.JSON_SCHEMA
    assert params.guide == SCHEMA
    assert asked.external_draft_tokens_config is None
    assert all(request.guided_decoding_params is None for request in draft.requests)


def test_a_structural_tag_is_followed(
    run: Run, load: Load, guides: Guides, tokenizer: Tokenizer, trtllm: Any
) -> None:
    tag = f'{{"type": "structural_tag", "format": {{"type": "json_schema", "json_schema": {SCHEMA}}}}}'

    async def main() -> Delta:
        target, draft = load()
        coordinator = assemble(target, draft, tokenizer, guides=guides)
        return await coordinator.complete(replace(GUIDED, guide=Guide(GuideType.STRUCTURAL_TAG, tag)))

    assert isinstance(json.loads(run(main()).text), list)
    [asked] = trtllm.Executor.MADE[1].requests
    assert asked.guided_decoding_params.guide_type is trtllm.GuidedDecodingParams.GuideType.STRUCTURAL_TAG


REFUSED = {
    "guide": replace(GUIDED, guide=Guide(GuideType.JSON_SCHEMA, '{"type": "word"}')),
    "end_id": replace(GUIDED, end_id=-1),
    "bad_words": replace(GUIDED, bad_words=("hello",)),
    "min_tokens": replace(GUIDED, sampling=SamplingConfig(min_tokens=3)),
}


@pytest.mark.parametrize("field", REFUSED)
def test_a_guided_request_that_would_end_or_derail_the_engine_never_reaches_it(
    run: Run, load: Load, guides: Guides, tokenizer: Tokenizer, trtllm: Any, field: str
) -> None:
    async def main() -> None:
        target, draft = load()
        coordinator = assemble(target, draft, tokenizer, guides=guides)
        at_work = asyncio.ensure_future(coordinator.complete(replace(GUIDED, guide=None)))
        with pytest.raises(RequestError) as caught:
            await coordinator.complete(REFUSED[field])
        assert caught.value.field == field
        assert (await at_work).completion is not None

    run(main())
    assert all(request.guided_decoding_params is None for request in trtllm.Executor.MADE[1].requests)


DERAILING = [
    Request([1, 2], 4, guide=Guide(GuideType.JSON)),
    Request([1, 2], 4, end_id=-1, guide=Guide(GuideType.JSON)),
    Request([1, 2], 4, end_id=7, guide=Guide(GuideType.JSON)),
    Request([1, 2], 4, end_id=0, bad_words=[[4]], guide=Guide(GuideType.JSON)),
    Request([1, 2], 4, end_id=0, sampling=SamplingConfig(min_tokens=2), guide=Guide(GuideType.JSON)),
    Request([1, 2], 4, [5], end_id=0, guide=Guide(GuideType.JSON)),
    Request([1, 2], 4, end_id=0, guide=Guide(GuideType.JSON), num_guided=1),
]


@pytest.mark.parametrize("number", range(len(DERAILING)))
def test_the_executor_refuses_it_too(
    run: Run, load: Load, tokenizer: Tokenizer, trtllm: Any, final: Any, number: int
) -> None:
    request = DERAILING[number]
    if request.end_id == 0:
        request = replace(request, end_id=tokenizer.end_ids[0])

    async def main() -> None:
        target, _ = load()
        assert (await final(target, request)).error is not None
        assert target.limits.guide_types == GUIDE_TYPES
        assert not target.limits.resumes_guides

    run(main())
    assert trtllm.Executor.MADE[1].requests == []


def test_an_engine_that_was_told_of_no_vocabulary_follows_none(
    run: Run, trtllm: Any, target: Path, tokenizer: Tokenizer, guides: Guides, final: Any
) -> None:
    """Nor does one whose logits the runtime cannot mask."""
    vocabulary = guided_vocabulary(tokenizer, SIZE)

    async def main() -> None:
        untold: Executor
        [untold] = load_engines(trtllm, [EngineLocation(target, 0)], 0.3)
        change_config(target, "pretrained_config", logits_dtype="bfloat16")
        [unmasked] = load_engines(trtllm, [EngineLocation(target, 0)], 0.3, vocabulary)
        for executor in (untold, unmasked):
            assert executor.limits.guide_types == frozenset()
            answer = await final(executor, Request([1], 4, guide=Guide(GuideType.JSON)))
            assert answer.error == "The engine follows no guides of the type json"
            with pytest.raises(RequestError, match="follows no guide"):
                await assemble(executor, None, tokenizer, guides=guides).complete(GUIDED)

    run(main())
