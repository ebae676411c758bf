"""An engine with Medusa's heads inside: it drafts by itself, and is asked for plain decoding."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from tests.fakes.bindings import change_config, write_medusa_engine, write_trtllm_engine
from tests.fakes.engine_dir import tiny_llama
from trtspec.backends.tensorrt_llm.heads import choices
from trtspec.serving.errors import EngineLoadError
from trtspec.serving.executor import FinishReason, Guide, GuideType, Request, Response, SamplingConfig
from trtspec.serving.executors.tensorrt_llm.guided import GuidedVocabulary
from trtspec.serving.executors.tensorrt_llm.runtime_draft import (
    LookaheadSizes,
    MedusaTree,
    as_parameter,
    read_choices,
)
from trtspec.serving.executors.tensorrt_llm.trtllm_executor import (
    EngineLocation,
    TrtLlmExecutor,
    load_engines,
)
from trtspec.serving.executors.validation import GREEDY_ALONE, read_limits

HEADS = 3
TREE = MedusaTree(tuple(choices(HEADS)))
PROMPT = [5, 17, 33, 60]


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return tiny_llama(dtype=torch.float32, max_position_embeddings=512)


@pytest.fixture
def folder(tmp_path: Path, model: PreTrainedModel) -> Path:
    return write_medusa_engine(tmp_path / "engine", model, HEADS, max_seq_len=191)


def load(trtllm: Any, folder: Path, tree: Any = TREE) -> TrtLlmExecutor:
    (executor,) = load_engines(trtllm, [EngineLocation(folder, 0, True, tree)], 0.5)
    return executor


def said(executor: TrtLlmExecutor, *requests: Request) -> list[list[Response]]:
    """All responses to each request."""

    async def ask(request: Request) -> list[Response]:
        heard, done = list[Response](), asyncio.get_running_loop().create_future()

        def listen(response: Response) -> None:
            heard.append(response)
            if response.is_final:
                done.set_result(None)

        executor.enqueue_request(request, listen)
        await asyncio.wait_for(done, 120)
        return heard

    async def main() -> list[list[Response]]:
        return await asyncio.gather(*map(ask, requests))

    return asyncio.run(main())


def greedy(model: PreTrainedModel, count: int, bias: dict[int, float] | None = None) -> list[int]:
    """What the model says after the prompt, without a cache."""
    text = list(PROMPT)
    with torch.inference_mode():
        for _ in range(count):
            logits = model(torch.tensor([text])).logits[0, -1]
            for token, value in (bias or {}).items():
                logits[token] += value
            text.append(int(logits.argmax()))
    return text[len(PROMPT) :]


def test_the_runtime_receives_the_medusa_mode_and_the_choices_of_the_tree(trtllm: Any, folder: Path) -> None:
    load(trtllm, folder)
    config = trtllm.Executor.MADE[-1].config.decoding_config
    assert config.decoding_mode.isMedusa()
    assert config.medusa_choices == [list(path) for path in TREE.choices]


def test_other_engines_are_told_of_none(trtllm: Any, tmp_path: Path, model: PreTrainedModel) -> None:
    load(trtllm, write_trtllm_engine(tmp_path / "plain", model), None)
    assert trtllm.Executor.MADE[-1].config.decoding_config is None


def test_a_medusa_engine_streams_the_greedy_text_of_its_model_in_steps(
    trtllm: Any, folder: Path, model: PreTrainedModel
) -> None:
    text = greedy(model, 40)
    executor = load(trtllm, folder)
    whole, streamed = said(executor, Request(PROMPT, 40), Request(PROMPT, 40, streaming=True))
    assert [response.token_ids for response in whole] == [text]
    assert [token for response in streamed for token in response.token_ids] == text
    assert {len(response.token_ids) for response in streamed} > {1, HEADS + 1}
    assert streamed[-1].finish_reason is FinishReason.LENGTH


def test_the_end_token_ends_a_step(trtllm: Any, folder: Path, model: PreTrainedModel) -> None:
    text = greedy(model, 30)
    position = next(i for i in range(4, 30) if text[i] not in text[:i])
    request = Request(PROMPT, 30, end_id=text[position])
    executor = load(trtllm, folder)
    for responses in said(executor, request, replace(request, streaming=True)):
        assert [token for response in responses for token in response.token_ids] == text[:position]
        assert responses[-1].finish_reason is FinishReason.END_ID


def test_a_bias_is_the_targets(trtllm: Any, folder: Path, model: PreTrainedModel) -> None:
    bias = {greedy(model, 1)[0]: -100.0}
    ((response,),) = said(load(trtllm, folder), Request(PROMPT, 12, embedding_bias=bias))
    assert response.token_ids == greedy(model, 12, bias)


def test_the_limits_of_a_medusa_engine_leave_room_for_its_tree(trtllm: Any, folder: Path) -> None:
    """Of 191 tokens 63 are those of the tree, whether an engine is asked in this process or not."""
    limits = load(trtllm, folder).limits
    assert (limits.max_seq_len, limits.max_input_len, limits.max_draft_len) == (128, 127, 0)
    assert read_limits(folder) == limits
    ((response,),) = said(load(trtllm, folder), Request(list(range(1, 91)), 100))
    assert len(response.token_ids) == 38
    ((refused,),) = said(load(trtllm, folder), Request([1] * 128, 1))
    assert refused.error


@pytest.mark.parametrize(
    "changes",
    [
        {"sampling": SamplingConfig(temperature=1.0)},
        {"sampling": SamplingConfig(top_k=4)},
        {"sampling": SamplingConfig(frequency_penalty=0.5)},
        {"sampling": SamplingConfig(min_tokens=4)},
        {"bad_words": [[7]]},
        {"return_log_probs": True},
        {"draft_token_ids": [1, 2]},
        {"guide": Guide(GuideType.JSON), "end_id": 2},
    ],
)
def test_a_medusa_engine_refuses_requests_that_it_would_not_follow(
    trtllm: Any, folder: Path, changes: dict[str, Any]
) -> None:
    executor = load(trtllm, folder)
    ((response,),) = said(executor, Request(PROMPT, 8, **changes))
    assert response.error
    assert trtllm.Executor.MADE[-1].requests == []


def test_guides_are_not_followed(trtllm: Any, folder: Path) -> None:
    vocabulary = GuidedVocabulary(["a"], "{}", 2)
    (executor,) = load_engines(trtllm, [EngineLocation(folder, 0, True, TREE)], 0.5, vocabulary)
    assert executor.limits.guide_types == frozenset()
    assert trtllm.Executor.MADE[-1].config.guided_decoding_config is None
    assert executor.limits.ignored_options == GREEDY_ALONE


@pytest.mark.parametrize(
    ("tree", "problem"),
    [
        (None, "drafts by itself, but config.pbtxt lacks the parameters for that"),
        (
            MedusaTree(TREE.choices[:-1]),
            r"medusa_choices: \{0\}.* mode 4 with max_draft_len 63, and this is of mode 4 with 62",
        ),
        (LookaheadSizes(7, 7, 5), r"lookahead_window_size: 7, 7, 5: .* mode 4 .* this is of mode 8 with 71"),
    ],
)
def test_a_medusa_engine_with_another_tree_is_refused_before_it_is_loaded(
    trtllm: Any, folder: Path, tree: Any, problem: str
) -> None:
    with pytest.raises(EngineLoadError, match=problem):
        load(trtllm, folder, tree)
    assert trtllm.Executor.MADE == []


def test_a_tree_for_an_engine_without_heads(trtllm: Any, tmp_path: Path, model: PreTrainedModel) -> None:
    with pytest.raises(
        EngineLoadError, match="was built for mode 2 with max_draft_len 6, and this is of mode 4 with 63"
    ):
        load(trtllm, write_trtllm_engine(tmp_path / "plain", model), TREE)


def test_a_medusa_tree_that_the_runtime_rejects_is_reported_in_its_words(trtllm: Any, folder: Path) -> None:
    change_config(folder, "pretrained_config", num_medusa_heads=2)
    with pytest.raises(EngineLoadError, match="Choices require larger maxPathLen than the engine"):
        load(trtllm, folder)


class TestChoices:
    def test_they_are_written_as_the_backend_reads_them(self) -> None:
        """The texts are those of NVIDIA's own test of `csvStrToVecVecInt` (utilsTest.cpp)."""
        assert as_parameter([(1, 5), (1, 2, 3)]) == "{1, 5}, {1, 2, 3}"
        assert read_choices("{1, 5}, {1, 2, 3}") == read_choices("{1,5},{1,2,3}") == ((1, 5), (1, 2, 3))
        assert read_choices("{0}") == ((0,),)
        assert read_choices(as_parameter(TREE.choices)) == TREE.choices

    @pytest.mark.parametrize("text", ["a", "0,1,", "{a}", "{bdfda,,}", "", "{{}}", "{}", "{0} {1}"])
    def test_other_texts_are_none(self, text: str) -> None:
        with pytest.raises(ValueError, match=r".*"):
            read_choices(text)
