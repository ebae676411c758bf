"""Finds the text model within a multimodal one. Engines are built of it alone; other servers load the whole.

transformers leaves keys of `text_config` out that have the defaults of the text model's class, and has named
the tensors in two ways: `language_model.model.*` with `language_model.lm_head`, and `model.language_model.*`
with `lm_head`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trtspec.base.errors import ModelError
from trtspec.models.hf_config import HfConfig
from trtspec.models.tensors import Tensor

SERVED = "serve it with a backend that loads models itself: engine.backend: vllm or sglang"
HOLDERS = {
    "Gemma3ForConditionalGeneration": "gemma3_text",
    "LlavaForConditionalGeneration": "llama",
    "LlavaNextForConditionalGeneration": "llama",
    "Mistral3ForConditionalGeneration": "mistral",
}
"""The classes whose text part is an ordinary model, with its usual type.

Of those TensorRT-LLM's own conversion reads the text of all but Gemma 3 (`models/llama/config.py`)."""
_OF_LLAMA: Mapping[str, Any] = {
    "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 1e4, "tie_word_embeddings": False,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_SIZES = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "max_position_embeddings"),
)
DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "gemma3_text": {
        "architectures": ["Gemma3ForCausalLM"],
        **dict(zip(_SIZES, (262208, 2304, 9216, 26, 8, 4, 131072), strict=True)),
        "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh", "rms_norm_eps": 1e-6,
        "query_pre_attn_scalar": 256, "sliding_window": 4096, "tie_word_embeddings": True,
        "rope_theta": 1e6, "rope_local_base_freq": 1e4,
        "bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0,
    },
    "llama": {
        "architectures": ["LlamaForCausalLM"], **_OF_LLAMA,
        **dict(zip(_SIZES, (32000, 4096, 11008, 32, 32, 32, 2048), strict=True)),
    },
    "mistral": {
        "architectures": ["MistralForCausalLM"], **_OF_LLAMA, "sliding_window": 4096,
        **dict(zip(_SIZES, (32000, 4096, 14336, 32, 32, 8, 131072), strict=True)),
    },
}  # fmt: skip
"""The values that transformers' classes have for what a `text_config` leaves out, by `model_type`."""
_OUTER = ("dtype", "torch_dtype", "quantization_config", "bos_token_id", "eos_token_id", "pad_token_id")
_PARTS = (
    *("text_config", "vision_config", "audio_config", "llm_config", "language_config", "thinker_config"),
    *("img_processor", "embd_layer", "mm_vision_tower", "visual"),
)
_NAMES = {
    "language_model.model.": "model.",
    "language_model.lm_head.": "lm_head.",
    "model.language_model.": "model.",
    "lm_head.": "lm_head.",
}
"""How names of tensors begin, in the whole and in the text model."""


def is_multimodal(config: HfConfig) -> bool:
    """Says whether a config has sections of models for other things than text."""
    return not config.content.keys().isdisjoint(_PARTS)


def refusal(config: HfConfig) -> ModelError:
    """Returns the reason why trtspec builds no engine of a multimodal model that is not among `HOLDERS`."""
    text = config.section("text_config").content.get("model_type", "another model")
    named = " ".join(map(str, config.get("architectures", list, [])))
    known = f"of {', '.join(HOLDERS)}, if it is {', '.join(DEFAULTS)}"
    problem = f"{named} is multimodal, with {text} for text; trtspec builds engines of the text {known}"
    return ModelError(config.file, problem, SERVED)


def whole_of(config: HfConfig) -> HfConfig:
    """Returns the config; of a multimodal model such as Llama 4, with the section for text."""
    if "num_hidden_layers" in config.content:
        return config
    part = config.section("text_config").content
    return HfConfig(config.file, {**DEFAULTS.get(_kind(config), {}), **part, **config.content})


def text_of(config: HfConfig) -> HfConfig | None:
    """Returns the config of the text model within a multimodal one; None if there is none to build of."""
    kind = _kind(config)
    if kind not in DEFAULTS:
        return None
    part = {**DEFAULTS[kind], **config.section("text_config").content, "model_type": kind}
    outer = {key: config.content[key] for key in _OUTER if config.content.get(key) is not None}
    return HfConfig(config.file, {**part, **outer, "architectures": DEFAULTS[kind]["architectures"]})


def _kind(config: HfConfig) -> str:
    """The type of the text model within one of `HOLDERS`; empty for any other config."""
    named = config.content.get("architectures")
    usual = HOLDERS.get(named[0]) if isinstance(named, list) and named and type(named[0]) is str else None
    return config.section("text_config").get("model_type", str, usual) if usual else ""


def split(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], tuple[Tensor, ...]]:
    """Returns the tensors of the text model by their names in it, and those of the other parts.

    A folder with the names of a text model has no other parts.
    """
    named = {
        alone + name.removeprefix(whole): name
        for whole, alone in _NAMES.items()
        for name in tensors
        if name.startswith(whole)
    }
    if not any(name.startswith("model.") for name in named):
        return dict(tensors), ()
    others = tensors.keys() - named.values()
    text = {name: tensors[whole] for name, whole in named.items()}
    return text, tuple(tensor for name, tensor in tensors.items() if name in others)
