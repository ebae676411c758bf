"""Defines the builds that a self-test makes, as recipes; pure except for the files that it writes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from trtspec.base.files import write_atomically
from trtspec.base.own_prompts import OWN
from trtspec.models.heads.head import layer_shapes, read_layer
from trtspec.models.heads.medusa import WEIGHTS, vllm_keys
from trtspec.models.source import read_hf_config
from trtspec.recipe import gpus
from trtspec.recipe.gpus import HOPPER

_NOTHING: Mapping[str, Any] = MappingProxyType({})
PROMPTS = tuple(text for texts in OWN.values() for text in texts)
SCALES = "{}-calibration.json"
"""The file with the FP8 scales of the tiny pair's target or draft, beside their folders."""
LOW_LATENCY = "random-fp8-low-latency"
QUICK = frozenset({"reference", "fp8", "random-fp8", "bf16-chunked", "bls", "random"})
"""The builds of a quick self-test: what recipes for a GPU have in common, and both builds without a GPU."""
_MEDUSA_HEADS = 3


def _nothing() -> None: ...


@dataclass(frozen=True, slots=True)
class TrialBuild:
    """One build of a pair."""

    name: str
    numbers: str
    """The type of its numbers, as `measure.verify.tolerance` names it."""
    layout: str
    values: dict[str, Any]
    """The recipe."""
    is_random: bool = False
    """True if its models are random: their text proves that drafts change nothing, and no more."""
    prepare: Callable[[], None] = _nothing
    """Writes the models that are not there."""

    @property
    def has_engine_draft(self) -> bool:
        """True if the target's engine drafts by itself."""
        return "method" in self.values["speculation"]

    def write(self, folder: Path) -> Path:
        """Writes the recipe, which is JSON and so YAML too, and its models; returns the recipe's path."""
        self.prepare()
        path = folder / f"{self.name}.yaml"
        write_atomically(path, json.dumps(self.values, indent=2) + "\n")
        return path


@dataclass(frozen=True, slots=True)
class TrialPairs:
    """The tiny pair, random pairs, and the machine for their builds."""

    tiny: Path
    """Has `target` and `draft`, and their scales."""
    gpu: gpus.GpuProduct | None
    """The kind of the GPU; None for the torch backend on a CPU."""
    count: int
    """The number of GPUs."""
    release: str | None
    """The release of TensorRT-LLM; None for the torch backend."""

    def builds(self, folder: Path) -> list[TrialBuild]:
        """Returns the builds, each with another feature of recipes; what breaks for most users comes first.

        The first is of the torch backend, and is the reference. `folder` gets the random pairs and the heads.
        """
        odd, even = self._random(folder / "random-odd", 32_003), self._random(folder / "random", 32_000)
        made = [self._build("reference", "float32")]
        if self.gpu is None:
            return [*made, self._build("bls", "float32", "bls"), odd("random", "float32")]
        # The tokens of sixteen texts do not fit one iteration, so that drafts are cut.
        short = {"max_num_tokens": 512, "enable_chunked_context": True}
        chunked = self._build("bf16-chunked", "bfloat16", engine=short)
        made += [self._build("fp8", "fp8"), even("random-fp8", "fp8")] if self.gpu.fp8 else []
        made += [chunked]
        made += [self._build("fp8-bls", "fp8", "bls")] if self.gpu.fp8 else []
        made += [self._build("bf16", "bfloat16"), self._build("bf16-bls", "bfloat16", "bls")]
        made += [odd("random-bf16", "bfloat16")]
        made += [self._random(folder / "random-window", 32_000, window=512)("random-window", "bfloat16")]
        made += [self._build("bf16-tp2", "bfloat16", "bls", ranks=2)] if self.count > 1 else []
        if self.gpu.sm == HOPPER:
            plugins = dict.fromkeys(("low_latency_gemm_plugin", "low_latency_gemm_swiglu_plugin"), "fp8")
            made += [even(LOW_LATENCY, "fp8", build=plugins)]
        made += [_inside(self._build("lookahead", "bfloat16"), "lookahead")]
        made += [_inside(self._build("lookahead-fp8", "fp8"), "lookahead")] if self.gpu.fp8 else []
        for method, write in (("eagle", write_eagle_head), ("medusa", write_medusa)):
            head, build = folder / f"{method}-head", self._build(method, "bfloat16")
            inside = _inside(build, method, head)
            made += [replace(inside, prepare=partial(write, self.tiny / "target", head))]
        return made

    def _random(self, folder: Path, vocab_size: int, window: int | None = None) -> Callable[..., TrialBuild]:
        """Returns a function that returns a build of a random pair."""

        def prepare() -> None:
            from trtspec.measure.selftest.random_pair import write_random_pair

            write_random_pair(folder, self.tiny / "target", vocab_size, window)

        def made(name: str, numbers: str, build: Mapping[str, Any] = _NOTHING) -> TrialBuild:
            sizes, scales = {"max_batch_size": 32, "max_seq_len": 4096}, "{}/calibration.json"
            plain = self._build(name, numbers, engine=sizes, pair=folder, scales=scales, build=build)
            return replace(plain, is_random=True, prepare=prepare)

        return made

    def _build(
        self,
        name: str,
        numbers: str,
        layout: str = "in_process",
        *,
        engine: Mapping[str, Any] = _NOTHING,
        pair: Path | None = None,
        scales: str = SCALES,
        build: Mapping[str, Any] = _NOTHING,
        ranks: int = 1,
    ) -> TrialBuild:
        """Returns a build for the GPU, or for the torch backend if its numbers are float32."""
        gpu, folder = None if numbers == "float32" else self.gpu, pair or self.tiny
        dtype = "float32" if gpu is None else "bfloat16"
        backend = (
            {"backend": "torch"} if gpu is None else {"backend": "tensorrt_llm", "release": self.release}
        )

        def model(role: str) -> dict[str, Any]:
            found: dict[str, Any] = {"model": str(folder / role), "dtype": dtype}
            if numbers == "fp8":
                dataset = {"dataset": str(folder / scales.format(role))}
                found["quantization"] = {"weights": "fp8", "kv_cache": "fp8", "calibration": dataset}
            return found

        values = {
            "name": name,
            "target": {**model("target"), "build": dict(build), "parallel": {"tensor": ranks}},
            "draft": {**model("draft"), **({"device": "cuda:0"} if gpu else {})},
            "speculation": {"max_draft_len": 8, "num_draft_tokens": 4},
            "engine": {**backend, "max_batch_size": 16, "max_seq_len": 1024, **engine},
            "hardware": {"gpu": gpus.NONE} if gpu is None else {"gpu": gpu.name, "count": ranks},
            "serving": {"layout": layout},
        }
        return TrialBuild(name, numbers, layout, values)


def _inside(build: TrialBuild, method: str, head: Path | None = None) -> TrialBuild:
    """Returns the build with an engine that drafts by itself in place of the draft's."""
    values = {**build.values, "speculation": {"method": method}, "draft": {"model": str(head)}}
    if head is None:
        del values["draft"]
    return replace(build, values=values)


def write_eagle_head(target: Path, folder: Path) -> None:
    """Writes an EAGLE head of the target in `folder`.

    Its layer adds nothing to the target's last states, so that it proposes each token once more: nothing has
    to be trained, and such a draft is right now and then.
    """
    import torch
    from safetensors.torch import save_file

    config = read_hf_config(target / "config.json")
    layer, hidden = read_layer(config), config.size("hidden_size")
    tensors = {name: torch.zeros(shape) for name, shape in layer_shapes(layer, 0, hidden).items()}
    tensors["layers.0.post_attention_layernorm.weight"] = torch.ones(hidden)
    tensors["fc.weight"] = torch.cat([torch.zeros(hidden, hidden), torch.eye(hidden)], 1)
    tensors["fc.bias"] = torch.zeros(hidden)
    folder.mkdir(exist_ok=True)
    save_file({name: tensor.bfloat16() for name, tensor in tensors.items()}, folder / "model.safetensors")
    head = {**config.content, "num_hidden_layers": 1}
    write_atomically(folder / "config.json", json.dumps(head, indent=2) + "\n")


def write_medusa(target: Path, folder: Path) -> None:
    """Writes Medusa's heads of the target in `folder`.

    Their blocks add nothing to the target's last states, so that each head proposes the target's next token
    once more.
    """
    import torch
    from safetensors.torch import load_file, save_file

    config = read_hf_config(target / "config.json")
    words = load_file(target / "model.safetensors")["model.embed_tokens.weight"].contiguous()
    hidden, tensors = words.shape[1], dict[str, torch.Tensor]()
    for head in range(_MEDUSA_HEADS):
        tensors[f"{head}.0.linear.weight"] = torch.zeros(hidden, hidden, dtype=words.dtype)
        tensors[f"{head}.0.linear.bias"] = torch.zeros(hidden, dtype=words.dtype)
        tensors[f"{head}.1.weight"] = words.clone()
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / WEIGHTS)
    about = {"medusa_num_heads": _MEDUSA_HEADS, "medusa_num_layers": 1, "base_model_name_or_path": "target"}
    about |= vllm_keys(hidden, config.size("vocab_size"))
    write_atomically(folder / "config.json", json.dumps(about, indent=2) + "\n")
