"""The text models within multimodal ones, against transformers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import (
    AutoConfig,
    CLIPVisionConfig,
    Gemma3Config,
    LlavaConfig,
    LlavaNextConfig,
    Mistral3Config,
    PixtralVisionConfig,
    SiglipVisionConfig,
)

import trtspec
from tests.unit.checkpoint.logits import check_engine
from trtspec.backends.table import load
from trtspec.base.errors import ModelError
from trtspec.checkpoint.blueprint import draw
from trtspec.checkpoint.calibrate.model import read_model
from trtspec.checkpoint.convert_options import ConvertOptions
from trtspec.models.families import family_of
from trtspec.models.source import DEFAULTS, HOLDERS, read_source
from trtspec.pipeline.build.plan import PlanRequest, look_here
from trtspec.pipeline.inspection.folder import inspect
from trtspec.pipeline.machine.host import Host
from trtspec.train.distill.model import write

Save = Callable[..., Path]
SIZES: dict[str, Any] = {
    "vocab_size": 264, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2,
    "initializer_range": 0.2,
}  # fmt: skip
FEW: dict[str, Any] = SIZES | {"num_attention_heads": 6, "num_key_value_heads": 2}
SMALL: dict[str, Any] = {
    "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2,
    "image_size": 28, "patch_size": 14,
}  # fmt: skip
GEMMA = SIZES | {
    "num_hidden_layers": 7, "sliding_window": 24, "rope_scaling": {"rope_type": "linear", "factor": 8.0}
}  # fmt: skip
KINDS: dict[str, tuple[type, Any, type, dict[str, Any]]] = {
    # As published: heads, their size, norms and bases of positions are left to the class.
    "Gemma3ForConditionalGeneration": (Gemma3Config, GEMMA, SiglipVisionConfig, {"mm_tokens_per_image": 4}),
    "Mistral3ForConditionalGeneration": (Mistral3Config, FEW | {"model_type": "mistral", "head_dim": 8},
                                         PixtralVisionConfig, {}),
    "LlavaForConditionalGeneration": (LlavaConfig, FEW | {"model_type": "llama"}, CLIPVisionConfig, {}),
    "LlavaNextForConditionalGeneration": (LlavaNextConfig, FEW | {"model_type": "mistral"},
                                          CLIPVisionConfig, {}),
}  # fmt: skip


@pytest.fixture
def saved(tmp_path: Path) -> Save:
    """A random model as transformers saves it, whose norms would show what is left out."""

    def save(kind: str, **text: Any) -> Path:
        torch.manual_seed(0)
        config, sizes, vision, more = KINDS[kind]
        ids = {"image_token_index": 263}
        written = config(text_config=sizes | text, vision_config=vision(**SMALL).to_dict(), **more, **ids)
        model = getattr(transformers, kind)(written).eval()
        for name, parameter in model.named_parameters():
            if "norm" in name:
                torch.nn.init.normal_(parameter, 0.0 if "Gemma" in kind else 1.0, 0.3)
        model.save_pretrained(tmp_path / "model")
        return tmp_path / "model"

    return save


def logits_of(folder: Path, longest: int = 64) -> torch.Tensor:
    """Those of the whole model, for a text."""
    kind = json.loads((folder / "config.json").read_text())["architectures"][0]
    model = getattr(transformers, kind).from_pretrained(folder, attn_implementation="eager")
    with torch.inference_mode():
        found: torch.Tensor = model(torch.arange(longest)[None], use_cache=False).logits[0]
    return found


def rename(folder: Path, change: Callable[[str], str]) -> None:
    tensors = load_file(folder / "model.safetensors")
    save_file({change(name): tensor for name, tensor in tensors.items()}, folder / "model.safetensors")


def edit(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    content = json.loads((folder / "config.json").read_text())
    change(content)
    (folder / "config.json").write_text(json.dumps(content))


@pytest.mark.parametrize("kind", KINDS)
def test_the_text_is_computed_as_the_whole_model_does(saved: Save, kind: str) -> None:
    folder = saved(kind)
    expected = logits_of(folder)
    source = read_source(folder)
    assert len(source.tensors) + len(source.left_out) == len(load_file(folder / "model.safetensors"))
    assert source.left_out
    check_engine(folder, expected, 1, 1)


@pytest.mark.parametrize("kind", ["Gemma3ForConditionalGeneration", "LlavaForConditionalGeneration"])
def test_tensors_have_either_of_two_names(saved: Save, kind: str) -> None:
    folder = saved(kind)
    expected, before = logits_of(folder), read_source(folder)

    def newer(name: str) -> str:
        for whole, part in (("language_model.model.", "language_model."), ("language_model.lm_head", "")):
            if name.startswith(whole):
                return f"model.{part}{name.removeprefix(whole)}" if part else "lm_head.weight"
        return f"model.{name}"

    rename(folder, newer)
    source = read_source(folder)
    assert source.tensors.keys() == before.tensors.keys()
    assert len(source.left_out) == len(before.left_out)
    check_engine(folder, expected, 2, 1)


@pytest.mark.parametrize("kind", DEFAULTS)
def test_a_key_missing_from_a_text_config_has_the_default_of_transformers(tmp_path: Path, kind: str) -> None:
    """Of every key that is read, by what is read of a config that has them all."""
    holder = next((name for name, usual in HOLDERS.items() if usual == kind), "LlavaForConditionalGeneration")
    theirs = AutoConfig.for_model(kind).to_dict()
    known = {key: value for key, value in DEFAULTS[kind].items() if key != "architectures"}
    assert {key: theirs[key] for key in known} == known
    found = []
    (tmp_path / "model.safetensors").write_bytes(b"")
    save_file({f"model.{number}": torch.zeros(1) for number in range(99)}, tmp_path / "model.safetensors")
    for text in ({"model_type": kind}, {**theirs, "architectures": None}):
        content = {"architectures": [holder], "text_config": text, "vision_config": {}}
        (tmp_path / "config.json").write_text(json.dumps(content))
        source = read_source(tmp_path)
        family = family_of(source)
        read = {name: getattr(source, name) for name in source.__slots__ if name not in ("config", "dtype")}
        found.append((read, family.config(source), family.window(source), source.max_position))
    assert found[0] == found[1]


def test_a_gemma_3_as_transformers_5_saves_it(saved: Save) -> None:
    """What transformers 5.24 wrote of this model, `rope_parameters` by kind of layer; it says the same."""
    folder = saved("Gemma3ForConditionalGeneration")
    before = draw(read_source(folder), ConvertOptions("float32")).config

    def as_5(content: dict[str, Any]) -> None:
        content["text_config"].pop("rope_scaling")
        content["text_config"] |= {
            "rope_parameters": {
                "full_attention": {"factor": 8.0, "rope_theta": 1000000.0, "rope_type": "linear"},
                "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"},
            },
            "layer_types": ["full_attention" if n == 5 else "sliding_attention" for n in range(7)],
            "_sliding_window_pattern": 6, "attn_logit_softcapping": None, "final_logit_softcapping": None,
            "bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0, "head_dim": 256, "attention_bias": False,
            "query_pre_attn_scalar": 256, "num_attention_heads": 8, "num_key_value_heads": 4,
            "hidden_activation": "gelu_pytorch_tanh", "use_bidirectional_attention": False,
            "rms_norm_eps": 1e-06, "max_position_embeddings": 131072, "tie_word_embeddings": True,
        }  # fmt: skip
        content["tie_word_embeddings"] = True

    edit(folder, as_5)
    source = read_source(folder)
    assert draw(source, ConvertOptions("float32")).config == before
    assert (before["rotary_base"], before["rope_local_base_freq"]) == (1e6, 1e4)
    assert before["rotary_scaling"] == {"rope_type": "linear", "factor": 8.0}
    assert source.max_position == read_source(folder, whole=True).served_length == 131072

    def scaled(content: dict[str, Any]) -> None:
        rope = content["text_config"]["rope_parameters"]
        rope["sliding_attention"] = rope["full_attention"]

    edit(folder, scaled)
    with pytest.raises(ModelError, match="layers with a sliding window have scaled positions"):
        read_source(folder)


def test_a_text_model_whose_tensors_have_the_names_of_a_whole_one(saved: Save) -> None:
    """A `text_config` that was saved as the `config.json`."""
    folder = saved("LlavaForConditionalGeneration")
    expected = logits_of(folder)
    content = json.loads((folder / "config.json").read_text())
    named = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "float32"}
    (folder / "config.json").write_text(json.dumps({**DEFAULTS["llama"], **content["text_config"], **named}))
    check_engine(folder, expected, 1, 1)


def test_calibration_reads_the_text_model(saved: Save) -> None:
    for kind in ("Gemma3ForConditionalGeneration", "Mistral3ForConditionalGeneration"):
        folder = saved(kind)
        model = read_model(read_source(folder), "float32")
        with torch.inference_mode():
            found = model(torch.arange(64)[None], use_cache=False).logits[0]
        assert torch.allclose(found, logits_of(folder), atol=1e-4), kind
        assert "model.layers.0.self_attn.q_proj.weight" in model.state_dict()


def test_weights_that_transformers_would_make_up_are_refused(saved: Save) -> None:
    folder = saved("LlavaForConditionalGeneration")
    source = read_source(folder)
    rename(folder, lambda name: name.replace("q_proj", "query"))
    with pytest.raises(ModelError, match=r"transformers does not find .*q_proj"):
        read_model(source, "float32")


def test_a_trained_text_is_written_into_the_whole_model(saved: Save, tmp_path: Path) -> None:
    """And the other parts as they were."""
    folder, changed = saved("LlavaForConditionalGeneration"), "model.layers.1.mlp.up_proj.weight"
    source = read_source(folder)
    model = read_model(source, "float32")
    model.state_dict()[changed].zero_()
    write(model, source, tmp_path / "trained")
    before, after = (load_file(place / "model.safetensors") for place in (folder, tmp_path / "trained"))
    differing = [name for name in before if not torch.equal(before[name], after[name])]
    assert differing == [f"language_model.{changed}"]
    assert before.keys() == after.keys()


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("Qwen2VLForConditionalGeneration", {"model_type": "qwen2_vl"}),
        ("MllamaForConditionalGeneration", {"model_type": "mllama"}),
        ("PaliGemmaForConditionalGeneration", {"model_type": "paligemma"}),
        ("Phi4MMForCausalLM", {"model_type": "phi4mm", "embd_layer": {"image_embd_layer": {}}}),
        ("LlavaForConditionalGeneration", {"text_config": {"model_type": "qwen2"}}),
        ("Qwen2_5OmniModel", {"model_type": "qwen2_5_omni", "thinker_config": {}, "text_config": None}),
    ],
)
def test_other_multimodal_models_are_told_as_that(
    pair_recipe: Path, saved: Save, kind: str, changes: dict[str, Any]
) -> None:
    """Never that a tensor or a key is missing, and to download the file again."""
    folder = pair_recipe.parent / "target"
    tensors = load_file(folder / "model.safetensors") | {"visual.blocks.0.weight": torch.zeros(2, 2)}
    save_file(tensors, folder / "model.safetensors")
    text = json.loads((folder / "config.json").read_text())

    def change(content: dict[str, Any]) -> None:
        content.clear()
        content.update({"architectures": [kind], "text_config": text, "vision_config": {}, **changes})

    edit(folder, change)
    said = set()
    for command in (
        lambda: trtspec.plan(pair_recipe),
        lambda: look_here(load(pair_recipe), Host({}), PlanRequest()),
    ):
        with pytest.raises(
            ModelError, match=f"{kind} is multimodal, with .*; trtspec builds engines of"
        ) as caught:
            command()
        said.add((caught.value.problem, caught.value.repair))
    assert [found for found in inspect(str(folder)).findings if (found.problem, found.repair) in said]
    assert "engine.backend: vllm" in str(said)


def test_plan_says_what_is_left_out_and_other_servers_load_the_whole(
    pair_recipe: Path, tmp_path: Path, saved: Save
) -> None:
    folder = saved("LlavaForConditionalGeneration", vocab_size=258)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((pair_recipe.parent / "target" / name).read_bytes())
    pair_recipe.write_text(pair_recipe.read_text().replace("./target", "./model"))
    resolved = trtspec.plan(pair_recipe).resolved
    (choice,) = [choice for choice in resolved.choices if choice.key == "target.model"]
    assert (choice.value, choice.origin) == ("text part", "model")
    assert choice.reason.startswith(
        "a multimodal model; 27 tensors of its other parts, 58.8 kB, are left out"
    )
    built = trtspec.build(pair_recipe, output=tmp_path / "built").output
    config = json.loads((built / "target/engine/config.json").read_text())["pretrained_config"]
    assert (config["architecture"], config["vocab_size"]) == ("LlamaForCausalLM", 258)
    assert inspect(str(folder)).facts["convertible"]
    assert "engines have its text part, without 27" in str(inspect(str(folder)).findings)
    served = (
        pair_recipe.read_text().replace("backend: torch", "backend: vllm").replace(", dtype: float32", "")
    )
    pair_recipe.write_text(served)
    source = trtspec.plan(pair_recipe).resolved.target.model.source
    assert (source.architecture, source.left_out) == ("LlavaForConditionalGeneration", ())
    assert source.tensors.keys() == load_file(folder / "model.safetensors").keys()
