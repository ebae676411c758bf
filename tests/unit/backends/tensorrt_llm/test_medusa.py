"""A target with Medusa's heads: the tensors and keys of NVIDIA's converter, by its published source.

`load_medusa_hf` of `tensorrt_llm/models/medusa/weight.py` (releases 1.0 to 1.2) gives rank r of N the r-th of
N equal parts, along the first dimension, of each head's matrices and biases. `MedusaForCausalLm` beside it
has a module of that name and shape for each, with the vocabulary filled up to a multiple of N. The target's
own tensors are those of its family, which `convert_checkpoint.py` of examples/medusa takes from the very
classes that models without heads have: `LLaMAForCausalLM` and, for qwen2, `QWenForCausalLM`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.fakes.engine_dir import tiny_model
from tests.fakes.heads import write_head, write_head_for
from tests.unit.checkpoint.fp8_folders import AUTO_FP8, quantize
from trtspec.backends.tensorrt_llm.heads import MedusaEngineDraft, choices
from trtspec.base.errors import ModelError
from trtspec.checkpoint.convert import checkpoint_size, convert
from trtspec.checkpoint.convert_options import ConvertOptions, Mapping
from trtspec.checkpoint.verify import verify
from trtspec.methods.table import MedusaMethod
from trtspec.models.heads.medusa import MedusaDescription
from trtspec.models.heads.reading import read_head
from trtspec.models.source import Source, read_source

HEADS, BLOCKS = 3, 1
TREE = tuple(choices(HEADS))
SIZES: dict[str, Any] = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 4}
FAMILIES = ["llama", "mistral", "qwen2"]
Target = Callable[..., tuple[Source, MedusaDescription]]


@pytest.fixture
def target(tmp_path: Path) -> Target:
    """A random model of a family in `target`, and heads for it in `heads`."""

    def save(family: str = "llama") -> tuple[Source, MedusaDescription]:
        model = tiny_model(family, **SIZES, head_dim=16, rope_theta=1e6)
        model.save_pretrained(tmp_path / "target")
        write_head_for(tmp_path / "target", tmp_path / "heads", "medusa")
        heads = read_head(tmp_path / "heads")
        assert isinstance(heads, MedusaDescription)
        return read_source(tmp_path / "target"), heads

    return save


def expected(tensors: dict[str, torch.Tensor], tp_size: int, rank: int) -> dict[str, torch.Tensor]:
    """The rank's tensors of all heads, by the rules of `load_medusa_hf`."""
    theirs = {}
    for head in range(HEADS):
        for block in range(BLOCKS):
            for kind in ("weight", "bias"):
                theirs[f"medusa_heads.{head}.medusa_layers.{block}.linear.{kind}"] = (
                    f"{head}.{block}.linear.{kind}"
                )
        theirs[f"medusa_heads.{head}.lm_head.weight"] = f"{head}.{BLOCKS}.weight"
    return {ours: torch.chunk(tensors[name], tp_size)[rank] for ours, name in theirs.items()}


@pytest.mark.parametrize("tp_size", [1, 2, 4])
@pytest.mark.parametrize("family", FAMILIES)
def test_converted_medusa_heads_have_the_tensors_of_the_converter_of_nvidia(
    target: Target, tmp_path: Path, family: str, tp_size: int
) -> None:
    (source, head), told = target(family), list[int]()
    options, medusa = ConvertOptions("float16", Mapping(tp_size)), MedusaEngineDraft(head, TREE)
    convert(source, options, tmp_path / "both", told.append, medusa)
    convert(source, options, tmp_path / "alone")
    stored = load_file(tmp_path / "heads/medusa_lm_head.safetensors")
    for rank in range(tp_size):
        alone = load_file(tmp_path / f"alone/rank{rank}.safetensors")
        both = load_file(tmp_path / f"both/rank{rank}.safetensors")
        wanted = {name: tensor.half() for name, tensor in expected(stored, tp_size, rank).items()}
        assert set(both) == {*alone, *wanted}
        for name, tensor in (alone | wanted).items():
            torch.testing.assert_close(both[name], tensor, rtol=0, atol=0)
    assert sum(told) == checkpoint_size(source, options, medusa)
    verify(source, options, tmp_path / "both", draft=medusa)


def nvidias(model: Any, dtype: str) -> dict[str, Any]:
    """`config.json` of examples/medusa/convert_checkpoint.py, of a Hugging Face configuration."""
    of_qwen = {"qwen_type": "qwen2"} if model.model_type == "qwen2" else {}
    return {
        "architecture": "MedusaForCausalLM",
        "dtype": dtype,
        "logits_dtype": "float32",
        "num_hidden_layers": model.num_hidden_layers,
        "num_attention_heads": model.num_attention_heads,
        "hidden_size": model.hidden_size,
        "intermediate_size": model.intermediate_size,
        "num_key_value_heads": model.num_key_value_heads,
        "vocab_size": model.vocab_size,
        "position_embedding_type": "rope_gpt_neox",
        "max_position_embeddings": model.max_position_embeddings,
        "hidden_act": "silu",
        "rotary_base": model.rope_theta,
        "rotary_scaling": getattr(model, "rope_scaling", None),
        "norm_epsilon": model.rms_norm_eps,
        "quantization": {"quant_algo": None, "kv_cache_quant_algo": None},
        "mapping": {"world_size": 1, "tp_size": 1, "pp_size": 1},
        "use_parallel_embedding": False,
        "embedding_sharding_dim": 0,
        "max_draft_len": 63,
        "num_medusa_heads": HEADS,
        "num_medusa_layers": BLOCKS,
        "model_type": model.model_type,
        **of_qwen,
    }


@pytest.mark.parametrize("family", FAMILIES)
def test_the_medusa_configuration_adds_the_keys_of_nvidia_to_those_of_the_target(
    target: Target, tmp_path: Path, family: str
) -> None:
    (source, head), options = target(family), ConvertOptions("bfloat16")
    model = tiny_model(family, **SIZES, head_dim=16, rope_theta=1e6).config
    convert(source, options, tmp_path / "both", draft=MedusaEngineDraft(head, TREE))
    convert(source, options, tmp_path / "alone")
    alone, both = (json.loads((tmp_path / name / "config.json").read_text()) for name in ("alone", "both"))
    theirs = nvidias(model, "bfloat16")
    assert {key: both.get(key) for key in theirs} == theirs
    own = ("architecture", "max_draft_len", "num_medusa_heads", "num_medusa_layers", "model_type")
    assert both == alone | {key: theirs[key] for key in own}


def test_the_heads_of_an_fp8_target_stay_as_they_are(target: Target, tmp_path: Path) -> None:
    """As `combine_medusa_weight` of `quantization/quantize_by_modelopt.py` leaves them out."""
    _, head = target()
    quantize(tmp_path / "target", AUTO_FP8)
    source, options = read_source(tmp_path / "target"), ConvertOptions("float16", fp8=True)
    convert(source, options, tmp_path / "both", draft=MedusaEngineDraft(head, TREE))
    tensors = load_file(tmp_path / "both/rank0.safetensors")
    of_heads = [name for name in tensors if name.startswith("medusa_heads.")]
    assert len(of_heads) == 3 * HEADS
    assert {tensors[name].dtype for name in of_heads} == {torch.float16}
    assert tensors["transformer.layers.0.mlp.fc.weight"].dtype == torch.float8_e4m3fn
    config = json.loads((tmp_path / "both/config.json").read_text())
    assert config["quantization"]["exclude_modules"] == ["lm_head", "*medusa_heads*"]
    verify(source, options, tmp_path / "both", draft=MedusaEngineDraft(head, TREE))


def test_a_head_that_the_tree_never_asks_is_left_out(target: Target, tmp_path: Path) -> None:
    source, head = target()
    medusa = MedusaEngineDraft(head, ((0,), (1,), (0, 0)))
    convert(source, ConvertOptions("float16"), tmp_path / "both", draft=medusa)
    config = json.loads((tmp_path / "both/config.json").read_text())
    assert (config["num_medusa_heads"], config["max_draft_len"]) == (2, 3)
    names = load_file(tmp_path / "both/rank0.safetensors")
    assert {name.split(".")[1] for name in names if name.startswith("medusa_heads.")} == {"0", "1"}


def test_medusa_heads_of_another_target_are_refused_by_their_hidden_size(
    llama_folder: Callable[..., Path], target: Target
) -> None:
    _, head = target()
    with pytest.raises(ModelError, match="hidden size"):
        MedusaEngineDraft.usual(read_source(llama_folder()), MedusaMethod(kind="medusa"), head)


def test_medusa_refuses_heads_of_other_methods_and_unsupported_model_types(
    target: Target, tmp_path: Path
) -> None:
    (source, head), method = target(), MedusaMethod(kind="medusa")
    with pytest.raises(ModelError, match="not Medusa's"):
        MedusaEngineDraft.usual(source, method, read_head(write_head(tmp_path / "other", "eagle")))
    with pytest.raises(ModelError, match="Medusa for llama, mistral, qwen2, not for qwen3"):
        MedusaEngineDraft.usual(replace(source, model_type="qwen3"), method, head)
