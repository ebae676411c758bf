"""An engine with a head of EAGLE inside: it drafts by itself, and is asked for plain decoding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from tests.fakes.bindings import write_eagle_engine, write_trtllm_engine
from tests.fakes.engine_dir import tiny_llama
from tests.unit.serving.executors.tensorrt_llm.test_medusa import PROMPT, greedy, load, said
from trtspec.backends.tensorrt_llm.heads import choices
from trtspec.serving.errors import EngineLoadError
from trtspec.serving.executor import Request, SamplingConfig
from trtspec.serving.executors.tensorrt_llm.runtime_draft import EagleTree, MedusaTree
from trtspec.serving.executors.tensorrt_llm.trtllm_executor import read_engine
from trtspec.serving.executors.validation import read_limits

TREE = EagleTree(tuple(choices(4)))


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return tiny_llama(dtype=torch.float32, max_position_embeddings=512)


@pytest.fixture
def folder(tmp_path: Path, model: PreTrainedModel) -> Path:
    """Of 195 tokens 63 are those of the tree, and 4 its depth."""
    return write_eagle_engine(tmp_path / "engine", model, TREE.choices, max_seq_len=195)


def test_the_runtime_is_given_the_eagle_mode_and_the_tree(trtllm: Any, folder: Path) -> None:
    load(trtllm, folder, TREE)
    config = trtllm.Executor.MADE[-1].config.decoding_config
    assert config.decoding_mode.isEagle()
    told = config.eagle_config
    assert told.eagle_choices == [list(path) for path in TREE.choices]
    assert (told.greedy_sampling, told.posterior_threshold, told.use_dynamic_tree) == (True, None, False)


def test_an_eagle_engine_gives_the_text_of_the_model_whole_and_streamed(
    trtllm: Any, folder: Path, model: PreTrainedModel
) -> None:
    text = greedy(model, 40)
    executor = load(trtllm, folder, TREE)
    whole, streamed = said(executor, Request(PROMPT, 40), Request(PROMPT, 40, streaming=True))
    assert [response.token_ids for response in whole] == [text]
    assert [token for response in streamed for token in response.token_ids] == text


def test_a_text_leaves_room_for_the_tree_and_its_depth(trtllm: Any, folder: Path) -> None:
    limits = load(trtllm, folder, TREE).limits
    assert (limits.max_seq_len, limits.max_input_len, limits.max_draft_len) == (128, 127, 0)
    assert read_limits(folder) == limits


def test_the_cache_has_the_heads_layer_too(folder: Path, tmp_path: Path, model: PreTrainedModel) -> None:
    plain = read_engine(write_trtllm_engine(tmp_path / "plain", model), "1.2.1")
    layers = model.config.num_hidden_layers
    assert read_engine(folder, "1.2.1", True, TREE).kv_bytes * layers == plain.kv_bytes * (layers + 1)


@pytest.mark.parametrize(
    "changes",
    [
        {"sampling": SamplingConfig(temperature=1.0)},
        {"sampling": SamplingConfig(repetition_penalty=1.2)},
        {"sampling": SamplingConfig(min_tokens=4)},
        {"bad_words": [[7]]},
        {"embedding_bias": {7: 1.0}},
        {"return_log_probs": True},
        {"draft_token_ids": [1, 2]},
    ],
)
def test_requests_that_an_eagle_engine_would_answer_wrongly_are_refused(
    trtllm: Any, folder: Path, changes: dict[str, Any]
) -> None:
    ((response,),) = said(load(trtllm, folder, TREE), Request(PROMPT, 8, **changes))
    assert response.error
    assert trtllm.Executor.MADE[-1].requests == []


@pytest.mark.parametrize(
    ("tree", "problem"),
    [
        (None, "drafts by itself, but config.pbtxt lacks the parameters for that"),
        (EagleTree(TREE.choices[:-1]), "mode 32 with max_draft_len 63, and this is of mode 32 with 62"),
        (MedusaTree(TREE.choices), "medusa_choices: .* mode 32 with max_draft_len 63, and this is of mode 4"),
    ],
)
def test_an_eagle_engine_with_another_tree_is_refused_before_it_is_loaded(
    trtllm: Any, folder: Path, tree: Any, problem: str
) -> None:
    with pytest.raises(EngineLoadError, match=problem):
        load(trtllm, folder, tree)
    assert trtllm.Executor.MADE == []
