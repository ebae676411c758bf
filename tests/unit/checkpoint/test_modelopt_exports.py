"""FP8 models as ModelOpt publishes them, converted, against its TensorRT-LLM export of the same model."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import PreTrainedModel

from tests.fakes.engine_dir import tiny_model
from tests.fakes.modelopt import calibrate, export, export_hugging_face
from tests.support.families import FAMILIES, case
from tests.unit.checkpoint.fp8_folders import prequantized_of
from trtspec.base.errors import ModelError
from trtspec.checkpoint.convert import convert
from trtspec.checkpoint.convert_options import ConvertOptions, Mapping
from trtspec.models.source import Scheme, read_source

Exported = tuple[Path, Path]
PARTS = {
    "attention.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "attention.dense": ("self_attn.o_proj",),
    "mlp.fc": ("mlp.gate_proj",),
    "mlp.gate": ("mlp.up_proj",),
    "mlp.proj": ("mlp.down_proj",),
}


def saved_model(family: str) -> PreTrainedModel:
    """As if loaded from a folder, and of sizes that FP8 products of two ranks can have."""
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "head_dim": 16}
    model = tiny_model(family, dtype=torch.bfloat16, **sizes)
    model.config.architectures = [type(model).__name__]
    return model


@pytest.fixture
def exported(tmp_path: Path) -> Callable[..., Exported]:
    """A calibrated model: ModelOpt's Hugging Face export and its TensorRT-LLM checkpoint of its ranks."""

    def make(family: str, *, kv_cache: bool) -> Exported:
        model = saved_model(family)
        ids = torch.randint(0, 96, (4, 64))
        calibrate(model, lambda model: model(ids), kv_cache=kv_cache)
        export(copy.deepcopy(model), torch.bfloat16, tmp_path / "tensorrt_llm", tensor=2)
        export_hugging_face(model, tmp_path / "hugging_face")
        return tmp_path / "hugging_face", tmp_path / "tensorrt_llm"

    return make


@pytest.mark.parametrize(
    ("family", "kv_cache"),
    [case(name, kv_cache, often=kv_cache) for name in FAMILIES for kv_cache in (False, True)],
)
def test_a_conversion_is_what_the_exporter_makes_of_the_same_model(
    exported: Callable[..., Exported], tmp_path: Path, family: str, kv_cache: bool
) -> None:
    """ModelOpt divides in bfloat16 for Hugging Face and in float32 for TensorRT-LLM, and a conversion rounds
    what was rounded once: FP8 numbers may be one step apart. For TensorRT-LLM it raises the scales of a cache
    to 1, and a conversion keeps those that are published. All else is equal to the bit."""
    theirs, reference = exported(family, kv_cache=kv_cache)
    source = read_source(theirs)
    assert source.scheme == Scheme("modelopt", kv_cache=kv_cache)
    options = ConvertOptions("bfloat16", Mapping(tp_size=2), fp8=True, fp8_kv_cache=kv_cache)
    convert(source, options, tmp_path / "ours")
    published = load_file(theirs / "model.safetensors")

    for rank in range(2):
        ours = load_file(tmp_path / "ours" / f"rank{rank}.safetensors")
        expected = load_file(reference / f"rank{rank}.safetensors")
        assert ours.keys() == expected.keys()
        for name, tensor in ours.items():
            assert tensor.dtype == expected[name].dtype
            if tensor.dtype == torch.float8_e4m3fn:
                steps = tensor.view(torch.uint8).int() - expected[name].view(torch.uint8).int()
                assert steps.abs().max() <= 1, name
            elif name.endswith("_cache_scaling_factor"):
                assert float(tensor) == cache_scale(published, name) < float(expected[name]) == 1, name
            else:
                assert torch.equal(tensor, expected[name]), name


def cache_scale(published: dict[str, torch.Tensor], name: str) -> float:
    """Of a name that ends in `k_cache_`, `v_cache_` or `kv_cache_scaling_factor`."""
    attention = f"model.layers.{name.split('.')[2]}.self_attn"
    letters = name.rpartition(".")[2].removesuffix("_cache_scaling_factor")
    return max(float(published[f"{attention}.{letter}_proj.{letter}_scale"]) for letter in letters)


def test_fp8_numbers_are_those_that_were_published_or_rounded_to_the_shared_scale(
    exported: Callable[..., Exported], tmp_path: Path
) -> None:
    folder, _ = exported("llama", kv_cache=False)
    convert(read_source(folder), ConvertOptions("bfloat16", fp8=True), tmp_path / "ours")
    theirs, ours = load_file(folder / "model.safetensors"), load_file(tmp_path / "ours/rank0.safetensors")
    kept = 0
    for layer, (name, parts) in itertools.product((0, 1), PARTS.items()):
        shared = ours[f"transformer.layers.{layer}.{name}.weights_scaling_factor"]
        expected = []
        for part in parts:
            stored = theirs[f"model.layers.{layer}.{part}.weight"]
            scale = theirs[f"model.layers.{layer}.{part}.weight_scale"]
            kept += bool(scale == shared)
            expected.append(stored if scale == shared else rescaled(stored, scale, shared))
        found = ours[f"transformer.layers.{layer}.{name}.weight"]
        assert torch.equal(found.view(torch.uint8), torch.cat([e.view(torch.uint8) for e in expected]))
    assert kept == 2 * 4  # o_proj, down_proj, and the largest of q, k, v and of gate and up


def rescaled(stored: torch.Tensor, scale: torch.Tensor, shared: torch.Tensor) -> torch.Tensor:
    return (stored.float() * scale / shared).clamp(-448, 448).to(torch.float8_e4m3fn)


def test_the_file_beside_the_config_is_enough(exported: Callable[..., Exported]) -> None:
    """Older ModelOpt wrote `hf_quant_config.json` only."""
    folder, _ = exported("llama", kv_cache=True)
    both = read_source(folder).scheme
    text = (folder / "config.json").read_text()
    (folder / "config.json").write_text(text.replace('"quantization_config"', '"_"'))
    assert read_source(folder).scheme == both == Scheme("modelopt", kv_cache=True)
    (folder / "hf_quant_config.json").unlink()
    assert read_source(folder).scheme is None


def test_a_layer_that_was_left_as_it_is(tmp_path: Path) -> None:
    model = saved_model("llama")
    calibrate(model, lambda model: model(torch.randint(0, 96, (4, 64))), but="*layers.0.mlp.down_proj*")
    export_hugging_face(model, tmp_path / "partly")
    with pytest.raises(ModelError, match=r"layers\.0\.mlp\.down_proj\.weight: is BF16; the config says FP8"):
        prequantized_of(read_source(tmp_path / "partly"))
