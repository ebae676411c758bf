"""Every family from Hugging Face to the torch executor, against transformers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM

from tests.fakes.engine_dir import tiny_model
from tests.support.families import FAMILIES as ROWS
from tests.support.families import WINDOWED, case
from tests.unit.checkpoint.logits import check_logits
from trtspec.base.errors import ModelError
from trtspec.models.families import FAMILIES, family_of
from trtspec.models.families.family import shapes
from trtspec.models.source import read_source

LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}


@pytest.fixture(scope="module")
def as_saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A random model as transformers saves it, the same one only once; its folder is not to be changed."""

    @cache
    def save(family: str, shard: str, sizes: str) -> Path:
        folder = tmp_path_factory.mktemp(family)
        tiny_model(family, **json.loads(sizes)).save_pretrained(folder, max_shard_size=shard)
        return folder

    return save


@pytest.fixture
def saved(tmp_path: Path, as_saved: Callable[..., Path]) -> Callable[..., Path]:
    """Such a model in a folder of the test's; `edit` changes keys of its config.json, None removes one."""

    def save(family: str, *, shard: str = "5GB", edit: dict[str, Any] | None = None, **sizes: Any) -> Path:
        folder = tmp_path / family
        shutil.copytree(as_saved(family, shard, json.dumps(sizes)), folder, dirs_exist_ok=True)
        if edit:
            config = json.loads((folder / "config.json").read_text()) | edit
            (folder / "config.json").write_text(json.dumps(config))
        return folder

    return save


def test_each_family_has_a_row_in_the_tests() -> None:
    assert {family.name: name for name, family in FAMILIES.items()} == {
        name: family.model.__name__ for name, family in ROWS.items()
    }


@pytest.mark.parametrize("family", ROWS)
def test_the_keys_of_a_family(saved: Callable[..., Path], family: str) -> None:
    source = read_source(saved(family))
    found = family_of(source)
    assert found.name == family
    assert found.config(source) | {key.name: key.value for key in found.keys} == ROWS[family].keys


@pytest.mark.parametrize("family", ROWS)
def test_every_tensor_has_its_place(saved: Callable[..., Path], family: str) -> None:
    """Of the names and shapes that transformers writes none is left out and none is asked for in vain."""
    source = read_source(saved(family))
    demanded = shapes(family_of(source).weights(source))
    assert demanded == {name: tensor.shape for name, tensor in source.tensors.items()}


@pytest.mark.parametrize("family", ROWS)
def test_no_row_is_left_out_and_none_taken_twice(saved: Callable[..., Path], family: str) -> None:
    source = read_source(saved(family))
    parts = [part for weight in family_of(source).weights(source) for part in weight.parts]
    taken = sorted((part.name, row) for part in parts for row in part.rows)
    assert taken == sorted(
        (name, row) for name, tensor in source.tensors.items() for row in range(tensor.shape[0])
    )


@pytest.mark.parametrize(
    ("edit", "window"),
    [({"sliding_window": 16}, 16), ({"sliding_window": None}, None)],
)
@pytest.mark.parametrize("family", WINDOWED)
def test_a_window_is_kept(
    saved: Callable[..., Path], family: str, edit: dict[str, Any], window: int | None
) -> None:
    source = read_source(saved(family, edit=edit))
    assert family_of(source).config(source)["sliding_window"] == family_of(source).window(source) == window


@pytest.mark.parametrize("family", WINDOWED)
def test_a_window_that_is_not_named_is_transformers_default(saved: Callable[..., Path], family: str) -> None:
    folder = saved(family)
    config = json.loads((folder / "config.json").read_text())
    del config["sliding_window"]
    (folder / "config.json").write_text(json.dumps(config))
    theirs = AutoModelForCausalLM.from_pretrained(folder).config.sliding_window
    source = read_source(folder)
    assert family_of(source).window(source) == theirs == ROWS[family].keys["sliding_window"]


@pytest.mark.parametrize(
    ("family", "edit", "said"),
    [
        ("llama", {"architectures": ["Olmo2ForCausalLM"]}, "Olmo2ForCausalLM is not supported; known: "),
        ("llama", {"num_local_experts": 4, "num_experts_per_tok": 2}, "has experts, unlike LlamaForCausalLM"),
        ("mixtral", {"num_local_experts": None}, "has no experts, unlike MixtralForCausalLM"),
        ("mixtral", {"num_experts_per_tok": 9}, "num_experts_per_tok is 9, of 8 experts"),
        ("qwen3_moe", {"decoder_sparse_step": 2}, r"some layers have no experts \(decoder_sparse_step 2"),
        ("qwen2_moe", {"mlp_only_layers": [0]}, r"some layers have no experts .* mlp_only_layers \[0\]"),
        ("qwen2_moe", {"qkv_bias": False}, "qkv_bias is false"),
        ("llama", {"hidden_act": "gelu"}, "hidden_act is gelu, but"),
        ("llama", {"attention_bias": True}, "not supported for LlamaForCausalLM"),
        (
            "qwen2",
            {"rope_scaling": {**YARN, "attention_factor": 1.5}},
            "attention_factor of rope type 'yarn'",
        ),
        (
            "qwen2",
            {"rope_scaling": {"type": "yarn", "factor": 4.0}},
            "original_max_position_embeddings of ro",
        ),
        *(
            (
                "llama",
                {"rope_scaling": {"rope_type": kind, "factor": 2.0}},
                f"rope type '{kind}' is not one of",
            )
            for kind in ("dynamic", "longrope")
        ),
        ("llama", {"rope_scaling": {"factor": 2.0}}, "rope_scaling without a rope_type is not one of"),
        ("llama", {"rope_scaling": {**LLAMA3, "type": "linear"}}, "rope type 'linear and llama3' is not one"),
        (
            "llama",
            {"rope_scaling": {"type": "linear"}},
            "factor of rope type 'linear' must be a positive num",
        ),
        *(
            ("llama", {"rope_scaling": {**LLAMA3, key: None}}, f"{key} of rope type 'llama3' must be a pos")
            for key in LLAMA3
            if key != "rope_type"
        ),
        (
            "llama",
            {"rope_scaling": {"type": "linear", "factor": float("nan")}},
            "factor of rope type 'linear' must be a positive number, not nan",
        ),
        ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5, not 1"),
        ("llama", {"model_type": "granite"}, "has LlamaForCausalLM, but model_type is granite"),
        ("qwen3", {"model_type": "qwen2"}, "has Qwen3ForCausalLM, but model_type is qwen2"),
        ("qwen3", {"attention_bias": True}, "not supported for Qwen3ForCausalLM"),
        ("qwen2", {"num_key_value_heads": 4}, "6 attention heads over 4 key-value heads do not divide"),
        (
            "mistral",
            {"layer_types": ["full_attention", "sliding_attention"]},
            "1 of 2 layers have a sliding window",
        ),
        *(
            ("phi3", {"rope_scaling": {"type": kind}}, f"rope type '{kind}' is not supported for Phi3")
            for kind in ("su", "linear", "yarn")
        ),
        *(("gemma2", {key: None}, f"has no {key}") for key in ("query_pre_attn_scalar", "head_dim")),
        ("gemma3_text", {"rope_theta": None}, "has no rope_theta"),
        (
            "gemma2",
            {"rope_scaling": {"rope_type": "linear", "factor": 8.0}},
            "rope type 'linear' is not supported for Gemma2",
        ),
        (
            "gemma3_text",
            {"rope_scaling": YARN},
            "rope type 'yarn' is not supported for Gemma3",
        ),
        ("gemma3_text", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping: .* Gemma 3 has none"),
        ("gemma3_text", {"use_bidirectional_attention": True}, "belongs to models that generate no text"),
        ("gemma2", {"hidden_activation": "gelu"}, "hidden_act is gelu, but"),
        ("gemma2", {"layer_types": ["full_attention", "sliding_attention"]}, "layer_types follow no pattern"),
        ("phi3", {"partial_rotary_factor": 0.4}, "partial_rotary_factor is 0.4: no pairs of 3 elements"),
        (
            "phi3",
            {"partial_rotary_factor": 1e308},
            "more than a whole head",
        ),
        ("phi3", {"rope_scaling": {"rope_type": ["longrope"]}}, r"rope type \['longrope'\] is not supported"),
        ("mixtral", {"num_local_experts": 10**9}, "1000000000 experts in each of 2 layers, but there are"),
        ("phi3", {"head_dim": 16}, "6 heads of 16 are not the hidden_size"),
        ("phi3", {"rms_norm_eps": None}, "has no rms_norm_eps"),
        (
            "phi3",
            {"architectures": ["Phi3SmallForCausalLM"]},
            "Phi3SmallForCausalLM is not supported; known: ",
        ),
        ("phi3", {"hidden_act": "gelu"}, "hidden_act is gelu, but"),
        (
            "qwen2",
            {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1, "layer_types": None},
            "1 of 2 layers have a sliding window",
        ),
        (
            "qwen3",
            {"use_sliding_window": True, "sliding_window": 8, "layer_types": ["sliding_attention"] * 2},
            "2 of 2 layers have a sliding window",
        ),
    ],
)
def test_a_configuration_that_would_be_computed_wrongly_is_refused(
    saved: Callable[..., Path], family: str, edit: dict[str, Any], said: str
) -> None:
    with pytest.raises(ModelError, match=said) as caught:
        family_of(read_source(saved(family, edit=edit)))
    if "known" in said:
        assert all(name in caught.value.problem for name in FAMILIES)
        assert "engine.backend: vllm or sglang" in str(caught.value.repair)


@pytest.mark.parametrize(("family", "pattern"), [("gemma2", 2), ("gemma3_text", 6)])
def test_which_layers_of_a_gemma_have_a_window(saved: Callable[..., Path], family: str, pattern: int) -> None:
    """As transformers takes a config that does not name them."""
    folder = saved(family, num_hidden_layers=13, layer_types=None, edit={"layer_types": None})
    theirs = AutoModelForCausalLM.from_pretrained(folder).config.layer_types
    ours = family_of(read_source(folder)).config(read_source(folder))
    assert ours["_sliding_window_pattern"] == pattern
    assert [kind == "sliding_attention" for kind in theirs] == [(i + 1) % pattern != 0 for i in range(13)]


def test_the_head_of_a_gemma_is_tied_unless_its_config_says_otherwise(saved: Callable[..., Path]) -> None:
    folder = saved("gemma2", tie_word_embeddings=True)
    config = json.loads((folder / "config.json").read_text())
    config.pop("tie_word_embeddings", None)
    (folder / "config.json").write_text(json.dumps(config))
    assert read_source(folder).tie_word_embeddings
    check_logits(folder, 1, 1)


@pytest.mark.parametrize("keys", ["attention_multiplier", "all"])
def test_the_factors_of_a_granite_are_taken_as_transformers_takes_them(
    saved: Callable[..., Path], keys: str
) -> None:
    """1.0 too, which is no 1/sqrt(head size), and what a config leaves out."""
    check_logits(saved("granite", attention_multiplier=1.0, residual_multiplier=0.22), 2, 1)
    folder = saved("granite", **dict.fromkeys(ROWS["granite"].tiny, 1.0))
    config = json.loads((folder / "config.json").read_text())
    left = {
        key: value
        for key, value in config.items()
        if key not in (ROWS["granite"].tiny if keys == "all" else keys)
    }
    (folder / "config.json").write_text(json.dumps(left))
    for made in ("checkpoint", "engine"):
        shutil.rmtree(folder / made, ignore_errors=True)
    check_logits(folder, 1, 1)


def test_qwen_may_name_a_window_that_no_layer_has(saved: Callable[..., Path]) -> None:
    """As Qwen2.5 does: `use_sliding_window` is false, or all layers lie below `max_window_layers`."""
    for edit in ({"sliding_window": 8}, {"use_sliding_window": True, "sliding_window": 8}):
        source = read_source(saved("qwen2", edit=edit))
        assert family_of(source).window(source) is None


PATHS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "in shards": {"shard": "20KB"},
    "tied": {"tie_word_embeddings": True},
    "tied, in shards": {"tie_word_embeddings": True, "shard": "20KB"},
}
ROPES = [
    {"rope_theta": 5e5, "rope_scaling": LLAMA3},
    {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
    {"rope_theta": 1e4, "rope_scaling": YARN},
    {"rope_theta": 1e3, "rope_scaling": {**YARN, "beta_fast": 8, "beta_slow": 2, "factor": 16.0}},
]


RANKS = ((1, 1), (2, 1), (2, 2))
OFTEN = (("as it is", (2, 2)), ("tied, in shards", (1, 1)))


@pytest.mark.parametrize(
    ("family", "path", "ranks"),
    [
        case(family, path, ranks, often=(path, ranks) in OFTEN)
        for family in ROWS
        for path in PATHS
        for ranks in RANKS
    ],
)
def test_from_files_to_logits(
    saved: Callable[..., Path], family: str, path: str, ranks: tuple[int, int]
) -> None:
    """The texts are longer than windows."""
    window = {"sliding_window": 24} if family in WINDOWED else {}
    folder = saved(family, **PATHS[path], **window)
    found = family_of(read_source(folder))
    refused = "pipeline" if not found.pipelines and ranks[1] > 1 else None
    if refused is None:
        check_logits(folder, *ranks)
    else:
        with pytest.raises(ModelError, match=f"TensorRT-LLM's .*ForCausalLM has no {refused} ranks"):
            check_logits(folder, *ranks)


@pytest.mark.parametrize(
    ("family", "rope"),
    [
        case(family, rope, often=family == "qwen3_moe" and number == 2)
        for family in ROWS
        if ROWS[family].scaled
        for number, rope in enumerate(ROPES)
    ],
)
def test_rope_scaling(saved: Callable[..., Path], family: str, rope: dict[str, Any]) -> None:
    check_logits(saved(family, **rope), 1, 1)


def test_a_key_of_a_scaling_that_is_null_counts_as_missing(saved: Callable[..., Path]) -> None:
    """transformers writes `attention_factor: null`, and computes as without it."""
    folder = saved("qwen2", rope_scaling={**YARN, "attention_factor": None, "mscale": None})
    file = folder / "config.json"
    config = json.loads(file.read_text())
    key = "rope_parameters" if "rope_parameters" in config else "rope_scaling"
    config[key] |= {"attention_factor": None, "mscale": None}
    file.write_text(json.dumps(config))
    assert {"attention_factor", "mscale"}.isdisjoint(read_source(folder).rotary_scaling or {})
    check_logits(folder, 1, 1)


@pytest.mark.parametrize("family", ROWS)
def test_some_of_the_layers(saved: Callable[..., Path], family: str) -> None:
    """A draft of layers of its target, against transformers' model with the others taken out."""
    window = {"sliding_window": 24} if family in WINDOWED else {}
    folder = saved(family, num_hidden_layers=5, **window)
    check_logits(folder, 2, 1, (0, 3, 4))
