"""Reads the description of a model from the files of its Hugging Face folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from trtspec.base.errors import ModelError, TensorError
from trtspec.models.hf_config import LARGEST, SAME_REVISION, HfConfig, read_json, read_model_config
from trtspec.models.model_file import has_file
from trtspec.models.multimodal import is_multimodal, refusal, split, text_of, whole_of
from trtspec.models.scheme import Scheme, read_scheme
from trtspec.models.sizes import ExpertSizes, Sizes
from trtspec.models.tensors import Tensor, read_tensors

DTYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
YARN = "yarn"  # whose factor multiplies the length that the model was trained with before
STRETCHED = ("linear", "dynamic")  # rope types whose factor multiplies max_position_embeddings
TIED = ("gemma2", "gemma3_text")  # types whose head transformers ties unless their config says otherwise
UNTIED = ("granite", "llama", "mistral", "mixtral", "phi3", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe")
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
CONFIGS = ("config.json", "generation_config.json", "hf_quant_config.json")
_OVERRIDES = Path("engine.extra_args")
_ROPE = ("rope_scaling", "rope_parameters")


@dataclass(frozen=True, slots=True)
class Source(Sizes):
    """A model, read from `config.json`, `generation_config.json` and the headers of the weights."""

    folder: Path
    config: HfConfig
    """All of `config.json`, for keys that only one family needs."""
    model_type: str
    dtype: str
    """TensorRT-LLM's name: `bfloat16`, `float16` or `float32`."""
    hidden_act: str
    norm_epsilon: float
    max_position_embeddings: int
    rotary_base: float
    rotary_scaling: Mapping[str, Any] | None
    """The section `rope_scaling`; None for the default type."""
    partial_rotary_factor: float
    """The share of each head that rotary positions rotate."""
    attention_bias: bool
    mlp_bias: bool
    bos_id: int | None
    pad_id: int | None
    end_ids: tuple[int, ...]
    """The tokens that end a text: the generation config's, or else the model config's."""
    scheme: Scheme | None
    """The quantization; None for an unquantized model, and for a quantization of which trtspec builds no
    engine.
    """
    foreign: ModelError | None
    """The reason why trtspec builds no engine of this quantization; None otherwise."""
    tensors: Mapping[str, Tensor]
    """The tensors by Hugging Face's names."""
    ends_past: tuple[int, ...] = ()
    """The end tokens of the configs that are past the embedding, and so end no text."""
    left_out: tuple[Tensor, ...] = ()
    """The tensors of a multimodal model that are not of its text model, which this is."""
    layers: tuple[int, ...] | None = None
    """The layers of the folder's model that this one consists of; None for all of them."""

    @property
    def parameters(self) -> int:
        """The number of parameters; a tied embedding counts once."""
        return sum(tensor.elements for tensor in self.tensors.values())

    @property
    def size(self) -> int:
        """The bytes of the weights, as they are stored."""
        return sum(tensor.end - tensor.start for tensor in self.tensors.values())

    @property
    def active_parameters(self) -> int:
        """The number of parameters that compute one token: all except the experts that the router does not
        choose.
        """
        if self.experts is None:
            return self.parameters
        routed = sum(tensor.elements for name, tensor in self.tensors.items() if ".experts." in name)
        return self.parameters - routed * (self.experts.count - self.experts.chosen) // self.experts.count

    @property
    def max_position(self) -> int:
        """The longest sequence that the model supports, in tokens; a factor counts as in TensorRT-LLM.

        A `yarn` without an original length takes max_position_embeddings for it, as in transformers. In Gemma
        3 the length in `config.json` is the stretched one already. Raises ModelError for scaling values that
        are not numbers.
        """
        longest = self.max_position_embeddings
        if self.rope_type != YARN:
            return self._stretched(longest)
        before = self._rotation.number("original_max_position_embeddings", longest)
        return int(min(max(before * self._rotation.number("factor", 1.0), longest), LARGEST))

    @property
    def served_length(self) -> int:
        """The longest sequence that another engine's server takes of the model, in tokens.

        Where positions turn by `yarn`, the length in `config.json` is the stretched one already. Command R
        has a `model_max_length`, which counts in place of its positions. Raises ModelError for numbers of a
        scaling that are none.
        """
        named = self.config.content.get("model_max_length")
        longest = min(named, LARGEST) if type(named) is int and named > 0 else self.max_position_embeddings
        return self._stretched(longest)

    def _stretched(self, longest: int) -> int:
        if self.rope_type not in STRETCHED or self.model_type.startswith("gemma3"):
            return longest
        return int(min(max(longest * self._rotation.number("factor", 1.0), longest), LARGEST))

    @property
    def rope_type(self) -> object:
        """The type of the rotary scaling; None for the default type."""
        return self._rotation.content.get("rope_type", self._rotation.content.get("type"))

    @property
    def _rotation(self) -> HfConfig:
        return HfConfig(self.config.file, self.rotary_scaling or {})

    def overridden(self, keys: Mapping[str, Any]) -> Source:
        """Returns the model with other keys of `config.json`, as far as the length of its texts needs them.

        The keys are those of a recipe's `engine.extra_args`. A scaling that names its type replaces the
        model's own, and else adds to it. Raises ModelError.
        """
        keys = {**keys, **HfConfig(_OVERRIDES, keys).section("text_config").content}
        config, scaling = HfConfig(_OVERRIDES, {**self.config.content, **keys}), self.rotary_scaling
        for key in (key for key in _ROPE if key in keys):
            section = config.section(key)
            is_whole = not section.content or not section.content.keys().isdisjoint(("rope_type", "type"))
            own = {} if is_whole else scaling or {}
            scaling = _scaling(HfConfig(_OVERRIDES, {**own, **section.content}))
        return replace(
            self,
            config=replace(config, file=self.config.file),
            max_position_embeddings=config.size("max_position_embeddings"),
            rotary_scaling=scaling,
        )

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that a conversion reads: those configs that exist, and the weights."""
        configs = tuple(self.folder / name for name in CONFIGS)
        weights = sorted({tensor.file for tensor in self.tensors.values()})
        return (*(path for path in configs if has_file(path)), *weights)


def read_source(folder: Path, *, whole: bool = False) -> Source:
    """Reads configs and headers, a few hundred kilobytes for any model; raises ModelError or TensorError.

    Of a multimodal model it is the text model within, unless it is to be `whole`, as other servers load it.
    """
    written = read_model_config(folder)
    text = None if whole else text_of(written)
    config = text or whole_of(written)
    generation, beside = folder / "generation_config.json", folder / "hf_quant_config.json"
    ends = HfConfig(generation, read_json(generation)) if has_file(generation) else config
    tensors, quantization = read_tensors(folder), read_json(beside) if has_file(beside) else None
    is_text = text or not (whole or is_multimodal(written))
    tensors, others = split(tensors) if is_text else (tensors, ())
    try:
        source = replace(source_of(config, ends, quantization, tensors), left_out=others)
    except ModelError:
        if is_multimodal(written) and not (text or whole):
            raise refusal(written) from None
        raise
    if (layers := source.num_hidden_layers) > len(tensors):
        problem = f"num_hidden_layers is {layers}, but there are only {len(tensors)} tensors"
        raise ModelError(config.file, problem, SAME_REVISION)
    _check_head(source)
    return source


def _check_head(source: Source) -> None:
    """Raises TensorError for a model that lacks its head, which the embedding is not in place of."""
    is_said = source.config.content.get("tie_word_embeddings") is False or source.model_type in UNTIED
    lacks = EMBEDDING in source.tensors and not any(name.startswith("lm_head.") for name in source.tensors)
    if lacks and is_said and not source.tie_word_embeddings:
        problem = f"has no {HEAD}, although the head is not the embedding: tie_word_embeddings is false"
        repair = "copy the whole model again; if its head is its embedding, write tie_word_embeddings: true"
        raise TensorError(source.folder, problem, f"{repair} in config.json")


def source_of(
    config: HfConfig, ends: HfConfig, quantization: Mapping[str, Any] | None, tensors: Mapping[str, Tensor]
) -> Source:
    """Returns the model that these contents describe; no file is read.

    `config` is that of the text model, `ends` names the end tokens, and `quantization` is the content of
    `hf_quant_config.json`, if there is one. Raises ModelError.
    """
    config = _in_keys_of_4(config)
    scheme, foreign = _scheme(config, quantization)
    architectures = config.get("architectures", list)
    if len(architectures) != 1 or not isinstance(architectures[0], str):
        raise ModelError(config.file, f"architectures must name one class, not {architectures}")
    hidden_size = config.size("hidden_size")
    heads = config.size("num_attention_heads")
    model_type = config.get("model_type", str)
    rotary_base, rotary_scaling, partial_rotary_factor = read_rope(config)
    rows, listed = config.size("vocab_size"), (ends.ids("eos_token_id"), config.ids("eos_token_id"))
    reached = [tuple(token for token in tokens if token < rows) for tokens in listed]
    return Source(
        folder=config.folder,
        config=config,
        architecture=architectures[0],
        model_type=model_type,
        dtype=_dtype(config, tensors),
        vocab_size=rows,
        hidden_size=hidden_size,
        intermediate_size=config.size("intermediate_size"),
        num_hidden_layers=config.size("num_hidden_layers"),
        num_attention_heads=heads,
        num_key_value_heads=config.size("num_key_value_heads", heads),
        head_size=config.size("head_dim", hidden_size // heads),
        experts=_experts(config),
        hidden_act=config.get("hidden_activation", str, config.get("hidden_act", str, "silu")),
        norm_epsilon=config.number("rms_norm_eps", 1e-6),
        max_position_embeddings=config.size("max_position_embeddings"),
        rotary_base=rotary_base,
        rotary_scaling=rotary_scaling,
        partial_rotary_factor=partial_rotary_factor,
        tie_word_embeddings=config.get("tie_word_embeddings", bool, model_type in TIED),
        attention_bias=config.get("attention_bias", bool, False),
        mlp_bias=config.get("mlp_bias", bool, False),
        bos_id=config.token("bos_token_id"),
        pad_id=config.token("pad_token_id"),
        end_ids=reached[0] or reached[1],
        ends_past=tuple(dict.fromkeys(token for tokens in listed for token in tokens if token >= rows)),
        scheme=scheme,
        foreign=foreign,
        tensors=MappingProxyType(tensors),
    )


def _dtype(config: HfConfig, tensors: Mapping[str, Tensor]) -> str:
    """The dtype that the config names (`torch_dtype`; `dtype` since transformers 4.56), else the weights'."""
    named = config.content.get("dtype") or config.content.get("torch_dtype")
    if named is None:
        found = {DTYPES[tensor.dtype] for tensor in tensors.values() if tensor.dtype in DTYPES}
        return found.pop() if len(found) == 1 else "float32"
    if named not in DTYPES.values():
        raise ModelError(config.file, f"dtype {named!r} is not one of {', '.join(DTYPES.values())}")
    return str(named)


def _scheme(
    config: HfConfig, quantization: Mapping[str, Any] | None
) -> tuple[Scheme | None, ModelError | None]:
    """The scheme in `config.json`, or in `hf_quant_config.json`, which older ModelOpt wrote alone, and the
    reason why a scheme is not converted.
    """
    written = config.get("quantization_config", dict, None) or config.get("compression_config", dict, None)
    try:
        if written:
            return read_scheme(config.file, written), None
        beside = config.file.with_name("hf_quant_config.json")
        return (read_scheme(beside, quantization) if quantization is not None else None), None
    except ModelError as error:
        return None, error


def _experts(config: HfConfig) -> ExpertSizes | None:
    """The experts of each layer, by the keys of Mixtral and of Qwen; None for a model without."""
    key = next((key for key in ("num_local_experts", "num_experts") if config.content.get(key)), None)
    if key is None:
        return None
    count, chosen = config.size(key), config.size("num_experts_per_tok")
    if chosen > count:
        raise ModelError(config.file, f"num_experts_per_tok is {chosen}, of {count} experts")
    width = config.size("moe_intermediate_size", config.size("intermediate_size"))
    return ExpertSizes(count, chosen, width, config.get("shared_expert_intermediate_size", int, 0))


def _in_keys_of_4(config: HfConfig) -> HfConfig:
    """Returns a Gemma's config with the rotations of each kind of layers in the keys of transformers 4.

    Raises ModelError for layers with a window whose positions are scaled.
    """
    rope = config.section("rope_parameters")
    if not rope.content or not config.get("model_type", str).startswith("gemma"):
        return config
    full = HfConfig(config.file, rope.get("full_attention", dict, rope.content))
    local, base = rope.section("sliding_attention"), config.content.get("rope_theta")
    if _scaling(local) is not None:
        raise ModelError(config.file, "rope_parameters: layers with a sliding window have scaled positions")
    found = {"rope_parameters": full.content, "rope_theta": base or full.number("rope_theta", 1e4)}
    if local.content:
        found["rope_local_base_freq"] = local.number("rope_theta", 1e4)
    return HfConfig(config.file, {**config.content, **found})


def read_rope(config: HfConfig) -> tuple[float, Mapping[str, Any] | None, float]:
    """Returns the rotary base, the scaling, and the share of each head that is rotated.

    They are `rope_theta`, `rope_scaling` and `partial_rotary_factor`, or stand in transformers 5's
    `rope_parameters`. Raises ModelError for a key with two different values, since versions of transformers
    differ in which one they use.
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
        raise ModelError(config.file, f"{' and '.join(_ROPE)} have different values")
    return found[0], scalings[0] if scalings else None, found[1]


def _scaling(section: HfConfig) -> Mapping[str, Any] | None:
    """The section without the keys that every rotation has; None for the default type."""
    others = ("rope_theta", "partial_rotary_factor")
    known = ((key, value) for key, value in section.content.items() if value is not None)
    scaling = {key: value for key, value in known if key not in others}
    is_default = not scaling or scaling.get("rope_type", scaling.get("type")) == "default"
    return None if is_default else MappingProxyType(scaling)
