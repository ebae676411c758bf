"""The heads of an engine of TensorRT-LLM, and the tree of tokens that they propose, as paths from its root.

A path has a rank for each head, or each token, on its way: (0, 2) is the likeliest token of the first head,
and then the third likeliest of the second.

Medusa's are in NVIDIA's `MedusaForCausalLM`, with the names and shapes of its converter
(`examples/medusa/convert_checkpoint.py`, and `weight.py` and `model.py` of `tensorrt_llm/models/medusa`). An
EAGLE head is in `EagleForCausalLM`, with those of `examples/eagle/convert_checkpoint.py` of releases 1.0 to
1.2, and of `model.py` and `config.py` of `tensorrt_llm/models/eagle`. Such an engine has the head once for
each token of a path, each time with the target's `lm_head` beside it, and the checkpoint stores them all. The
target's own tensors are as in any checkpoint.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any, ClassVar, TypeVar

from trtspec.base.errors import ModelError
from trtspec.base.findings import Finding, errors
from trtspec.checkpoint.convert_options import ConvertOptions, misfit
from trtspec.checkpoint.convert_options import Mapping as RankMapping
from trtspec.checkpoint.engine_draft import EngineDraft
from trtspec.methods.method import Method
from trtspec.methods.table import NODES
from trtspec.models.families import decoder
from trtspec.models.families.family import FamilyTensor, Split, TensorPart
from trtspec.models.heads import eagle, medusa
from trtspec.models.heads.eagle import EagleDescription
from trtspec.models.heads.head import HeadDescription
from trtspec.models.heads.medusa import MedusaDescription
from trtspec.models.pair import check_head
from trtspec.models.sizes import Sizes, layer_sizes
from trtspec.models.source import Source, Tensor
from trtspec.serving.executors.tensorrt_llm.runtime_draft import Choices, ChoicesTree, EagleTree, MedusaTree

_RANKS = 16
"""TensorRT-LLM identifies a path by four bits for each rank (`runtime/utils/speculativeChoicesUtils.cpp`)."""

Path = tuple[int, ...]


def choices(heads: int, size: int = NODES) -> list[Path]:
    """Returns the tree of so many nodes in which an accepted path is the longest on average.

    That is the greedy construction of the paper (Cai et al. 2024, arXiv 2401.10774, section 2.3.3): always
    the likeliest path that is not there yet. How likely a head's token is by its rank would have to be
    measured; `_likelihood` assumes it. It has fewer nodes where the heads have no more paths: one has 16.
    """
    found: list[Path] = []
    waiting: list[tuple[float, Path]] = [(-_likelihood((0,)), (0,))]
    while waiting and len(found) < size:
        _, path = heapq.heappop(waiting)
        found.append(path)
        following = [(*path[:-1], path[-1] + 1), (*path, 0)]
        for other in following:
            if len(other) <= heads and other[-1] < _RANKS:
                heapq.heappush(waiting, (-_likelihood(other), other))
    return sorted(found, key=lambda path: (len(path), path))


def _likelihood(path: Path) -> float:
    """Returns the assumed probability that a path is the target's: each head is worse than the one before."""
    return prod(float(0.7 * 0.85**head * 0.35**rank) for head, rank in enumerate(path))


Description = TypeVar("Description", bound=HeadDescription)


def fitted(
    source: Source,
    head: HeadDescription | None,
    kind: type[Description],
    name: str,
    families: Collection[str],
) -> Description:
    """Returns the head of a recipe; raises ModelError for one of another kind or target.

    `name` is the kind's for people. Only engines of these `families` can have such a head inside.
    """
    assert head is not None, "a recipe names a head"
    if not isinstance(head, kind):
        raise ModelError(head.folder, f"is a head of {head.method}, not {name}'s", f"name a head of {name}")
    for found in errors(check_head(head, source)):
        raise ModelError(head.folder, f"{found.subject}: {found.problem}", found.repair)
    if source.model_type not in families:
        problem = f"TensorRT-LLM has {name} for {', '.join(families)}, not for {source.model_type}"
        raise ModelError(source.folder / "config.json", problem, "take another method")
    return head


@dataclass(frozen=True, slots=True)
class TreeEngineDraft(EngineDraft):
    """A draft whose heads propose the paths of a tree in each step."""

    runtime: ClassVar[type[ChoicesTree]]
    """The tree, in the form that NVIDIA's runtime takes."""

    head: HeadDescription
    choices: Choices

    @property
    def num_drafted(self) -> int:
        return len(self.choices)

    @property
    def count(self) -> int:
        """The number of tokens on the longest path, each of which has a head."""
        return max(map(len, self.choices))

    def digested(self) -> dict[str, Any]:
        return {"choices": self.choices}

    def parameters(self, *, of_engine: bool) -> dict[str, str]:
        tree = self.runtime(self.choices).parameters()
        return {"decoding_mode": self.mode, **tree} if of_engine else tree

    @property
    def tensors(self) -> dict[str, Tensor]:
        return dict(self.head.tensors)


_FAMILIES = ("llama", "mistral", "qwen2")
_HEADS = "*medusa_heads*"
"""What stays as it is in an FP8 target (`combine_medusa_weight` of quantize_by_modelopt.py)."""


@dataclass(frozen=True, slots=True)
class MedusaEngineDraft(TreeEngineDraft):
    """Medusa's heads, and the paths of the tree that they propose in each step.

    A head that no path uses is left out: the runtime would ask it for no tokens at all.
    """

    mode: ClassVar[str] = "medusa"
    runtime: ClassVar[type[MedusaTree]] = MedusaTree

    head: MedusaDescription

    @classmethod
    def usual(cls, source: Source, method: Method, head: HeadDescription | None) -> MedusaEngineDraft:
        heads = fitted(source, head, MedusaDescription, "Medusa", _FAMILIES)
        return cls(heads, tuple(choices(heads.count)))

    def of_size(self, size: int) -> MedusaEngineDraft:
        tree = choices(self.head.count, size)
        if len(tree) < size:
            problem = f"{size} is more than the nodes of {self.head.count} head's tree: {len(tree)}"
            raise ValueError(problem, f"at most {len(tree)}")
        return MedusaEngineDraft(self.head, tuple(tree))

    @property
    def reason(self) -> str:
        return "the tree's nodes, as many as Medusa's authors use" if self.head.count > 1 else "all paths"

    @property
    def title(self) -> str:
        return f"{self.count} heads of Medusa"

    def config(
        self, source: Source, options: ConvertOptions, of_target: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        config = {
            **of_target,
            "architecture": medusa.TARGET_ARCHITECTURE,
            # By which `MedusaForCausalLm` chooses its base class.
            "model_type": source.model_type,
            "max_draft_len": len(self.choices),
            "num_medusa_heads": self.count,
            "num_medusa_layers": self.head.num_layers,
        }
        if options.fp8:
            quantization = of_target["quantization"]
            left_out = [*quantization["exclude_modules"], _HEADS]
            config["quantization"] = {**quantization, "exclude_modules": left_out}
        return config

    def weights(self) -> Iterator[FamilyTensor]:
        head = self.head
        hidden, vocab = head.hidden_size, head.vocab_size
        for number in range(self.count):
            ours = f"medusa_heads.{number}"
            for layer in range(head.num_layers):
                linear, theirs = f"{ours}.medusa_layers.{layer}.linear", f"{number}.{layer}.linear"
                yield FamilyTensor(
                    f"{linear}.weight", (TensorPart(f"{theirs}.weight", (hidden, hidden), Split.ROWS),)
                )
                yield FamilyTensor(f"{linear}.bias", (TensorPart(f"{theirs}.bias", (hidden,), Split.ROWS),))
            logits = TensorPart(f"{number}.{head.num_layers}.weight", (vocab, hidden), Split.VOCAB)
            yield FamilyTensor(f"{ours}.lm_head.weight", (logits,))


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
        return misfit(self._sizes, mapping, fp8=False)

    @property
    def _sizes(self) -> Sizes:
        return layer_sizes(self.head.layer, "LlamaForCausalLM", self.target.vocab_size)

    @property
    def title(self) -> str:
        return f"EAGLE's head, {self.count} tokens deep"

    def config(
        self, source: Source, options: ConvertOptions, of_target: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        inner = {path[:-1] for path in self.choices if len(path) > 1}
        return {
            **of_target,
            "architecture": eagle.TARGET_ARCHITECTURE,
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
        for weight in decoder.weights(self._sizes):
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
