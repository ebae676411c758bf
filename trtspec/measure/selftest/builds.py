"""Defines the builds of the tiny pair that a self-test makes, as recipes; pure except for the files it
writes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from trtspec.base.atomic import write_atomically
from trtspec.base.own_prompts import OWN
from trtspec.models.heads.head import layer_shapes, read_layer
from trtspec.models.source import read_hf_config
from trtspec.recipe import gpus

_NOTHING: Mapping[str, Any] = MappingProxyType({})
PROMPTS = tuple(text for texts in OWN.values() for text in texts)


@dataclass(frozen=True, slots=True)
class TinyBuild:
    """One build of the pair."""

    name: str
    numbers: str
    """The type of its numbers, as `measure.verify.tolerance` names it."""
    layout: str
    values: dict[str, Any]
    """The recipe."""

    @property
    def drafts_inside(self) -> bool:
        """True if the target's engine drafts by itself."""
        return "method" in self.values["speculation"]

    def write(self, folder: Path) -> Path:
        """Writes the recipe, which is JSON and so YAML too, and returns its path."""
        path = folder / f"{self.name}.yaml"
        write_atomically(path, json.dumps(self.values, indent=2) + "\n")
        return path


@dataclass(frozen=True, slots=True)
class TinyPair:
    """The pair, and the machine for its builds."""

    folder: Path
    """Has `target` and `draft`."""
    heads: Path | None
    """Medusa's heads of the target."""
    gpu: gpus.GpuProduct | None
    """The release of TensorRT-LLM; None for the torch backend."""
    release: str | None

    def builds(self, calibration: Path) -> list[TinyBuild]:
        """Returns the builds, each with another feature of recipes; `calibration` is a file of texts.

        The first is of the torch backend, and is the reference.
        """
        reference = self._build("reference", "float32", "in_process")
        if self.gpu is None:
            return [reference, self._build("bls", "float32", "bls")]
        # The tokens of sixteen texts do not fit one iteration, so that drafts are cut.
        short = {"max_num_tokens": 512, "enable_chunked_context": True}
        made = [
            reference,
            self._build("bf16", "bfloat16", "in_process"),
            self._build("bf16-bls", "bfloat16", "bls"),
            self._build("bf16-chunked", "bfloat16", "in_process", engine=short),
        ]
        plain = [self._build("lookahead", "bfloat16", "in_process")]
        if self.gpu.fp8:
            calibrated = {"dataset": str(calibration), "samples": len(PROMPTS), "max_length": 256}
            fp8 = {"weights": "fp8", "kv_cache": "fp8", "calibration": calibrated}
            made.append(self._build("fp8", "fp8", "in_process", quantization=fp8))
            plain.append(self._build("lookahead-fp8", "fp8", "in_process", quantization=fp8))
        made += [_inside(build, "lookahead") for build in plain]
        head = write_eagle_head(self.folder / "target", calibration.with_name("eagle-head"))
        made.append(_inside(self._build("eagle", "bfloat16", "in_process"), "eagle", head))
        if self.heads is not None:
            made.append(_inside(self._build("medusa", "bfloat16", "in_process"), "medusa", self.heads))
        return made

    def _build(
        self,
        name: str,
        numbers: str,
        layout: str,
        engine: Mapping[str, Any] = _NOTHING,
        quantization: Mapping[str, Any] = _NOTHING,
    ) -> TinyBuild:
        """Returns a build for the GPU, or for the torch backend if its numbers are float32."""
        gpu = None if numbers == "float32" else self.gpu
        own = {"dtype": "float32" if gpu is None else "bfloat16", "quantization": dict(quantization)}
        backend = (
            {"backend": "torch"} if gpu is None else {"backend": "tensorrt_llm", "release": self.release}
        )
        values = {
            "name": name,
            "target": {"model": str(self.folder / "target"), **own},
            "draft": {"model": str(self.folder / "draft"), **own, **({"device": "cuda:0"} if gpu else {})},
            "speculation": {"max_draft_len": 8, "num_draft_tokens": 4},
            "engine": {**backend, "max_batch_size": 16, "max_seq_len": 1024, **engine},
            "hardware": {"gpu": gpus.NONE if gpu is None else gpu.name},
            "serving": {"layout": layout},
        }
        return TinyBuild(name, numbers, layout, values)


def _inside(build: TinyBuild, method: str, head: Path | None = None) -> TinyBuild:
    """Returns the build with an engine that drafts by itself in place of the draft's."""
    values = {**build.values, "speculation": {"method": method}, "draft": {"model": str(head)}}
    if head is None:
        del values["draft"]
    return replace(build, values=values)


def write_eagle_head(target: Path, folder: Path) -> Path:
    """Writes an EAGLE head of the target, and returns its folder.

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
    return folder
