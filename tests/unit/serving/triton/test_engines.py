"""From the parameters of `config.pbtxt` to engines: what is wrong with them is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from trtspec.serving.errors import EngineLoadError, TokenizerError
from trtspec.serving.triton.engines import load


def test_a_backend_that_is_not_served_here_is_named():
    with pytest.raises(EngineLoadError, match="engine_backend: 'tensorrt_llm' cannot be served in process"):
        load({"engine_backend": "tensorrt_llm"}, Path())


def test_paths_are_relative_to_the_models_folder(tmp_path):
    folder = tmp_path / "repository" / "model"
    parameters = {"engine_backend": "torch", "tokenizer_dir": "../../tokenizer"}

    with pytest.raises(TokenizerError) as caught:
        load(parameters, folder)

    assert caught.value.path == str(tmp_path / "tokenizer" / "tokenizer.json")


def test_a_missing_parameter_is_named():
    with pytest.raises(EngineLoadError, match="tokenizer_dir: missing from the parameters"):
        load({"engine_backend": "torch"}, Path())
