"""Defines a head, a few layers that propose tokens from their target's states, and the format of a folder.

The configuration of its layers is read here too, with the keys that a folder leaves out.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Literal

from trtspec.base.errors import ModelError, TensorError
from trtspec.base.findings import Finding
from trtspec.models.source import DOWNLOAD_AGAIN, DTYPES, SAME_REVISION, SINGLE, HfConfig, Tensor, read_rope

MODEL_TYPES = ("llama", "qwen3")
"""The layers of heads that vLLM serves (`vllm/transformers_utils/configs/speculators/algos.py`)."""


def read_layer(config: HfConfig) -> Mapping[str, Any]:
    """Reads a layer's configuration, with transformers' defaults; raises ModelError for another kind."""
    kind = config.get("model_type", str, "llama")
    if kind not in MODEL_TYPES:
        problem = (
            f"has decoder layers of {kind}; trtspec reads heads with layers of {' or '.join(MODEL_TYPES)}"
        )
        raise ModelError(config.file, problem, "use a head with such layers; its target may be of any family")
    others = sorted({*config.get("layer_types", list, [])} - {"full_attention"})
    if others:
        problem = f"has layers with {others[0]}; trtspec reads heads with full attention only"
        raise ModelError(config.file, problem)
    if (share := read_rope(config)[2]) != 1.0:
        raise ModelError(config.file, f"partial_rotary_factor is {share}; a head's must be 1")
    return layer_values(config)


def layer_values(config: HfConfig) -> Mapping[str, Any]:
    """Reads a layer's configuration of any kind, with transformers' defaults."""
    hidden_size, heads = config.size("hidden_size"), config.size("num_attention_heads")
    rope_theta, rope_scaling, _ = read_rope(config)
    return MappingProxyType(
        {
            "model_type": config.get("model_type", str, "llama"),
            "hidden_size": hidden_size,
            "intermediate_size": config.size("intermediate_size"),
            "num_hidden_layers": config.size("num_hidden_layers", 1),
            "num_attention_heads": heads,
            "num_key_value_heads": config.size("num_key_value_heads", heads),
            "head_dim": config.size("head_dim", hidden_size // heads),
            "hidden_act": config.get("hidden_act", str, "silu"),
            "rms_norm_eps": config.number("rms_norm_eps", 1e-6),
            "max_position_embeddings": config.size("max_position_embeddings", 2048),
            "rope_theta": rope_theta,
            "rope_scaling": rope_scaling,
            "attention_bias": config.get("attention_bias", bool, False),
        }
    )


def layer_shapes(layer: Mapping[str, Any], number: int, width: int) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of a decoder layer's weights by name; its attention reads vectors of `width`."""
    hidden, inner, head = layer["hidden_size"], layer["intermediate_size"], layer["head_dim"]
    queries, keys = layer["num_attention_heads"] * head, layer["num_key_value_heads"] * head
    shapes: dict[str, tuple[int, ...]] = {
        "self_attn.q_proj.weight": (queries, width),
        "self_attn.k_proj.weight": (keys, width),
        "self_attn.v_proj.weight": (keys, width),
        "self_attn.o_proj.weight": (hidden, queries),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
        "post_attention_layernorm.weight": (hidden,),
    }
    if layer["attention_bias"]:
        for name, size in (("q_proj", queries), ("k_proj", keys), ("v_proj", keys)):
            shapes[f"self_attn.{name}.bias"] = (size,)
    if layer["model_type"] == "qwen3":
        shapes |= {"self_attn.q_norm.weight": (head,), "self_attn.k_norm.weight": (head,)}
    return {f"layers.{number}.{name}": shape for name, shape in shapes.items()}


Form = Literal["speculators", "specforge", "dflash", "eagle", "medusa"]
"""The formats of folders; the last three are those of the methods' own repositories."""
MAPPING = {"d2t": "I64", "t2d": "BOOL"}
"""The tables of a head's own vocabulary, with their safetensors dtypes."""
_UNUSED = re.compile(r"verifier_\w+\.weight|.*rotary_emb\.inv_freq")  # of the target; computed again
TRAINED_FOR_IT = "use a head that was trained for this target, or train one: trtspec distill"


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadDescription(ABC):
    """The description of a head from its folder, in any format; each method has its own class."""

    method: ClassVar[str]
    """The method of a recipe that uses such heads."""
    architecture: ClassVar[str]
    """vLLM's name of the architecture, since TensorRT-LLM has none for a head alone."""
    has_first_norm: ClassVar[bool] = False
    """True if the first layer's input norm covers only the embedding."""

    folder: Path
    form: Form
    hidden_size: int
    """The width of the target's states that the head reads."""
    vocab_size: int
    """The size of the target's vocabulary."""
    draft_vocab_size: int
    """The size of the head's own vocabulary. If it is smaller than the target's, `d2t` maps its tokens to the
    target's.
    """
    tensors: Mapping[str, Tensor] = field(repr=False)
    """The places of its tensors, under Speculators' names; Medusa's keep their own. `embed_tokens.weight` and
    `lm_head.weight` are missing where the target's are used, `d2t` and `t2d` where the head has the target's
    vocabulary.
    """
    layer: Mapping[str, Any] = field(default_factory=dict)
    """The configuration of the head's decoder layers in transformers' names; empty for a head without any. It
    has each of model_type, hidden_size, intermediate_size, num_hidden_layers, num_attention_heads,
    num_key_value_heads, head_dim, hidden_act, rms_norm_eps, max_position_embeddings, rope_theta, rope_scaling
    (None or a section) and attention_bias.
    """
    verifier: str | None = None
    """The target that the head was trained for, if it says so."""
    unsaid: Mapping[str, Any] = field(default_factory=dict)
    """The keys that vLLM needs for this head, if `config.json` lacks them or has other values."""

    @property
    def parameters(self) -> int:
        """The number of parameters; the tables of its vocabulary are none."""
        return sum(tensor.elements for name, tensor in self.tensors.items() if name not in MAPPING)

    @property
    def files(self) -> list[Path]:
        """The files that it is read from."""
        return sorted({self.folder / "config.json", *(tensor.file for tensor in self.tensors.values())})

    @property
    def num_parts(self) -> tuple[str, int]:
        """The keys of `config.json` that count the head's parts, and their number: each has a tensor."""
        return "num_hidden_layers", self.layer["num_hidden_layers"]

    @abstractmethod
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Returns the shapes of its tensors by their names."""

    @property
    def optional(self) -> Collection[str]:
        """The names of tensors that it may lack."""
        return ()

    def further(self) -> Collection[str] | None:
        """Returns how the names of further tensors begin: at least one each, of any shape.

        None for a head that has only those of `shapes`, as floats; else those have any dtype.
        """
        return None

    def check_tensors(self) -> None:
        """Raises ModelError or TensorError unless its tensors are those that the description demands."""
        tensors, (key, count) = self.tensors, self.num_parts
        if count > len(tensors):
            problem = f"{key} is {count}, but there are only {len(tensors)} tensors"
            raise ModelError(self.folder / "config.json", problem, SAME_REVISION)
        shapes, further = self.shapes(), self.further()
        missing = [name for name in shapes if name not in tensors and name not in self.optional]
        missing += [
            f"{start}*" for start in further or () if not any(name.startswith(start) for name in tensors)
        ]
        if missing:
            raise TensorError(self.folder, f"{missing[0]}: is missing", DOWNLOAD_AGAIN)
        for name, shape in shapes.items():
            if (tensor := tensors.get(name)) is None:
                continue
            if tensor.shape != shape:
                problem = (
                    f"{tensor.name}: has shape {list(tensor.shape)}, but config.json demands {list(shape)}"
                )
                raise TensorError(tensor.file, problem, SAME_REVISION)
            dtypes = [MAPPING[name]] if name in MAPPING else list(DTYPES)
            if further is None and tensor.dtype not in dtypes:
                problem = f"{tensor.name}: has dtype {tensor.dtype}, not {' or '.join(dtypes)}"
                raise TensorError(tensor.file, problem, "use the unquantized head")
        extra = sorted(name for name in tensors if name not in shapes and not _UNUSED.fullmatch(name))
        if extra and further is None:
            problem = f"{tensors[extra[0]].name}: is no tensor of this head"
            raise TensorError(tensors[extra[0]].file, problem, SAME_REVISION)

    @property
    def longest(self) -> int | None:
        """The largest number of tokens that it proposes; None for a head that runs once for each token."""
        return None

    def facts(self) -> dict[str, Any]:
        """Returns the facts that an inspection lists only for this method."""
        return {}

    def oddities(self) -> Iterator[Finding]:
        """Finds what is unusual in a head of this method, and its effect."""
        yield from ()

    def misfits(self, num_layers: int) -> Iterator[Finding]:
        """Finds states that the head reads and a target with this number of layers lacks."""
        yield from ()

    @abstractmethod
    def engine_draft(self, num_layers: int) -> dict[str, Any]:
        """Returns the head's entries in an engine's configuration, for a target with this number of
        layers."""


class HeadFormat(ABC):
    """A published format of heads' folders: which folders have it, and what they describe."""

    form: ClassVar[Form]
    """Its name."""
    weights: ClassVar[str] = SINGLE
    """The file of the weights, unless an index names several."""

    @abstractmethod
    def recognises(self, config: HfConfig) -> bool:
        """Says whether a folder with this `config.json` has this format."""

    def refuse(self, config: HfConfig) -> None:  # noqa: B027
        """Raises ModelError for a head that trtspec does not read, whatever its weights are."""

    def name_of(self, tensor: str) -> str:
        """Returns the name that a description has for a tensor of the folder."""
        return tensor

    @abstractmethod
    def describe(self, config: HfConfig, tensors: Mapping[str, Tensor]) -> HeadDescription:
        """Returns the head of this configuration, with tensors that are not checked yet.

        Raises ModelError for a head that trtspec does not read.
        """
