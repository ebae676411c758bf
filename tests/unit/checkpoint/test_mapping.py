from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from trtspec.base.errors import ModelError
from trtspec.base.findings import Finding
from trtspec.checkpoint.convert import convert
from trtspec.checkpoint.convert_options import ConvertOptions, Mapping, misfit
from trtspec.models.source import read_source


@pytest.mark.parametrize("layers", [1, 2, 5, 80, 126])
@pytest.mark.parametrize("stages", [1, 2, 3, 8])
def test_layers_of_a_pipeline_as_torch_splits_them(layers: int, stages: int) -> None:
    expected = [part.tolist() for part in torch.arange(layers).tensor_split(stages)]
    assert [list(Mapping(1, stages).layers(rank, layers)) for rank in range(stages)] == expected


@pytest.mark.parametrize(
    ("mapping", "fp8", "config", "key", "problem", "repair"),
    [
        (
            Mapping(3),
            False,
            {},
            "parallel.tensor",
            "4 attention heads cannot be divided among 3",
            "use 1, 2 or 4",
        ),
        (
            Mapping(8),
            False,
            {},
            "parallel.tensor",
            "4 attention heads cannot be divided among 8",
            "use 1, 2 or 4",
        ),
        (
            *(Mapping(4), False, {"num_attention_heads": 12, "num_key_value_heads": 6}),
            *("parallel.tensor", "6 key-value heads do not divide among 4", "use 1 or 2"),
        ),
        (
            *(Mapping(2), False, {"intermediate_size": 81}),
            *("parallel.tensor", "intermediate_size 81 cannot be divided among 2", "use 1"),
        ),
        (Mapping(1, 3), False, {}, "parallel.pipeline", "exceed the model's 2 layers", "at most 2"),
        (
            *(Mapping(1, 2), False, {"num_hidden_layers": 1}),
            *("parallel.pipeline", "exceed the model's 1 layers", "at most 1"),
        ),
        (
            *(Mapping(2), True, {}),
            *("parallel.tensor", "intermediate_size of a rank: 40 is not a multiple of 16", "use 1"),
        ),
        (
            *(Mapping(1), True, {"intermediate_size": 88}),
            *("quantization.weights", "88 is not a multiple of 16", "leave quantization out"),
        ),
        (
            *(Mapping(3), True, {"intermediate_size": 88}),
            *("parallel.tensor", "4 attention heads cannot be divided among 3"),
            "use 1, 2 or 4, and leave quantization out",
        ),
    ],
)
def test_sizes_that_do_not_divide(
    llama_folder: Callable[..., Path],
    tmp_path: Path,
    mapping: Mapping,
    fp8: bool,
    config: dict[str, int],
    key: str,
    problem: str,
    repair: str,
) -> None:
    folder = llama_folder(**config)
    source = read_source(folder)
    (folder / "model.safetensors").unlink()  # it is not looked at again
    found = misfit(source, mapping, fp8=fp8)
    assert found is not None
    assert (found.subject, found.repair) == (key, repair)
    assert problem in found.problem
    with pytest.raises(ModelError, match=re.escape(problem)):
        convert(source, ConvertOptions("bfloat16", mapping, fp8), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_absurdly_many_heads_take_no_time(llama_folder: Callable[..., Path]) -> None:
    source = read_source(llama_folder())
    found = misfit(replace(source, num_attention_heads=10**9, num_key_value_heads=8), Mapping(3), fp8=False)
    assert found
    assert found.repair == "use 1, 2, 4, 8, 16, 40 or 80"


QWEN3 = {"num_attention_heads": 8, "num_key_value_heads": 2, "hidden_size": 128, "intermediate_size": 512}


@pytest.mark.parametrize(
    ("tp_size", "kv_heads", "refused"),
    [(1, 2, False), (2, 2, False), (4, 2, False), (8, 2, True), (1, 8, True), (2, 8, True)],
)
def test_a_qwen3_needs_more_query_heads_than_key_value_heads_on_each_rank(
    llama_folder: Callable[..., Path], tp_size: int, kv_heads: int, refused: bool
) -> None:
    source = read_source(llama_folder(**(QWEN3 | {"num_key_value_heads": kv_heads})))
    assert misfit(source, Mapping(tp_size), fp8=True) is None
    found = misfit(replace(source, architecture="Qwen3ForCausalLM"), Mapping(tp_size), fp8=True)
    assert (found is not None) is refused
    if found:
        own = 8 // tp_size
        assert (
            f"a rank has as many query heads as key-value heads, {own}, which TensorRT-LLM" in found.problem
        )
        expected = ("model", "use another model") if kv_heads == 8 else ("parallel.tensor", "use 1, 2 or 4")
        assert (found.subject, found.repair) == expected


def test_phi3_has_no_pipeline(llama_folder: Callable[..., Path]) -> None:
    source = replace(read_source(llama_folder()), architecture="Phi3ForCausalLM")
    assert misfit(source, Mapping(2), fp8=False) is None
    found = misfit(source, Mapping(2, 2), fp8=False)
    problem = "TensorRT-LLM's Phi3ForCausalLM has no pipeline ranks"
    assert found == Finding("parallel.pipeline", problem, "at most 1")


def test_sizes_that_divide(llama_folder: Callable[..., Path]) -> None:
    sizes = {"num_attention_heads": 8, "num_key_value_heads": 2, "hidden_size": 128, "intermediate_size": 512}
    source = read_source(llama_folder(**sizes))
    for tp_size in (1, 2, 4, 8):
        assert misfit(source, Mapping(tp_size, 2), fp8=True) is None
