"""Guides for an engine that is a Triton model: NVIDIA's tensors, one request a text, nothing drafted."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.bls_model import BlsModel
from tests.fakes.engine_dir import tiny_llama, write_engine
from trtspec.serving.assembly import assemble
from trtspec.serving.completion import CompletionRequest, Delta, EndReason
from trtspec.serving.errors import EngineFailure, RequestError
from trtspec.serving.executor import Guide, GuideType, SamplingConfig
from trtspec.serving.executors.bls.bls_executor import BlsExecutor
from trtspec.serving.executors.bls.tensors import Arrays, Outputs
from trtspec.serving.executors.limits import read_limits
from trtspec.serving.executors.torch.torch_executor import TorchExecutor
from trtspec.serving.guides.guides import Guides
from trtspec.serving.tokenizer import Tokenizer

Run = Callable[[Any], Any]
SIZE = 288
GUIDE = Guide(GuideType.JSON_SCHEMA, '{"type": "array", "items": {"enum": ["hello", 12, "é"]}}')
PUSH = (*((letter, 6.0) for letter in '",]}!'), ("<|end|>", 9.0))
GUIDED = CompletionRequest("hello", max_tokens=90, embedding_bias=PUSH, guide=GUIDE)


class Listening(BlsModel):
    """Keeps what it hears."""

    def __init__(self, engine_dir: Path, guides: Guides | None) -> None:
        super().__init__(lambda: TorchExecutor(engine_dir, guides=guides))
        self.heard: list[Arrays] = []

    def infer(self, inputs: Arrays, request_id: str) -> Outputs:
        self.heard.append(inputs)
        return super().infer(inputs, request_id)


@pytest.fixture
def engine_dir(tmp_path: Path) -> Path:
    return write_engine(tmp_path / "engine", tiny_llama(vocab_size=SIZE))


def test_a_guided_stream_is_one_request_with_the_text_of_the_engine(
    run: Run, tokenizer: Tokenizer, engine_dir: Path
) -> None:
    of_engine, of_coordinator = (Guides(tokenizer.vocabulary, SIZE) for _ in range(2))
    model = Listening(engine_dir, of_engine)
    executor = BlsExecutor(model, read_limits(engine_dir), guide_end_id=tokenizer.end_ids[0])

    async def main() -> tuple[Delta, Delta]:
        coordinator = assemble(executor, None, tokenizer, guides=of_coordinator)
        ours = await coordinator.complete(GUIDED)
        broken = replace(GUIDED, guide=Guide(GuideType.REGEX, "("))
        heard = len(model.heard)
        with pytest.raises(RequestError):
            await coordinator.complete(broken)
        assert len(model.heard) == heard
        plain = TorchExecutor(engine_dir, guides=of_coordinator)
        theirs = await assemble(plain, None, tokenizer, guides=of_coordinator).complete(GUIDED)
        plain.shutdown()
        return ours, theirs

    try:
        ours, theirs = run(main())
    finally:
        model.service.close()
    assert ours.text == theirs.text
    assert isinstance(json.loads(ours.text), list)
    assert ours.completion.end_reason is EndReason.END_ID
    assert ours.completion.undrafted_for == ("guided_decoding_guide_type",)
    [asked] = model.heard
    assert asked["guided_decoding_guide_type"].tolist() == [[b"json_schema"]]
    assert asked["guided_decoding_guide"].tolist() == [[GUIDE.guide.encode()]]
    assert asked["request_output_len"].tolist() == [[90]]
    assert "draft_input_ids" not in asked


@pytest.mark.parametrize(
    ("field", "request_"),
    [
        ("guide_type", replace(GUIDED, guide=Guide(GuideType.STRUCTURAL_TAG, "{}"))),
        ("end_id", replace(GUIDED, end_id=3)),
        ("bad_words", replace(GUIDED, bad_words=("a",))),
        ("min_tokens", replace(GUIDED, sampling=SamplingConfig(min_tokens=2))),
    ],
)
def test_a_guided_request_that_nvidias_backend_would_misread_is_refused(
    run: Run, tokenizer: Tokenizer, engine_dir: Path, field: str, request_: CompletionRequest
) -> None:
    """It takes a type that it does not know for no guide at all."""
    model = Listening(engine_dir, None)
    executor = BlsExecutor(model, read_limits(engine_dir), guide_end_id=tokenizer.end_ids[0])

    async def main() -> None:
        with pytest.raises(RequestError) as caught:
            await assemble(executor, None, tokenizer).complete(request_)
        assert caught.value.field == field

    try:
        run(main())
    finally:
        model.service.close()
    assert model.heard == []


def test_models_that_follow_no_guides_say_so(run: Run, tokenizer: Tokenizer, engine_dir: Path) -> None:
    """Whether the coordinator knows it, or only the model does."""
    model = Listening(engine_dir, None)
    limits = read_limits(engine_dir)

    async def main() -> None:
        with pytest.raises(RequestError, match="the target engine follows no guide"):
            await assemble(BlsExecutor(model, limits), None, tokenizer).complete(GUIDED)
        assert model.heard == []
        unaware = BlsExecutor(model, limits, guide_end_id=tokenizer.end_ids[0])
        with pytest.raises(EngineFailure, match="follows no guides of the type json_schema"):
            await assemble(unaware, None, tokenizer).complete(GUIDED)

    try:
        run(main())
    finally:
        model.service.close()
