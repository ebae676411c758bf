"""A Hugging Face model folder as plain facts."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from trtspec.checkpoint.scheme import Scheme, read_scheme
from trtspec.checkpoint.tensors import Tensor, read_json, read_tensors
from trtspec.errors import ModelError

T = TypeVar("T")
DTYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
STRETCHED = ("linear",)  # rope scalings that add to max_position_embeddings
REQUIRED: Any = object()
_ROPE = ("rope_scaling", "rope_parameters")


@dataclass(frozen=True, slots=True)
class Source:
    """What `config.json`, `generation_config.json` and the headers of the weights say of a model.

    `dtype` is TensorRT-LLM's name (`bfloat16`, `float16`, `float32`). `end_ids` are the tokens that end a
    text, the generation config's before the model config's; `rotary_scaling` is `rope_scaling` as it stands,
    and `partial_rotary_factor` the share of each head that rotary positions turn.
    In `sliding_layers` of the layers a token sees `sliding_window` tokens, itself counted.
    `scheme` is None for a model that is not quantized.
    """

    folder: Path
    architecture: str
    model_type: str
    dtype: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_size: int
    hidden_act: str
    norm_epsilon: float
    max_position_embeddings: int
    rotary_base: float
    rotary_scaling: Mapping[str, Any] | None
    partial_rotary_factor: float
    tie_word_embeddings: bool
    sliding_window: int | None
    sliding_layers: int
    attention_bias: bool
    mlp_bias: bool
    bos_id: int | None
    pad_id: int | None
    end_ids: tuple[int, ...]
    scheme: Scheme | None
    tensors: Mapping[str, Tensor]

    @property
    def parameters(self) -> int:
        """Numbers stored in the weights; a tied embedding counts once."""
        return sum(tensor.elements for tensor in self.tensors.values())

    @property
    def max_position(self) -> int:
        """The longest text that the model was made for, in tokens; the factor is TensorRT-LLM's own rule."""
        scaling = self.rotary_scaling or {}
        stretched = scaling.get("rope_type", scaling.get("type")) in STRETCHED
        factor = float(scaling.get("factor") or 1.0) if stretched else 1.0
        return int(self.max_position_embeddings * max(factor, 1.0))

    @property
    def files(self) -> tuple[Path, ...]:
        """What a conversion reads: the configs and the weights."""
        names = ("config.json", "generation_config.json", "hf_quant_config.json")
        configs = tuple(self.folder / name for name in names)
        weights = sorted({tensor.file for tensor in self.tensors.values()})
        return (*(path for path in configs if path.is_file()), *weights)


def read_source(folder: Path) -> Source:
    """Reads configs and headers, a few hundred kilobytes of any model; raises ModelError or TensorError."""
    if not folder.is_dir():
        raise ModelError(folder, "is not a folder", "give the model's folder or its Hugging Face Hub id")
    config = _Config(folder / "config.json")
    generation = folder / "generation_config.json"
    ends = _Config(generation) if generation.is_file() else config
    scheme = _scheme(config)
    architectures = config.get("architectures", list)
    if len(architectures) != 1 or not isinstance(architectures[0], str):
        raise ModelError(config.file, f"architectures must name one class, not {architectures}")
    tensors = read_tensors(folder)
    if (layers := config.size("num_hidden_layers")) > len(tensors):
        problem = f"num_hidden_layers is {layers}, but there are only {len(tensors)} tensors"
        raise ModelError(config.file, problem, "take config.json and weights from the same revision")
    hidden_size = config.size("hidden_size")
    heads = config.size("num_attention_heads")
    rotary_base, rotary_scaling, partial_rotary_factor = _rope(config)
    sliding_window, sliding_layers = _sliding(config)
    return Source(
        folder=folder,
        architecture=architectures[0],
        model_type=config.get("model_type", str),
        dtype=_dtype(config, tensors),
        vocab_size=config.size("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=config.size("intermediate_size"),
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=config.size("num_key_value_heads", heads),
        head_size=config.size("head_dim", hidden_size // heads),
        hidden_act=config.get("hidden_act", str, "silu"),
        norm_epsilon=config.number("rms_norm_eps", 1e-6),
        max_position_embeddings=config.size("max_position_embeddings"),
        rotary_base=rotary_base,
        rotary_scaling=rotary_scaling,
        partial_rotary_factor=partial_rotary_factor,
        tie_word_embeddings=config.get("tie_word_embeddings", bool, False),
        sliding_window=sliding_window,
        sliding_layers=sliding_layers,
        attention_bias=config.get("attention_bias", bool, False),
        mlp_bias=config.get("mlp_bias", bool, False),
        bos_id=config.token("bos_token_id"),
        pad_id=config.token("pad_token_id"),
        end_ids=ends.ids("eos_token_id") or config.ids("eos_token_id"),
        scheme=scheme,
        tensors=MappingProxyType(tensors),
    )


class _Config:
    """A config file whose values are what they should be, or else an error that names key and value."""

    def __init__(self, file: Path, content: Mapping[str, Any] | None = None) -> None:
        self.file, self.content = file, read_json(file) if content is None else content

    def section(self, key: str) -> _Config:
        """An object within the config, empty if it is not there."""
        return _Config(self.file, self.get(key, dict, {}))

    def size(self, key: str, default: int = REQUIRED) -> int:
        value = self.get(key, int, default)
        if value < 1:
            raise ModelError(self.file, f"{key} must be at least 1, not {value}")
        return value

    def number(self, key: str, default: float) -> float:
        is_int = type(self.content.get(key)) is int
        value = self.get(key, int) if is_int else self.get(key, float, default)
        if not 0 < value <= sys.float_info.max:
            raise ModelError(self.file, f"{key} must be a positive number, not {value!r:.20}")
        return float(value)

    def get(self, key: str, kind: type[T], default: Any = REQUIRED) -> T:
        value = self.content.get(key)
        if value is None:
            if default is REQUIRED:
                raise ModelError(self.file, f"has no {key}")
            return default  # type: ignore[no-any-return]
        if type(value) is not kind:
            raise ModelError(self.file, f"{key} must be {kind.__name__}, not {value!r}")
        return value

    def token(self, key: str) -> int | None:
        ids = self.ids(key)
        return ids[0] if ids else None

    def ids(self, key: str) -> tuple[int, ...]:
        value = self.content.get(key)
        ids = value if isinstance(value, list) else [] if value is None else [value]
        if not all(type(token) is int and token >= 0 for token in ids):
            raise ModelError(self.file, f"{key} must be token ids, not {value!r}")
        return tuple(ids)


def _dtype(config: _Config, tensors: Mapping[str, Tensor]) -> str:
    """What the config says (`torch_dtype`; `dtype` since transformers 4.56), else what the weights are."""
    named = config.content.get("dtype") or config.content.get("torch_dtype")
    if named is None:
        found = {DTYPES[tensor.dtype] for tensor in tensors.values() if tensor.dtype in DTYPES}
        return found.pop() if len(found) == 1 else "float32"
    if named not in DTYPES.values():
        raise ModelError(config.file, f"dtype {named!r} is not one of {', '.join(DTYPES.values())}")
    return str(named)


def _scheme(config: _Config) -> Scheme | None:
    """From `config.json`, or from the file beside it that ModelOpt writes, and once wrote alone."""
    written = config.get("quantization_config", dict, None) or config.get("compression_config", dict, None)
    if written:
        return read_scheme(config.file, written)
    beside = config.file.with_name("hf_quant_config.json")
    return read_scheme(beside, read_json(beside)) if beside.is_file() else None


def _rope(config: _Config) -> tuple[float, Mapping[str, Any] | None, float]:
    """Base, scaling and the share of a head that turns.

    From `rope_theta`, `rope_scaling` and `partial_rotary_factor`, or transformers 5's one `rope_parameters`,
    which may have all of them. What is said twice must be the same: the versions of transformers differ in
    which one they believe.
    """
    sections = [section for key in _ROPE if (section := config.section(key)).content]
    found = []
    for name, default in (("rope_theta", 10000.0), ("partial_rotary_factor", 1.0)):
        numbers = {at.number(name, default) for at in (config, *sections) if at.content.get(name) is not None}
        if len(numbers) > 1:
            raise ModelError(config.file, f"{name} must be one number, not {sorted(numbers)}")
        found.append(numbers.pop() if numbers else default)
    scalings = [_scaling(section) for section in sections]
    if any(scaling != scalings[0] for scaling in scalings):
        raise ModelError(config.file, f"{' and '.join(_ROPE)} do not say the same")
    return found[0], scalings[0] if scalings else None, found[1]


def _scaling(section: _Config) -> Mapping[str, Any] | None:
    """What is left of a section without the numbers that every rotation has."""
    others = ("rope_theta", "partial_rotary_factor")
    scaling = {key: value for key, value in section.content.items() if key not in others}
    is_default = not scaling or scaling.get("rope_type", scaling.get("type")) == "default"
    return None if is_default else MappingProxyType(scaling)


def _sliding(config: _Config) -> tuple[int | None, int]:
    """The window and how many layers have it, by the rules and defaults of transformers' configurations."""
    kind, layers = config.get("model_type", str), config.size("num_hidden_layers")
    if kind != "mistral" and not (
        kind in ("qwen2", "qwen3") and config.get("use_sliding_window", bool, False)
    ):
        return None, 0
    is_off = config.content.get("sliding_window", 4096) is None
    window = None if is_off else config.size("sliding_window", 4096)
    full = 0 if kind == "mistral" else config.get("max_window_layers", int, 28)
    kinds = config.get("layer_types", list, ["sliding_attention"] * max(layers - full, 0))
    return window, 0 if window is None else kinds.count("sliding_attention")
