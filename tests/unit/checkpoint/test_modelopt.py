"""Checkpoints against those that NVIDIA ModelOpt's own exporter writes of the same models, byte by byte."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, PreTrainedModel

from tests.fakes.engine_dir import tiny_model
from tests.fakes.modelopt import calibrate, export
from tests.support.families import ABSENT, FAMILIES, Differences
from tests.support.families import case as case_of
from trtspec.checkpoint.calibrate.calibrate import FakeQuantized
from trtspec.checkpoint.calibrate.model import load_model
from trtspec.checkpoint.calibration import CalibratedRanges
from trtspec.checkpoint.convert import convert
from trtspec.checkpoint.convert_options import ConvertOptions, Mapping
from trtspec.models.families import FAMILIES as OURS
from trtspec.models.families import family_of
from trtspec.models.source import read_source

NAMES = list(FAMILIES)
KINDS = {"bf16": (False, False), "fp8": (True, False), "fp8_kv": (True, True)}
CASES = [
    case_of(family.name, kind, tp, pp, often=(kind, pp) in (("fp8_kv", 2), ("bf16", 1)))
    for family in OURS.values()
    for kind in KINDS
    for tp in (1, 2)
    for pp in ((1, 2) if family.pipelines else (1,))
]
# Every size divides by two ranks as FP8 demands; the vocabulary does not, and is filled up.
SIZES: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 16, "vocab_size": 97, "rope_theta": 500000.0,
}  # fmt: skip
ROPE = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip


class Case:
    """A model in a folder, and the same model after ModelOpt's own calibration with the same texts."""

    def __init__(self, folder: Path, family: str, kind: str) -> None:
        self.folder, self.family = folder, family
        self.fp8, self.kv_cache = KINDS[kind]
        scaling: dict[str, Any] = {"rope_scaling": ROPE} if family == "llama" else {}
        tiny_model(family, dtype=torch.bfloat16, **SIZES, **scaling).save_pretrained(folder)
        self.source = read_source(folder)
        self.ids = torch.randint(0, 97, (4, 32), generator=torch.Generator().manual_seed(5))
        self.theirs: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
        if self.fp8:
            calibrate(self.theirs, self.run, kv_cache=self.kv_cache)

    def run(self, model: PreTrainedModel) -> None:
        for row in self.ids:
            model(row[None])

    @cached_property
    def calibration(self) -> CalibratedRanges | None:
        """Ours."""
        if not self.fp8:
            return None
        quantized = FakeQuantized(load_model(self.source, "bfloat16", 32), self.run, kv_cache=self.kv_cache)
        return CalibratedRanges(*quantized.found(family_of(self.source).weights(self.source)), {})

    def export(self, tp: int, pp: int) -> Path:
        """The exporter changes the model that it is given."""
        folder = self.folder.with_name(f"{self.folder.name}-{tp}-{pp}")
        export(copy.deepcopy(self.theirs), torch.bfloat16, folder, tp, pp)
        return folder


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Case]:
    made: dict[tuple[str, str], Case] = {}

    def make(family: str, kind: str) -> Case:
        if (family, kind) not in made:
            made[family, kind] = Case(tmp_path_factory.mktemp("model") / family, family, kind)
        return made[family, kind]

    return make


# Where the two `config.json` of all families differ.
OF_ALL: Differences = {
    "logits_dtype": ("float32", "float16", "it knows no other; a target's logits decide what is accepted"),
    "qk_layernorm": (False, ABSENT, "PretrainedConfig's default; Qwen3's norms follow from qwen_type"),
    "tie_word_embeddings": (False, ABSENT, "a default of TensorRT-LLM's configuration class"),
    "rotary_embedding_dim": (16, ABSENT, "PretrainedConfig's default, the head size"),
    "producer": (ABSENT, {"name": "modelopt", "version": "0.47.0"}, "says who wrote the file"),
    "bias": (ABSENT, False, "of other families"),
    "lm_head_bias": (ABSENT, False, "of other families"),
    "rmsnorm": (ABSENT, True, "of other families"),
    "share_embedding_table": (ABSENT, False, "both tables are in both checkpoints"),
}
UNSCALED: Differences = {"rotary_scaling": (None, ABSENT, "it writes the key only where there is a scaling")}


def differences(family: str, tp: int, pp: int) -> dict[str, tuple[Any, Any]]:
    own = FAMILIES[family].differences | ({} if family == "llama" else UNSCALED)
    listed = {key: (ours, theirs) for key, (ours, theirs, _) in (OF_ALL | own).items()}
    listed["decoder"] = (ABSENT, FAMILIES[family].decoder)  # Which TensorRT-LLM does not read.
    listed["rank"] = (ABSENT, tp * pp - 1)  # The one that it wrote last.
    if tp == 1:
        listed["use_parallel_embedding"] = (False, True)  # One rank has all of it, whatever this says.
    if FAMILIES[family].decoder == "qwen" and "moe" in FAMILIES[family].keys:
        # Its gap: how ranks share the experts, which it writes for Mixtral.
        theirs = {"world_size": tp * pp, "tp_size": tp, "pp_size": pp}
        listed["mapping"] = (theirs | {"moe_tp_size": tp, "moe_ep_size": 1}, theirs)
    return listed


@pytest.mark.parametrize(("family", "kind", "tp", "pp"), CASES)
def test_a_checkpoint_is_the_exporters_own(
    case: Callable[[str, str], Case], tmp_path: Path, family: str, kind: str, tp: int, pp: int
) -> None:
    model = case(family, kind)
    options = ConvertOptions("bfloat16", Mapping(tp, pp), model.fp8, model.kv_cache, model.calibration)
    convert(model.source, options, tmp_path / "ours")
    exported = model.export(tp, pp)

    for rank in range(tp * pp):
        ours = load_file(tmp_path / "ours" / f"rank{rank}.safetensors")
        expected = load_file(exported / f"rank{rank}.safetensors")
        assert ours.keys() == expected.keys()
        for name, tensor in ours.items():
            assert (tensor.dtype, tensor.shape) == (expected[name].dtype, expected[name].shape), name
            assert torch.equal(tensor.view(torch.uint8), expected[name].view(torch.uint8)), name

    config, known = (
        json.loads((folder / "config.json").read_text()) for folder in (tmp_path / "ours", exported)
    )
    patterns, excluded = (one["quantization"].pop("exclude_modules", []) for one in (config, known))
    modules = {name.removesuffix(".weight") for name in ours if name.endswith(".weight")}
    assert set(excluded) == {name for name in modules if any(fnmatchcase(name, of) for of in patterns)}
    pairs = {key: (config.get(key, ABSENT), known.get(key, ABSENT)) for key in config.keys() | known.keys()}
    found = {key: (ours, theirs) for key, (ours, theirs) in pairs.items() if ours != theirs}
    assert found == differences(family, tp, pp)


@pytest.mark.parametrize("family", NAMES)
def test_calibration_takes_the_largest_input_weight_and_cache_value_of_each_layer(
    case: Callable[[str, str], Case], family: str
) -> None:
    """The numbers against hooks in transformers' own model, without ModelOpt, which gives all experts of a
    layer the largest input of one, as there is one scale for all."""
    made = case(family, "fp8_kv")
    model = AutoModelForCausalLM.from_pretrained(made.folder, dtype=torch.bfloat16)
    expected: dict[str, float] = {}
    expert_number = re.compile(r"(?<=experts)\.\d+")

    def hook(name: str) -> Callable[..., None]:
        def see(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
            if inputs[0].numel():  # Not every expert is chosen.
                group = expert_number.sub("", name)
                expected[group] = max(expected.get(group, 0.0), float(inputs[0].abs().max()))

        return see

    routers = (".gate", ".shared_expert_gate", "lm_head")
    linears = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and not name.endswith(routers)
    }
    for name, module in linears.items():
        module.register_forward_pre_hook(hook(name))
    kv: dict[str, float] = {}
    with torch.inference_mode():
        for row in made.ids:
            cache = model(row[None], use_cache=True).past_key_values
            for layer, (key, value) in enumerate(cache.to_legacy_cache()):
                for name, tensor in (("k_proj", key), ("v_proj", value)):
                    name = f"model.layers.{layer}.self_attn.{name}"
                    kv[name] = max(kv.get(name, 0.0), float(tensor.abs().max()))
    found = made.calibration
    assert found is not None
    inputs = {name: expected[expert_number.sub("", name)] for name in linears}
    assert {name: amax.input for name, amax in found.linears.items()} == inputs
    weights = {name: float(module.weight.detach().abs().max()) for name, module in linears.items()}
    assert {name: amax.weight for name, amax in found.linears.items()} == weights
    assert found.kv == kv
