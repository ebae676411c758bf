"""A target with an EAGLE head: the tensors and keys of NVIDIA's converter, by its published source.

`convert_checkpoint.py` of examples/eagle (releases 1.0 to 1.2) makes an `EagleForCausalLM` of as many
`EagleNet` as the tree is deep, and fills the parameters of each by `ModelWeightsLoader`: names go over word
by word, `KEYS`, and a rank has its part along the dimension that the layer is parallel in, `DIMENSIONS`.
`EagleNet` is a `LLaMAModel` without its first and its last norm, with `fc` behind the embedding, and a head
over the vocabulary, which is the target's.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.fakes.eagle_heads import write_eagle_for
from tests.fakes.engine_dir import tiny_model
from tests.fakes.heads import write_head, write_head_for
from tests.unit.checkpoint.fp8_folders import AUTO_FP8, quantize
from trtspec.backends.tensorrt_llm.heads import EagleEngineDraft, choices, fitting
from trtspec.base.errors import ModelError
from trtspec.checkpoint.convert import checkpoint_size, convert
from trtspec.checkpoint.convert_options import ConvertOptions, Mapping
from trtspec.checkpoint.verify import verify
from trtspec.methods.table import EagleMethod
from trtspec.models.heads.eagle import EagleDescription
from trtspec.models.heads.reading import read_head
from trtspec.models.source import Source, read_source

METHOD = EagleMethod(kind="eagle")
SIZES: dict[str, Any] = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 4}
KEYS = {
    "vocab_embedding": "embed_tokens", "attention": "self_attn", "dense": "o_proj", "gate": "up_proj",
    "proj": "down_proj", "fc": "gate_proj", "post_layernorm": "post_attention_layernorm",
}  # fmt: skip
DIMENSIONS = {"dense": 1, "proj": 1, "post_layernorm": None}
"""Others are parallel in their first dimension."""
OF_A_NET = (
    "drafter.vocab_embedding.weight", "drafter.fc.weight", "drafter.fc.bias",
    "drafter.layers.0.attention.qkv.weight", "drafter.layers.0.attention.dense.weight",
    "drafter.layers.0.mlp.fc.weight", "drafter.layers.0.mlp.gate.weight", "drafter.layers.0.mlp.proj.weight",
    "drafter.layers.0.post_layernorm.weight", "lm_head.weight",
)  # fmt: skip
Target = Callable[..., tuple[Source, EagleDescription]]


@pytest.fixture
def target(tmp_path: Path) -> Target:
    """A random Llama in `target`, and a head for it in `head`; keywords are of the head's configuration."""

    def save(family: str = "llama", **config: Any) -> tuple[Source, EagleDescription]:
        model = tiny_model(family, **SIZES, head_dim=16, rope_theta=1e6)
        model.save_pretrained(tmp_path / "target")
        write_eagle_for(tmp_path / "target", tmp_path / "head", **config)
        head = read_head(tmp_path / "head")
        assert isinstance(head, EagleDescription)
        return read_source(tmp_path / "target"), head

    return save


def expected(name: str, folder: Path, tp_size: int, rank: int) -> torch.Tensor:
    """The rank's tensor of a net, by the rules of `ModelWeightsLoader`."""
    of_head = load_file(folder / "head/model.safetensors")
    if name == "lm_head.weight":
        return load_file(folder / "target/model.safetensors")[name].chunk(tp_size)[rank]
    words = name.removeprefix("drafter.").split(".")
    keys = {**KEYS, "fc": "fc"} if words[0] == "fc" else KEYS
    theirs = ".".join(keys.get(word, word) for word in words)
    if "qkv" in words:
        parts = (of_head[theirs.replace("qkv", f"{x}_proj")].chunk(tp_size)[rank] for x in "qkv")
        return torch.cat(list(parts))
    dimension = DIMENSIONS.get(words[-2], 0)
    return of_head[theirs] if dimension is None else of_head[theirs].chunk(tp_size, dimension)[rank]


@pytest.mark.parametrize("tp_size", [1, 2, 4])
def test_converted_eagle_tensors_have_nvidias_names_shapes_and_numbers(
    target: Target, tmp_path: Path, tp_size: int
) -> None:
    (source, head), told = target(), list[int]()
    options, eagle = ConvertOptions("float16", Mapping(tp_size)), EagleEngineDraft.usual(source, METHOD, head)
    convert(source, options, tmp_path / "both", told.append, eagle)
    convert(source, options, tmp_path / "alone")
    for rank in range(tp_size):
        alone = load_file(tmp_path / f"alone/rank{rank}.safetensors")
        both = load_file(tmp_path / f"both/rank{rank}.safetensors")
        wanted = {
            f"eagle_nets.{net}.{name}": expected(name, tmp_path, tp_size, rank).half()
            for net in range(4)
            for name in OF_A_NET
        }
        assert set(both) == {*alone, *wanted}
        for name, tensor in (alone | wanted).items():
            torch.testing.assert_close(both[name], tensor, rtol=0, atol=0)
    assert sum(told) == checkpoint_size(source, options, eagle)
    verify(source, options, tmp_path / "both", draft=eagle)


def nvidias(model: Any, head: Any, dtype: str) -> dict[str, Any]:
    """`config.json` of examples/eagle/convert_checkpoint.py, of two Hugging Face configurations."""
    shared = {
        "dtype": dtype,
        "logits_dtype": "float32",
        "vocab_size": model.vocab_size,
        "position_embedding_type": "rope_gpt_neox",
        "hidden_act": "silu",
        "rotary_base": model.rope_theta,
        "rotary_scaling": None,
        "quantization": {"quant_algo": None, "kv_cache_quant_algo": None},
        "mapping": {"world_size": 1, "tp_size": 1, "pp_size": 1},
        "use_parallel_embedding": False,
        "embedding_sharding_dim": 0,
        "head_dim": 16,
        "head_size": 16,
    }
    own = (
        "num_hidden_layers", "num_attention_heads", "hidden_size", "intermediate_size", "num_key_value_heads",
        "max_position_embeddings",
    )  # fmt: skip
    return {
        "architecture": "EagleForCausalLM",
        **shared,
        **{key: getattr(model, key) for key in own},
        "norm_epsilon": model.rms_norm_eps,
        "max_draft_len": 63,
        "num_eagle_layers": 4,
        "eagle_net_config": {
            "architecture": "LlamaForCausalLM",
            **shared,
            **{key: head[key] for key in own},
            "norm_epsilon": 1e-6,
        },
    }


def test_an_eagle_configuration_has_nvidias_keys_and_those_of_the_target(
    target: Target, tmp_path: Path
) -> None:
    (source, head), options = target(), ConvertOptions("bfloat16")
    model = tiny_model("llama", **SIZES, head_dim=16, rope_theta=1e6).config
    convert(source, options, tmp_path / "both", draft=EagleEngineDraft.usual(source, METHOD, head))
    convert(source, options, tmp_path / "alone")
    alone, both = (json.loads((tmp_path / name / "config.json").read_text()) for name in ("alone", "both"))
    theirs = nvidias(model, json.loads((tmp_path / "head/config.json").read_text()), "bfloat16")
    assert {key: both.get(key) for key in theirs} == theirs
    wide = both.pop("max_non_leaves_per_layer")
    added = ("architecture", "head_dim", "max_draft_len", "num_eagle_layers", "eagle_net_config")
    assert both == alone | {key: theirs[key] for key in added}
    inner = {path[:-1] for path in choices(4) if len(path) > 1}
    assert wide == max(sum(len(node) == level for node in inner) for level in (1, 2, 3))


def test_a_smaller_tree_has_fewer_nets(target: Target, tmp_path: Path) -> None:
    source, head = target()
    eagle = EagleEngineDraft(head, ((0,), (1,), (0, 0)), source)
    convert(source, ConvertOptions("float16"), tmp_path / "both", draft=eagle)
    config = json.loads((tmp_path / "both/config.json").read_text())
    assert (config["num_eagle_layers"], config["max_draft_len"]) == (2, 3)
    assert config["max_non_leaves_per_layer"] == 1
    names = load_file(tmp_path / "both/rank0.safetensors")
    assert {name.split(".")[1] for name in names if name.startswith("eagle_nets.")} == {"0", "1"}


def test_a_head_without_an_embedding_has_the_targets(target: Target, tmp_path: Path) -> None:
    source, _ = target()
    path = tmp_path / "head/model.safetensors"
    tensors = load_file(path)
    del tensors["embed_tokens.weight"]
    save_file(tensors, path)
    eagle = EagleEngineDraft.usual(source, METHOD, read_head(tmp_path / "head"))
    convert(source, ConvertOptions("float32"), tmp_path / "both", draft=eagle)
    found = load_file(tmp_path / "both/rank0.safetensors")
    own = found["transformer.vocab_embedding.weight"]
    torch.testing.assert_close(found["eagle_nets.0.drafter.vocab_embedding.weight"], own, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        (
            {"rope_theta": 1e4, "rope_parameters": None},
            "rope_theta is 10000.0, and the target's is 1000000.0",
        ),
        ({"hidden_act": "gelu"}, "hidden_act is gelu, and the target's is silu"),
    ],
)
def test_an_eagle_head_that_differs_from_its_target_in_a_shared_setting_is_refused(
    target: Target, config: dict[str, Any], problem: str
) -> None:
    source, head = target(**config)
    with pytest.raises(ModelError, match=problem):
        fitting(source, head)


def test_a_head_or_target_that_no_eagle_engine_can_have_is_refused(target: Target, tmp_path: Path) -> None:
    source, head = target()
    with pytest.raises(ModelError, match="not EAGLE's"):
        fitting(source, read_head(write_head(tmp_path / "other", "medusa")))
    write_head_for(tmp_path / "target", tmp_path / "unbiased", "eagle")
    with pytest.raises(ModelError, match=r"has no fc\.bias"):
        fitting(source, read_head(tmp_path / "unbiased"))
    with pytest.raises(ModelError, match="EAGLE for llama, not for qwen2"):
        fitting(replace(source, model_type="qwen2"), head)
    quantize(tmp_path / "target", AUTO_FP8)
    with pytest.raises(ModelError, match="is FP8, and TensorRT-LLM's engines have EAGLE in float16"):
        fitting(read_source(tmp_path / "target"), head)
