from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from trtspec.base.errors import ModelError
from trtspec.models.families import family_of
from trtspec.models.source import read_source

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def edit(folder: Path, file: str = "config.json", **values: Any) -> None:
    """Replaces keys of a JSON file; None removes one."""
    content = json.loads((folder / file).read_text()) | values
    (folder / file).write_text(
        json.dumps({key: value for key, value in content.items() if value is not None})
    )


def test_facts_are_those_of_transformers(llama_folder: Callable[..., Path]) -> None:
    folder = llama_folder(head_dim=16, rope_theta=5e5, rope_scaling=LLAMA3, rms_norm_eps=3e-5, pad_token_id=7)
    model = LlamaForCausalLM.from_pretrained(folder)
    source, config = read_source(folder), model.config

    assert source.architecture == "LlamaForCausalLM"
    assert source.dtype == "bfloat16"
    assert source.vocab_size == config.vocab_size
    assert source.head_size == config.head_dim == 16
    assert source.num_key_value_heads == config.num_key_value_heads
    assert source.norm_epsilon == config.rms_norm_eps
    assert source.rotary_base == config.rope_theta
    assert source.rotary_scaling == config.rope_scaling
    assert (source.bos_id, source.pad_id, source.end_ids) == (0, 7, (1,))
    assert source.parameters == sum(parameter.numel() for parameter in model.parameters())


def test_a_tied_embedding_counts_once(llama_folder: Callable[..., Path]) -> None:
    folder = llama_folder(tie_word_embeddings=True)
    model = LlamaForCausalLM.from_pretrained(folder)
    assert read_source(folder).parameters == sum(parameter.numel() for parameter in model.parameters())


def test_rope_of_transformers_5(llama_folder: Callable[..., Path]) -> None:
    folder = llama_folder()
    edit(folder, rope_theta=None, rope_scaling=None, rope_parameters={**LLAMA3, "rope_theta": 500000})
    source = read_source(folder)
    assert source.rotary_base == 500000.0
    assert source.rotary_scaling == LLAMA3
    edit(folder, rope_parameters={"rope_type": "default", "rope_theta": 500000})
    assert read_source(folder).rotary_scaling is None
    edit(folder, rope_parameters={"rope_theta": 500000, "partial_rotary_factor": 0.5})
    assert (read_source(folder).rotary_scaling, read_source(folder).partial_rotary_factor) == (None, 0.5)
    edit(folder, rope_parameters=None, rope_scaling={"rope_type": "default", "rope_theta": 500000})
    assert read_source(folder).rotary_base == 500000.0


def test_rope_of_layers_of_two_kinds_is_not_lost(llama_folder: Callable[..., Path]) -> None:
    """As transformers 5 writes it for models in which some layers have a sliding window."""
    folder = llama_folder()
    edit(folder, rope_theta=None, rope_parameters={"full_attention": {**LLAMA3, "rope_theta": 500000}})
    with pytest.raises(ModelError, match="without a rope_type"):
        family_of(read_source(folder))


def test_end_ids_come_from_the_generation_config_first(llama_folder: Callable[..., Path]) -> None:
    folder = llama_folder()
    edit(folder, "generation_config.json", eos_token_id=[5, 1])
    assert read_source(folder).end_ids == (5, 1)
    edit(folder, "generation_config.json", eos_token_id=None)
    assert read_source(folder).end_ids == (1,)


def test_dtype_without_one_in_the_config_is_that_of_the_weights(llama_folder: Callable[..., Path]) -> None:
    folder = llama_folder(dtype=torch.float16)
    edit(folder, dtype=None, torch_dtype=None)
    assert read_source(folder).dtype == "float16"


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"hidden_size": None}, "has no hidden_size"),
        ({"hidden_size": "64"}, "hidden_size must be int, not '64'"),
        ({"num_hidden_layers": 0}, "num_hidden_layers must be at least 1, not 0"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000, but there are only 21 tensors"),
        ({"num_attention_heads": 10**400}, "num_attention_heads must be at most 2147483647, not 1000"),
        ({"vocab_size": True}, "vocab_size must be int, not True"),
        ({"eos_token_id": "</s>"}, "eos_token_id must be token ids"),
        ({"architectures": []}, "architectures must name one class"),
        ({"architectures": ["LlamaForCausalLM", "Other"]}, "architectures must name one class"),
        ({"rope_theta": -1.0}, "rope_theta must be a positive number, not -1.0"),
        ({"rope_theta": float("nan")}, "rope_theta must be a positive number, not nan"),
        ({"rope_theta": 10**400}, "rope_theta must be a positive number, not 1000"),
        ({"rms_norm_eps": -1e-5}, "rms_norm_eps must be a positive number, not -1e-05"),
        (
            {"rope_theta": 1e4, "rope_parameters": {"rope_theta": 5e5}},
            "rope_theta must be one number",
        ),
        ({"rope_parameters": {"rope_theta": "5e5"}}, "rope_theta must be float, not '5e5'"),
        (
            {"rope_scaling": LLAMA3, "rope_parameters": {**LLAMA3, "factor": 2.0}},
            "rope_scaling and rope_parameters have different values",
        ),
        ({"torch_dtype": "int8", "dtype": None}, "dtype 'int8' is not one of bfloat16, float16, float32"),
    ],
)
def test_a_config_that_lies(llama_folder: Callable[..., Path], values: dict[str, Any], said: str) -> None:
    folder = llama_folder()
    (folder / "generation_config.json").unlink()
    edit(folder, **values)
    with pytest.raises(ModelError, match=said) as caught:
        read_source(folder)
    assert caught.value.subject == str(folder / "config.json")


@pytest.mark.parametrize(
    ("scaling", "longest"),
    [
        ({"rope_type": "yarn", "factor": 4.0}, 1024),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}, 512),
        ({"rope_type": "linear"}, 256),
        ({"type": "linear", "factor": 2.0}, 512),
        (LLAMA3, 256),
        ({"rope_type": "dynamic", "factor": 2.0}, 512),
        ({"rope_type": "linear", "factor": 1e308}, 2**31 - 1),
        ({"rope_type": "yarn", "factor": 1e308, "original_max_position_embeddings": 1e308}, 2**31 - 1),
    ],
)
def test_the_longest_text(llama_folder: Callable[..., Path], scaling: dict[str, Any], longest: int) -> None:
    folder = llama_folder()
    edit(folder, rope_scaling=scaling)
    assert read_source(folder).max_position == longest


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}


@pytest.mark.parametrize(
    ("keys", "overrides", "longest"),
    [
        ({}, {}, 256),
        ({"rope_scaling": YARN}, {}, 256),
        ({"model_max_length": 2048}, {}, 2048),
        ({"model_max_length": 128}, {}, 128),
        ({"model_max_length": 10**30}, {}, 2**31 - 1),
        ({"model_max_length": None}, {}, 256),
        ({"model_max_length": 2048, "rope_scaling": {"rope_type": "linear", "factor": 2.0}}, {}, 4096),
        ({}, {"max_position_embeddings": 1024, "rope_scaling": YARN}, 1024),
        ({}, {"text_config": {"max_position_embeddings": 1024}}, 1024),
        ({}, {"model_max_length": 1024}, 1024),
        ({}, {"rope_parameters": {"rope_type": "dynamic", "factor": 3.0, "rope_theta": 7.0}}, 768),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, {"rope_scaling": {"factor": 3.0}}, 768),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, {"rope_scaling": YARN}, 256),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, {"rope_scaling": None}, 256),
    ],
)
def test_the_longest_text_of_a_server(
    llama_folder: Callable[..., Path], keys: dict[str, Any], overrides: dict[str, Any], longest: int
) -> None:
    folder = llama_folder()
    edit(folder, **keys)
    assert read_source(folder).overridden(overrides).served_length == longest


@pytest.mark.parametrize(
    "overrides", [{"max_position_embeddings": "x"}, {"text_config": 1}, {"rope_scaling": []}]
)
def test_a_key_that_is_told_wrong_is_named_where_it_is(
    llama_folder: Callable[..., Path], overrides: dict[str, Any]
) -> None:
    with pytest.raises(ModelError, match="must be") as caught:
        read_source(llama_folder()).overridden(overrides)
    assert caught.value.subject == "engine.extra_args"


@pytest.mark.parametrize("factor", ["x", float("inf"), 10**400, [2.0]])
def test_the_longest_text_of_a_scaling_by_no_number(llama_folder: Callable[..., Path], factor: Any) -> None:
    folder = llama_folder()
    edit(folder, rope_scaling={"rope_type": "linear", "factor": factor})
    with pytest.raises(ModelError, match="factor must be"):
        _ = read_source(folder).max_position


def test_files_that_are_not_there_or_not_json(llama_folder: Callable[..., Path], tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="is not a folder"):
        read_source(tmp_path / "nowhere")
    folder = llama_folder()
    (folder / "config.json").write_text("{")
    with pytest.raises(ModelError, match=r"config\.json: is not JSON"):
        read_source(folder)
    (folder / "config.json").write_text("[" * 100_000)
    with pytest.raises(ModelError, match=r"config\.json: is not JSON"):
        read_source(folder)
    (folder / "config.json").unlink()
    with pytest.raises(ModelError, match=r"config\.json: is missing"):
        read_source(folder)
