"""An engine with lookahead: it drafts by itself, and is asked for plain decoding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from tests.fakes.bindings import write_trtllm_engine
from tests.fakes.engine_dir import tiny_llama
from tests.unit.serving.executors.tensorrt_llm.test_medusa import PROMPT, greedy, load, said
from trtspec.serving.errors import EngineLoadError
from trtspec.serving.executor import Request, SamplingConfig
from trtspec.serving.executors.tensorrt_llm.runtime_draft import LookaheadSizes
from trtspec.serving.executors.validation import read_limits

SIZES = LookaheadSizes(4, 3, 4)


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return tiny_llama(dtype=torch.float32, max_position_embeddings=512)


@pytest.fixture
def folder(tmp_path: Path, model: PreTrainedModel) -> Path:
    build = {"speculative_decoding_mode": 8, "max_draft_len": SIZES.num_drafted, "max_seq_len": 143}
    return write_trtllm_engine(tmp_path / "engine", model, **build)


@pytest.mark.parametrize(
    ("window_size", "ngram_size", "verification_set_size", "drafts"),
    [
        # NVIDIA's examples/lookahead/README.md.
        (7, 7, 7, 83),
        # The configuration of tests/test_trt_llm_config.py of basetenlabs/truss.
        (4, 5, 3, 27),
        # By hand: one token of the window, and two of each n-gram and of each other place.
        (4, 3, 4, 1 + 2 * (3 + 4)),
        # The least that means something: no first line, one place and one n-gram of a token each.
        (2, 2, 1, 2),
    ],
)
def test_the_lookahead_sizes_give_the_number_of_tokens_that_a_step_drafts(
    window_size: int, ngram_size: int, verification_set_size: int, drafts: int
) -> None:
    assert LookaheadSizes(window_size, ngram_size, verification_set_size).num_drafted == drafts


def test_the_runtime_is_told_of_mode_and_sizes(trtllm: Any, folder: Path) -> None:
    load(trtllm, folder, SIZES)
    config = trtllm.Executor.MADE[-1].config.decoding_config
    assert config.decoding_mode.isLookahead()
    sizes = config.lookahead_decoding_config
    told = sizes.max_window_size, sizes.max_ngram_size, sizes.max_verification_set_size
    assert told == (4, 3, 4)


def test_a_lookahead_engine_streams_the_greedy_text_of_its_model_in_steps(
    trtllm: Any, folder: Path, model: PreTrainedModel
) -> None:
    text = greedy(model, 40)
    executor = load(trtllm, folder, SIZES)
    whole, streamed = said(executor, Request(PROMPT, 40), Request(PROMPT, 40, streaming=True))
    assert [response.token_ids for response in whole] == [text]
    assert [token for response in streamed for token in response.token_ids] == text
    assert max(len(response.token_ids) for response in streamed) <= SIZES.ngram_size


def test_the_limits_of_a_lookahead_engine_leave_room_for_its_drafts(trtllm: Any, folder: Path) -> None:
    limits = load(trtllm, folder, SIZES).limits
    assert (limits.max_seq_len, limits.max_draft_len) == (128, 0)
    assert read_limits(folder) == limits


@pytest.mark.parametrize(
    "changes",
    [
        {"sampling": SamplingConfig(temperature=1.0)},
        {"sampling": SamplingConfig(repetition_penalty=1.2)},
        {"sampling": SamplingConfig(min_tokens=4)},
        {"bad_words": [[7]]},
        {"return_log_probs": True},
        {"draft_token_ids": [1, 2]},
    ],
)
def test_a_lookahead_engine_refuses_requests_that_it_would_not_follow(
    trtllm: Any, folder: Path, changes: dict[str, Any]
) -> None:
    ((response,),) = said(load(trtllm, folder, SIZES), Request(PROMPT, 8, **changes))
    assert response.error
    assert trtllm.Executor.MADE[-1].requests == []


@pytest.mark.parametrize(
    ("sizes", "problem"),
    [
        (None, "drafts by itself, but config.pbtxt lacks the parameters for that"),
        (LookaheadSizes(3, 3, 4), "3, 3, 4: .* mode 8 with max_draft_len 15, and this is of mode 8 with 13"),
    ],
)
def test_other_sizes_are_refused_before_anything_is_loaded(
    trtllm: Any, folder: Path, sizes: LookaheadSizes | None, problem: str
) -> None:
    with pytest.raises(EngineLoadError, match=problem):
        load(trtllm, folder, sizes)
    assert trtllm.Executor.MADE == []
