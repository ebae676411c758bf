"""From the parameters of `config.pbtxt` to engines: what is wrong with them is named."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fakes.engine_dir import tiny_llama, write_engine
from trtspec.serving.errors import EngineLoadError, TokenizerError
from trtspec.serving.triton.engines import Parameters, load


def test_a_backend_that_nobody_knows_is_named() -> None:
    with pytest.raises(EngineLoadError, match="engine_backend: 'vllm' is none of bls, tensorrt_llm, torch"):
        load({"engine_backend": "vllm"}, Path())


def test_paths_are_relative_to_the_models_folder(tmp_path: Path) -> None:
    folder = tmp_path / "repository" / "model"
    parameters = {"engine_backend": "torch", "tokenizer_dir": "../../tokenizer"}

    with pytest.raises(TokenizerError) as caught:
        load(parameters, folder)

    assert caught.value.path == str(tmp_path / "tokenizer" / "tokenizer.json")


def test_a_missing_parameter_is_named() -> None:
    with pytest.raises(EngineLoadError, match="tokenizer_dir: missing from the parameters"):
        load({"engine_backend": "torch"}, Path())


@pytest.mark.parametrize("text", ["three", "-1", "1.5"])
def test_a_parameter_that_is_not_a_number_is_named(text: str) -> None:
    with pytest.raises(EngineLoadError, match=rf"num_draft_tokens: '{text}' .* is not a number$"):
        load({"engine_backend": "torch", "num_draft_tokens": text}, Path())


@pytest.mark.parametrize("text", ["4", "[4]", '{"few": 4}', '{"1": null}', "{1: 4}"])
def test_a_parameter_that_is_not_a_draft_schedule_is_named(text: str) -> None:
    with pytest.raises(EngineLoadError, match=r"draft_schedule: .* is not a schedule, such as"):
        Parameters({"draft_schedule": text}, Path()).schedule("draft_schedule")


@pytest.mark.parametrize(
    ("method", "problem"),
    [
        ("ngrm", "draft_method: 'ngrm' is none of draft_model, ngram, hybrid"),
        ("hybrid", "draft_engine_dir: missing: this method of drafting needs an engine"),
    ],
)
def test_a_method_that_cannot_work_here_is_named(
    tmp_path: Path, llama_folder: Callable[..., Path], method: str, problem: str
) -> None:
    write_engine(tmp_path / "engine", tiny_llama())
    llama_folder("tokenizer")
    parameters = {
        "engine_backend": "torch",
        "tokenizer_dir": "tokenizer",
        "target_engine_dir": "engine",
        "draft_method": method,
        "draft_method.prompt_lookup_min": "2",
        "draft_method.prompt_lookup_max": "4",
    }

    async def main() -> None:
        pair = load(parameters, tmp_path)
        try:
            with pytest.raises(EngineLoadError, match=re.escape(problem)):
                pair.coordinator()
        finally:
            pair.shutdown()

    asyncio.run(main())


@pytest.mark.parametrize("text", ["0", "1", "1.5", "-0.1", "nan", "most"])
def test_a_fraction_lies_between_0_and_1(text: str) -> None:
    with pytest.raises(EngineLoadError, match=rf"fraction: '{text}' .* is not a number between 0 and 1$"):
        Parameters({"fraction": text}, Path()).fraction("fraction")
    assert Parameters({"fraction": "0.85"}, Path()).fraction("fraction") == 0.85


def test_an_amount_is_a_number_of_either_kind() -> None:
    parameters = Parameters({"whole": "24", "part": "0.5", "none": "-1", "much": "inf"}, Path())
    assert [repr(parameters.amount(key)) for key in ("whole", "part")] == ["24", "0.5"]
    for key in ("none", "much"):
        with pytest.raises(EngineLoadError, match=r"is not a number$"):
            parameters.amount(key)


@pytest.mark.parametrize("text", ["-0.1", "1.1", "nan", "inf", "half", "0,5"])
def test_a_share_lies_between_0_and_1(text: str) -> None:
    with pytest.raises(EngineLoadError, match=rf"share: '{text}' .* is not a number from 0 to 1$"):
        Parameters({"share": text}, Path()).share("share")
    for known, share in (({"share": "0"}, 0.0), ({"share": "1"}, 1.0), ({}, 1.0)):
        assert Parameters(known, Path()).share("share") == share


def test_a_flag_is_true_or_false() -> None:
    parameters = Parameters({"yes": "true", "no": "false", "maybe": "1"}, Path())
    assert (parameters.flag("yes"), parameters.flag("no")) == (True, False)
    with pytest.raises(EngineLoadError, match=r"maybe: '1' .* is not true or false$"):
        parameters.flag("maybe")


@pytest.mark.parametrize("text", ["{}", "{0}, {1", "{0}, 1", "{-1}", "[[0], [1]]"])
def test_a_tree_is_its_paths(text: str) -> None:
    parameters = Parameters({"wrong": text, "tree": "{0}, {1}, {0, 0}"}, Path())
    assert parameters.choices("tree") == ((0,), (1,), (0, 0))
    with pytest.raises(EngineLoadError, match=rf"wrong: '{re.escape(text)}' .* is not a tree, such as"):
        parameters.choices("wrong")


@pytest.mark.parametrize("text", ["cuda", "cuda:", "cuda:x", "gpu:0", "cpu:0"])
def test_a_device_is_the_cpu_or_a_gpu(text: str) -> None:
    parameters = Parameters({"wrong": text, "cpu": "cpu", "gpu": "cuda:1"}, Path())
    assert [parameters.device(key) for key in ("cpu", "gpu", "none")] == ["cpu", "cuda:1", None]
    with pytest.raises(
        EngineLoadError, match=rf"wrong: '{text}' .* is neither cpu nor a GPU, such as cuda:0$"
    ):
        parameters.device("wrong")
