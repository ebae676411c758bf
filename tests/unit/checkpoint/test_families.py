"""Every family from Hugging Face to the torch executor, against transformers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.fakes.engine_dir import tiny_model
from trtspec.checkpoint.convert import convert
from trtspec.checkpoint.convert_options import ConvertOptions
from trtspec.checkpoint.mapping import Mapping
from trtspec.checkpoint.verify import verify
from trtspec.engine.engine_options import BuildOptions
from trtspec.engine.torch_builder import build
from trtspec.errors import ModelError
from trtspec.models.families import FAMILIES, family_of
from trtspec.models.families.family import shapes
from trtspec.models.source import read_source
from trtspec.serving.executors.torch.cache import Cache
from trtspec.serving.executors.torch.engine import read_config
from trtspec.serving.executors.torch.model import Decoder
from trtspec.serving.executors.torch.spans import Span
from trtspec.serving.executors.torch.weights import read_tensors

LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip


@pytest.fixture
def saved(tmp_path: Path) -> Callable[..., Path]:
    """A random model as transformers saves it; `edit` changes keys of its config.json, None removes one."""

    def save(family: str, *, shard: str = "5GB", edit: dict[str, Any] | None = None, **sizes: Any) -> Path:
        folder = tmp_path / family
        tiny_model(family, **sizes).save_pretrained(folder, max_shard_size=shard)
        if edit:
            config = json.loads((folder / "config.json").read_text()) | edit
            (folder / "config.json").write_text(json.dumps(config))
        return folder

    return save


COMMON = {
    "mlp_bias": False,
    "rotary_base": 10000.0,
    "rotary_scaling": None,
    "disable_weight_only_quant_plugin": False,
    "tie_word_embeddings": False,
}
LLAMA = COMMON | {"attn_bias": False, "residual_mlp": False, "remove_duplicated_kv_heads": False}
PHI3 = {
    "hidden_act": "swiglu",
    "rotary_pct": 1.0,
    "rotary_base": 10000.0,
    "rotary_scaling": None,
    "tie_word_embeddings": False,
    "sliding_window": None,
}
QWEN = COMMON | {
    "use_logn_attn": False,
    "num_labels": 1,
    "seq_length": 8192,
    "moe_intermediate_size": 0,
    "moe_shared_expert_intermediate_size": 0,
}
CONFIGS = {
    "llama": LLAMA,
    "mistral": LLAMA | {"sliding_window": 4096},
    "phi3": PHI3,
    "qwen2": QWEN | {"qwen_type": "qwen2", "attn_bias": True},
    "qwen3": QWEN | {"qwen_type": "qwen3", "attn_bias": False},
}


@pytest.mark.parametrize("family", CONFIGS)
def test_the_keys_of_a_family(saved: Callable[..., Path], family: str) -> None:
    source = read_source(saved(family))
    found = family_of(source)
    assert found.name == family
    assert found.config(source) | {key.name: key.value for key in found.keys} == CONFIGS[family]


@pytest.mark.parametrize("family", CONFIGS)
def test_every_tensor_has_its_place(saved: Callable[..., Path], family: str) -> None:
    """Of the names and shapes that transformers writes none is left out and none is asked for in vain."""
    source = read_source(saved(family))
    demanded = shapes(family_of(source).weights(source))
    assert demanded == {name: tensor.shape for name, tensor in source.tensors.items()}


@pytest.mark.parametrize("family", CONFIGS)
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
@pytest.mark.parametrize("family", ["mistral", "phi3"])
def test_a_window_is_kept(
    saved: Callable[..., Path], family: str, edit: dict[str, Any], window: int | None
) -> None:
    source = read_source(saved(family, edit=edit))
    assert family_of(source).config(source)["sliding_window"] == family_of(source).window(source) == window


@pytest.mark.parametrize(("family", "default"), [("mistral", 4096), ("phi3", None)])
def test_a_window_that_is_not_named_is_transformers_default(
    saved: Callable[..., Path], family: str, default: int | None
) -> None:
    folder = saved(family)
    config = json.loads((folder / "config.json").read_text())
    del config["sliding_window"]
    (folder / "config.json").write_text(json.dumps(config))
    theirs = AutoModelForCausalLM.from_pretrained(folder).config.sliding_window
    source = read_source(folder)
    assert family_of(source).window(source) == theirs == default


@pytest.mark.parametrize(
    ("family", "edit", "said"),
    [
        ("llama", {"architectures": ["MixtralForCausalLM"]}, "MixtralForCausalLM is not supported; known: "),
        ("llama", {"hidden_act": "gelu"}, "hidden_act gelu is not silu"),
        ("llama", {"attention_bias": True}, "not supported for LlamaForCausalLM"),
        ("llama", {"rope_scaling": {"rope_type": "longrope"}}, "rope type 'longrope' is not one of"),
        *(
            (
                "llama",
                {"rope_scaling": {"rope_type": kind, "factor": 2.0}},
                f"rope type '{kind}' is not one of",
            )
            for kind in ("dynamic", "yarn")
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
        ("llama", {"model_type": "granite"}, "says LlamaForCausalLM, but model_type is granite"),
        ("qwen3", {"model_type": "qwen2"}, "says Qwen3ForCausalLM, but model_type is qwen2"),
        ("qwen3", {"attention_bias": True}, "not supported for Qwen3ForCausalLM"),
        ("qwen2", {"num_key_value_heads": 4}, "6 attention heads over 4 key-value heads do not divide"),
        (
            "mistral",
            {"layer_types": ["full_attention", "sliding_attention"]},
            "1 of 2 layers have a sliding window",
        ),
        *(
            ("phi3", {"rope_scaling": {"type": kind}}, f"rope type '{kind}' is not supported for Phi3")
            for kind in ("longrope", "su", "linear", "yarn")
        ),
        ("phi3", {"partial_rotary_factor": 0.75}, "partial_rotary_factor is 0.75, not 1"),
        ("phi3", {"head_dim": 16}, "6 heads of 16 do not make the hidden_size"),
        ("phi3", {"rms_norm_eps": None}, "has no rms_norm_eps"),
        (
            "phi3",
            {"architectures": ["Phi3SmallForCausalLM"]},
            "Phi3SmallForCausalLM is not supported; known: ",
        ),
        ("phi3", {"hidden_act": "gelu"}, "hidden_act gelu is not silu"),
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
def test_what_would_be_wrong_is_refused(
    saved: Callable[..., Path], family: str, edit: dict[str, Any], said: str
) -> None:
    with pytest.raises(ModelError, match=said) as caught:
        family_of(read_source(saved(family, edit=edit)))
    if "known" in said:
        assert all(name in caught.value.problem for name in FAMILIES)


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
]


@pytest.mark.parametrize("ranks", [(1, 1), (2, 1), (2, 2)], ids=["one rank", "two ranks", "four ranks"])
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("family", CONFIGS)
def test_from_files_to_logits(
    saved: Callable[..., Path], family: str, path: str, ranks: tuple[int, int]
) -> None:
    """Mistral's text and Phi-3's are longer than their windows."""
    window = {"sliding_window": 24} if family in ("mistral", "phi3") else {}
    folder = saved(family, **PATHS[path], **window)
    if family_of(read_source(folder)).pipelines or ranks[1] == 1:
        check_logits(folder, *ranks)
    else:
        with pytest.raises(ModelError, match="TensorRT-LLM's Phi3ForCausalLM has no pipeline ranks"):
            check_logits(folder, *ranks)


@pytest.mark.parametrize("rope", ROPES, ids=["llama3", "linear"])
@pytest.mark.parametrize("family", [family for family in CONFIGS if family != "phi3"])
def test_rope_scaling(saved: Callable[..., Path], family: str, rope: dict[str, Any]) -> None:
    check_logits(saved(family, **rope), 1, 1)


def check_logits(folder: Path, tensor: int, pipeline: int) -> None:
    """What transformers loads from the folder and what the executor loads from the engine say the same."""
    checkpoint, engine, cpu = folder / "checkpoint", folder / "engine", torch.device("cpu")
    source, options = read_source(folder), ConvertOptions("float32", Mapping(tensor, pipeline))
    convert(source, options, checkpoint)
    verify(source, options, checkpoint)
    build(checkpoint, BuildOptions(2, 63, 64, 8192), engine)
    config = read_config(engine)
    decoder = Decoder(config, read_tensors(engine, config, cpu), Cache(config, cpu), cpu)
    text = torch.arange(60)
    with torch.inference_mode():
        expected = AutoModelForCausalLM.from_pretrained(folder)(text[None]).logits[0]
        parts = [
            decoder.forward(text[start:end].tolist(), [Span(0, start, end - start)], list(range(end - start)))
            for start, end in ((0, 40), (40, 41), (41, 46), (46, 60))
        ]
    assert (torch.cat(parts) - expected).abs().max() / expected.abs().max() < 3e-5
