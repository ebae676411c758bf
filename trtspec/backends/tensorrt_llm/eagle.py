"""An EAGLE head in an engine of TensorRT-LLM: its `EagleForCausalLM`, and the tree that it proposes.

Names, shapes and keys are those of NVIDIA's converter of releases 1.0 to 1.2
(`examples/eagle/convert_checkpoint.py`, and `model.py` and `config.py` of `tensorrt_llm/models/eagle`). The
target's own tensors are as in any checkpoint. The engine has the head once for each token of a path, each
time with the target's `lm_head` beside it, and the checkpoint stores them all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from trtspec.backends.tensorrt_llm.tree import TreeEngineDraft, choices, fitted
from trtspec.base.errors import ModelError
from trtspec.base.findings import Finding
from trtspec.checkpoint.convert_options import ConvertOptions, misfit
from trtspec.checkpoint.convert_options import Mapping as RankMapping
from trtspec.methods.method import Method
from trtspec.models.families import decoder
from trtspec.models.families.family import FamilyTensor, Split, TensorPart
from trtspec.models.heads.eagle import TARGET_ARCHITECTURE, EagleDescription
from trtspec.models.heads.head import HeadDescription
from trtspec.models.sizes import Sizes
from trtspec.models.source import Source
from trtspec.serving.executors.tensorrt_llm.runtime_draft import EagleTree

_FAMILY = "llama"
_DEPTH = 4
"""How many tokens follow each other in a path: the converter's default."""


@dataclass(frozen=True, slots=True)
class EagleEngineDraft(TreeEngineDraft):
    """A head, and the paths of the tree that it proposes; the engine has it once for each token of a path."""

    mode: ClassVar[str] = "eagle"
    reason: ClassVar[str] = "the tree's nodes, as many as in NVIDIA's examples"
    runtime: ClassVar[type[EagleTree]] = EagleTree
    report: ClassVar[str] = "issue 4787, of batches beyond a few requests"
    most_tried: ClassVar[int | None] = 8
    reduce_fusion: ClassVar[bool] = False  # `build` of `builder.py` knows it of other architectures.

    head: EagleDescription
    target: Source

    @classmethod
    def usual(cls, source: Source, method: Method, head: HeadDescription | None) -> EagleEngineDraft:
        return cls(fitting(source, head), tuple(choices(_DEPTH)), source)

    def of_size(self, size: int) -> EagleEngineDraft:
        return replace(self, choices=tuple(choices(_DEPTH, size)))

    @property
    def num_reserved(self) -> int:
        """The builder adds the depth too (`build` of `builder.py`)."""
        return self.num_drafted + self.count

    @property
    def kv_layers(self) -> int:
        """The head's layers once: what each token of a path computes is of the same sequence."""
        return int(self.head.layer["num_hidden_layers"])

    def misfit(self, mapping: RankMapping) -> Finding | None:
        return misfit(_sizes(self.target, self.head.layer), mapping, fp8=False)

    @property
    def title(self) -> str:
        return f"EAGLE's head, {self.count} tokens deep"

    def config(
        self, source: Source, options: ConvertOptions, of_target: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        inner = {path[:-1] for path in self.choices if len(path) > 1}
        return {
            **of_target,
            "architecture": TARGET_ARCHITECTURE,
            "head_dim": source.head_size,
            "max_draft_len": len(self.choices),
            "num_eagle_layers": self.count,
            "max_non_leaves_per_layer": max(Counter(map(len, inner)).values(), default=1),
            "eagle_net_config": self._net(of_target),
        }

    def _net(self, of_target: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the configuration of the head's layers, with what it shares with the target's."""
        layer = self.head.layer
        shared = ("dtype", "logits_dtype", "vocab_size", "position_embedding_type", "rotary_base")
        also = ("rotary_scaling", "mapping", "use_parallel_embedding", "embedding_sharding_dim")
        return {
            "architecture": "LlamaForCausalLM",
            **{key: of_target[key] for key in (*shared, *also)},
            "num_hidden_layers": layer["num_hidden_layers"],
            "num_attention_heads": layer["num_attention_heads"],
            "hidden_size": layer["hidden_size"],
            "intermediate_size": layer["intermediate_size"],
            "num_key_value_heads": layer["num_key_value_heads"],
            "max_position_embeddings": layer["max_position_embeddings"],
            "hidden_act": layer["hidden_act"],
            "norm_epsilon": layer["rms_norm_eps"],
            "quantization": {"quant_algo": None, "kv_cache_quant_algo": None},
            "head_dim": layer["head_dim"],
            "head_size": layer["head_dim"],
        }

    def weights(self) -> Iterator[FamilyTensor]:
        for number in range(self.count):
            yield from self._copy(f"eagle_nets.{number}")

    def _copy(self, net: str) -> Iterator[FamilyTensor]:
        """Yields the tensors of one of the heads, which are the same in all."""
        target, hidden, drafter = self.target, self.target.hidden_size, f"{net}.drafter"
        vocabulary = target.vocab_size, hidden
        own = "embed_tokens.weight" in self.head.tensors
        embedding = "embed_tokens.weight" if own else "model.embed_tokens.weight"
        embedded = TensorPart(embedding, vocabulary, Split.VOCAB)
        yield FamilyTensor(f"{drafter}.vocab_embedding.weight", (embedded,))
        matrix = TensorPart("fc.weight", (hidden, 2 * hidden), Split.ROWS)
        yield FamilyTensor(f"{drafter}.fc.weight", (matrix,))
        yield FamilyTensor(f"{drafter}.fc.bias", (TensorPart("fc.bias", (hidden,), Split.ROWS),))
        for weight in decoder.weights(_sizes(target, self.head.layer)):
            first_norm = weight.layer == 0 and weight.name == "input_layernorm.weight"
            if weight.layer is not None and not first_norm:
                parts = tuple(replace(part, name=part.name.removeprefix("model.")) for part in weight.parts)
                name = f"{drafter}.layers.{weight.layer}.{weight.name}"
                yield FamilyTensor(name, parts)
        logits = "model.embed_tokens.weight" if target.tie_word_embeddings else "lm_head.weight"
        yield FamilyTensor(f"{net}.lm_head.weight", (TensorPart(logits, vocabulary, Split.VOCAB),))


def fitting(source: Source, named: HeadDescription | None) -> EagleDescription:
    """Returns the head; raises ModelError for one, or a target, that the engine cannot have."""
    head = fitted(source, named, EagleDescription, "EAGLE", (_FAMILY,))
    if source.scheme:
        problem = "is FP8, and TensorRT-LLM's engines have EAGLE in float16 and bfloat16"
        raise ModelError(source.folder / "config.json", problem, "take the model that it was made of")
    if "fc.bias" not in head.tensors:
        problem = (
            "has no fc.bias, and the layer of TensorRT-LLM's EAGLE has one (fc of models/llama/model.py)"
        )
        raise ModelError(head.folder, problem, "take a head that was trained with it")
    for name, theirs in _shared(source).items():
        if (ours := head.layer[name]) != theirs:
            problem = f"{name} is {ours}, and the target's is {theirs}"
            repair = "take a head in which it is the same: the engine has it once, for both"
            raise ModelError(head.folder / "config.json", problem, repair)
    return head


def _shared(source: Source) -> dict[str, Any]:
    """Returns what the engine has once, for the target and its head.

    One KV cache holds both (`gptJsonConfig.cpp`), and one table turns the positions of both
    (`create_attention_const_params` of `layers/attention.py`).
    """
    return {
        "model_type": _FAMILY,
        "hidden_size": source.hidden_size,
        "num_key_value_heads": source.num_key_value_heads,
        "head_dim": source.head_size,
        "hidden_act": source.hidden_act,
        "attention_bias": False,
        "rope_theta": source.rotary_base,
        "rope_scaling": source.rotary_scaling,
    }


def _sizes(target: Source, layer: Mapping[str, Any]) -> Sizes:
    return Sizes(
        architecture="LlamaForCausalLM",
        vocab_size=target.vocab_size,
        hidden_size=layer["hidden_size"],
        intermediate_size=layer["intermediate_size"],
        num_hidden_layers=layer["num_hidden_layers"],
        num_attention_heads=layer["num_attention_heads"],
        num_key_value_heads=layer["num_key_value_heads"],
        head_size=layer["head_dim"],
        tie_word_embeddings=False,
        experts=None,
    )
