"""FP8 models against NVIDIA ModelOpt: its fake quantization, its exporter's files, transformers' forward."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import PreTrainedModel

from tests.fakes.engine_dir import (
    in_dtype,
    pretrained_config,
    tiny_model,
    write_directory,
)
from tests.fakes.modelopt import calibrate, export
from tests.support.families import FAMILIES
from trtspec.serving.errors import EngineLoadError
from trtspec.serving.executors.torch.cache import Cache
from trtspec.serving.executors.torch.engine import TorchEngineConfig, read_config
from trtspec.serving.executors.torch.linear import E4M3, linear, matrix, stacked, swap_halves
from trtspec.serving.executors.torch.model import Decoder
from trtspec.serving.executors.torch.spans import Span
from trtspec.serving.executors.torch.weights import forms, read_tensors

CPU = torch.device("cpu")
HALVES = [torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", HALVES)
def test_rounding_is_that_of_modelopt(dtype: torch.dtype) -> None:
    """Over many scales, with numbers that lie between two of float8 and some beyond amax."""
    from modelopt.torch.quantization.tensor_quant import scaled_e4m3_impl

    generator = torch.Generator().manual_seed(0)
    for _ in range(300):
        x = (torch.randn(1000, generator=generator) * torch.rand(1, generator=generator).exp()).to(dtype)
        amax = x.abs().max()
        halves = amax.float() / 448 * torch.arange(17.0, 449.0).mul(0.5)
        x = torch.cat([x, halves.to(dtype), 2 * x[:10], torch.zeros(1, dtype=dtype)])
        scale = float(amax.float() / 448)
        assert torch.equal(E4M3(scale, dtype)(x), scaled_e4m3_impl(x, amax))


def test_a_scale_of_another_maker() -> None:
    """One that is no amax / 448 to the last bit, as a GPU makes it, and one of no bfloat16 amax at all."""
    x = torch.randn(10_000)
    for scale in (float(torch.tensor(3.5) * torch.tensor(1 / 448)), 0.0123456789, 1.0):
        expected = (x / scale).clamp(-448, 448).to(torch.float8_e4m3fn).float() * scale
        assert (E4M3(scale, torch.bfloat16)(x) - expected).abs().gt(1e-6).float().mean() < 1e-3


Quantized = tuple[PreTrainedModel, TorchEngineConfig, dict[str, torch.Tensor], Path]
NAMES = {
    "self_attn.o_proj": "attention.dense",
    "self_attn.qkv_proj": "attention.qkv",
    "mlp.gate_proj": "mlp.fc",
    "mlp.gate_up_proj": "mlp.fc",
    "mlp.up_proj": "mlp.gate",
    "mlp.down_proj": "mlp.proj",
}


OF_MIXTRAL = {"gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"}
NORMS = {
    "input_layernorm": "input_layernorm",
    "self_attn.q_norm": "attention.q_layernorm",
    "self_attn.k_norm": "attention.k_layernorm",
    "post_attention_layernorm": "post_layernorm",
    "pre_feedforward_layernorm": "pre_feedforward_layernorm",
    "post_feedforward_layernorm": "post_feedforward_layernorm",
}
EXPERTS = [name for name, family in FAMILIES.items() if "moe" in family.keys]


@pytest.fixture
def quantized(tmp_path: Path) -> Callable[..., Quantized]:
    """A model after ModelOpt's calibration and export, and the export as an engine.

    Of the exporter's config.json the known gaps are filled: Qwen's keys and the name of its class. `compute`
    is the dtype in which both are then to run. The exporter divides a weight by amax / 448 and the model
    multiplies it by 448 / amax, which send some ties to different numbers; the model is given the file's.
    """

    def make(
        family: str, dtype: torch.dtype, compute: torch.dtype | None = None, *, kv_cache: bool = False
    ) -> Quantized:
        model, compute = tiny_model(family, dtype=dtype), compute or dtype
        ids = torch.randint(0, 96, (4, 64))
        calibrate(model, lambda model: model(ids), kv_cache=kv_cache)
        export(model, dtype, tmp_path / "export")
        theirs = json.loads((tmp_path / "export/config.json").read_text())
        tensors = load_file(tmp_path / "export/rank0.safetensors")
        take_weights(model, tensors)
        in_dtype(model, compute)
        tensors = {n: t.to(compute) if t.dtype == dtype else t for n, t in tensors.items()}
        if family in EXPERTS:  # It names the modules one by one.
            theirs["quantization"]["exclude_modules"] = ["lm_head", "*router", "*shared_expert_gate"]
        names = {"architecture": FAMILIES[family].model.__name__, "quantization": theirs["quantization"]}
        pretrained = theirs | pretrained_config(model) | names
        folder = write_directory(tmp_path / "engine", pretrained, tensors, max_seq_len=256)
        config = read_config(folder)
        return model, config, read_tensors(folder, config, CPU), folder

    return make


def take_weights(model: PreTrainedModel, tensors: dict[str, torch.Tensor]) -> None:
    """The exporter's weights; all but a few ties are what the model's own quantizer makes of them.

    A stack of experts is up and gate projection, or the one that is left.
    """
    config = model.config
    q, k = (heads * config.head_dim for heads in (config.num_attention_heads, config.num_key_value_heads))
    for index, layer in enumerate(model.model.layers):
        there = dict(layer.named_modules())
        names = {ours: [there[theirs]] for theirs, ours in NAMES.items() if theirs in there}
        if "attention.qkv" not in names:
            names["attention.qkv"] = [there[f"self_attn.{part}_proj"] for part in "qkv"]
        taken: list[tuple[Any, torch.Tensor]] = []
        for name, modules in names.items():
            stored = expanded(tensors, f"transformer.layers.{index}.{name}")
            parts = stored.split([q, k, k]) if len(modules) == 3 else [stored]
            taken += zip(modules, parts, strict=True)
        for name, parts in (("fc", ("up_proj", "gate_proj")), ("proj", ("down_proj",))):
            if f"mlp.shared_expert.{parts[0]}" in there:
                stored = expanded(tensors, f"transformer.layers.{index}.mlp.shared_expert.{name}")
                modules = [there[f"mlp.shared_expert.{part}"] for part in parts]
                taken += zip(modules, stored.chunk(len(parts)), strict=True)
            experts = [
                n for n in there if re.search(rf"experts\.\d+\.({parts[0]}|{OF_MIXTRAL[parts[0]]})$", n)
            ]
            for number, first in enumerate(experts):
                stored = expanded(tensors, f"transformer.layers.{index}.mlp.{name}")[number]
                folder, _, own = first.rpartition(".")
                modules = [
                    there[f"{folder}.{part if own == parts[0] else OF_MIXTRAL[part]}"] for part in parts
                ]
                taken += zip(modules, stored.chunk(len(parts)), strict=True)
        for module, part in taken:
            own = module.weight_quantizer(module.weight)
            assert (own != part.to(own.dtype)).float().mean() < 0.05
            module.weight.data.copy_(part)
        if "mlp.gate_up_proj" in there:  # The exporter has swapped the halves of the model's own.
            weight = there["mlp.gate_up_proj"].weight
            weight.data = swap_halves(weight.data)


def take_norms(model: PreTrainedModel, tensors: dict[str, torch.Tensor]) -> None:
    """The norms of a Gemma, which the file has with 1 added, and rounded."""
    model.model.norm.weight.data.copy_(tensors["transformer.ln_f.weight"] - 1)
    for index, layer in enumerate(model.model.layers):
        there = dict(layer.named_modules())
        for theirs, ours in NORMS.items():
            if theirs in there:
                norm = tensors[f"transformer.layers.{index}.{ours}.weight"]
                there[theirs].weight.data.copy_(norm - 1)


def expanded(tensors: dict[str, torch.Tensor], name: str) -> torch.Tensor:
    """The matrix of a layer, or those of its experts, in float32."""
    weight, scale = tensors[f"{name}.weight"].float(), tensors[f"{name}.weights_scaling_factor"]
    return weight * (scale[..., None] if weight.dim() == 3 else scale)


class Product(torch.nn.Module):
    """Some rows of one of the executor's products, in the place of a `torch.nn.Linear`."""

    def __init__(self, product: Callable[[torch.Tensor], torch.Tensor], rows: slice) -> None:
        super().__init__()
        self._product, self._rows = product, rows

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self._product(x.flatten(0, 1)).unflatten(0, x.shape[:2])
        return y[..., self._rows]


def with_products(
    model: PreTrainedModel, config: TorchEngineConfig, tensors: dict[str, torch.Tensor]
) -> None:
    """Puts the executor's products into transformers' model."""
    q = config.num_heads * config.head_size
    k, inner = q + config.num_kv_heads * config.head_size, config.intermediate_size
    for index, layer in enumerate(model.model.layers):
        name, attention = f"transformer.layers.{index}", layer.self_attn
        layer.mlp.down_proj = Product(linear(matrix(tensors, f"{name}.mlp.proj", config.dtype)), slice(None))
        attention.o_proj = Product(
            linear(matrix(tensors, f"{name}.attention.dense", config.dtype)), slice(None)
        )
        qkv = linear(matrix(tensors, f"{name}.attention.qkv", config.dtype))
        if config.fused_gate:
            gate_up = matrix(tensors, f"{name}.mlp.fc", config.dtype).reordered(swap_halves)
            attention.qkv_proj = Product(qkv, slice(None))
            layer.mlp.gate_up_proj = Product(linear(gate_up), slice(None))
            continue
        attention.q_proj = Product(qkv, slice(q))
        attention.k_proj = Product(qkv, slice(q, k))
        attention.v_proj = Product(qkv, slice(k, None))
        fc_gate = linear(stacked(tensors, (f"{name}.mlp.fc", f"{name}.mlp.gate"), config.dtype))
        layer.mlp.gate_proj = Product(fc_gate, slice(inner))
        layer.mlp.up_proj = Product(fc_gate, slice(inner, None))


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("family", [family for family in FAMILIES if family not in EXPERTS])
def test_the_products_are_modelopts_to_the_last_bit(
    quantized: Callable[..., Quantized], family: str, dtype: torch.dtype
) -> None:
    """Transformers' forward with our products is the fake-quantized model, all else being the same code."""
    theirs, config, tensors, _ = quantized(family, dtype)
    ours = tiny_model(family, dtype=dtype)
    with_products(ours, config, tensors)
    ids = torch.randint(0, 96, (2, 50))
    with torch.inference_mode():
        assert torch.equal(ours(ids).logits, theirs(ids).logits)


def is_usual(family: str, kv_cache: bool, step: int) -> bool:
    """Says whether the suite tries this case: each family once, and Llama in every way."""
    return family == "llama" or (kv_cache and step == 7)


@pytest.mark.parametrize(
    ("family", "kv_cache", "step"),
    [
        pytest.param(
            family, kv_cache, step, marks=[] if is_usual(family, kv_cache, step) else pytest.mark.sweep
        )
        for family in FAMILIES
        for kv_cache in (False, True)
        for step in (1, 7, 60)
    ],
)
def test_the_whole_model(quantized: Callable[..., Quantized], family: str, kv_cache: bool, step: int) -> None:
    """In float32, where the order of sums hardly ever sends a number to its neighbour in float8.

    Where it does, one text of five may differ. The exporter stores 1.0 as the scale of the cache, so that is
    what ModelOpt's model is told as well.
    """
    theirs, config, tensors, _ = quantized(family, torch.bfloat16, torch.float32, kv_cache=kv_cache)
    if FAMILIES[family].norm_shift:
        take_norms(theirs, tensors)
    if kv_cache:
        for name, module in theirs.named_modules():
            if name.endswith(("k_bmm_quantizer", "v_bmm_quantizer")):
                module.amax = torch.tensor(448.0)
    decoder, differences = Decoder(config, tensors, Cache(config, CPU), CPU), []
    with torch.inference_mode():
        for _ in range(5):
            text = torch.randint(0, 96, (60,)).tolist()
            expected = theirs(torch.tensor([text])).logits[0]
            ours = [
                decoder.forward(part, [Span(1, start, len(part))], list(range(len(part))))
                for start in range(0, 60, step)
                for part in [text[start : start + step]]
            ]
            differences.append(float((torch.cat(ours) - expected).abs().max() / expected.abs().max()))
    assert sorted(differences)[2] < 1e-5, differences


def test_layers_that_share_an_input_share_its_scale(quantized: Callable[..., Quantized]) -> None:
    _, config, tensors, _ = quantized("llama", torch.bfloat16)
    tensors["transformer.layers.1.mlp.gate.activation_scaling_factor"] *= 2
    with pytest.raises(EngineLoadError, match=r"layers\.1\.mlp\.fc .* different activation_scaling_factor"):
        Decoder(config, tensors, Cache(config, CPU), CPU)


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf")])
def test_a_scale_that_cannot_be(quantized: Callable[..., Quantized], scale: float) -> None:
    _, config, tensors, folder = quantized("llama", torch.bfloat16)
    name = "transformer.layers.0.mlp.proj.activation_scaling_factor"
    pretrained = json.loads((folder / "config.json").read_text())["pretrained_config"]
    write_directory(folder, pretrained, tensors | {name: torch.tensor([scale])})
    with pytest.raises(EngineLoadError, match=r"activation_scaling_factor is .*, not a positive number"):
        read_tensors(folder, config, CPU)


def test_a_bf16_file_is_not_an_fp8_engine(quantized: Callable[..., Quantized]) -> None:
    _, config, tensors, folder = quantized("llama", torch.bfloat16)
    pretrained = json.loads((folder / "config.json").read_text())["pretrained_config"]
    name = next(name for name, form in forms(config).items() if form.dtype == torch.float8_e4m3fn)
    write_directory(folder, pretrained, tensors | {name: tensors[name].to(torch.bfloat16)})
    with pytest.raises(EngineLoadError, match=r"is torch\.bfloat16 .*, not torch\.float8_e4m3fn"):
        read_tensors(folder, config, CPU)
