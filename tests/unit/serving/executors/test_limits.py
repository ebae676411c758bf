"""What an engine directory says that it was built for."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.fakes.bindings import change_config
from tests.fakes.engine_dir import tiny_llama, write_engine
from trtspec.serving.errors import EngineLoadError
from trtspec.serving.executor import Limits
from trtspec.serving.executors.torch.torch_executor import TorchExecutor
from trtspec.serving.executors.validation import TORCH_VERSION, read_limits


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    return write_engine(tmp_path / "engine", tiny_llama(vocab_size=96), max_seq_len=128, max_draft_len=6)


def test_are_those_of_the_loaded_engine(engine: Path) -> None:
    executor = TorchExecutor(engine)
    executor.shutdown()
    change_config(engine, "", version=f"{TORCH_VERSION} 1.0")
    # Only an engine that is loaded in this process scores prompts.
    assert read_limits(engine) == replace(executor.limits, scores_prompts=False)
    assert isinstance(read_limits(engine), Limits)


def test_an_engine_of_tensorrt_llm_has_no_log_probs(engine: Path) -> None:
    assert not read_limits(engine).returns_log_probs


def test_the_draft_limit_is_zero_for_an_engine_without_external_drafts(engine: Path) -> None:
    config = json.loads((engine / "config.json").read_text())
    config["build_config"]["speculative_decoding_mode"] = 1
    (engine / "config.json").write_text(json.dumps(config))

    assert read_limits(engine).max_draft_len == 0


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "no such file; is this an engine directory?"),
        ("{", "not an engine's config.json"),
        ('{"pretrained_config": {}, "build_config": {}}', "has no speculative_decoding_mode"),
        ("[]", "not an engine's config.json"),
    ],
)
def test_an_unreadable_engine_configuration_is_reported_with_its_path(
    tmp_path: Path, content: str | None, problem: str
) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)

    with pytest.raises(EngineLoadError, match=problem) as caught:
        read_limits(tmp_path)

    assert caught.value.subject == str(tmp_path / "config.json")
