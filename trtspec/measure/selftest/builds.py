"""The builds of the tiny pair that a self-test makes, as recipes; pure but for the files it writes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtspec.base.atomic import write_atomically
from trtspec.base.errors import UnavailableError
from trtspec.base.own_prompts import OWN
from trtspec.pipeline.machine.devices import Gpu
from trtspec.recipe import gpus

PROMPTS = tuple(text for texts in OWN.values() for text in texts)


@dataclass(frozen=True, slots=True)
class TinyBuild:
    """One build of the pair."""

    name: str
    dtype: str
    """The type of its numbers, as `measure.verify.tolerance` names it."""
    layout: str
    values: dict[str, Any]
    """The recipe."""

    def write(self, folder: Path) -> Path:
        """Writes the recipe, which is JSON and so YAML too, and returns its path."""
        path = folder / f"{self.name}.yaml"
        write_atomically(path, json.dumps(self.values, indent=2) + "\n")
        return path


@dataclass(frozen=True, slots=True)
class TinyPair:
    """The pair and the machine that its builds are for."""

    folder: Path
    """Has `target` and `draft`."""
    heads: Path | None
    """Medusa's heads of the target."""
    gpu: gpus.GpuProduct | None
    """None for the torch backend."""
    release: str | None

    def builds(self, calibration: Path) -> list[TinyBuild]:
        """Returns the builds, each of which adds what a recipe may have; `calibration` is a file of texts."""
        reference = self._build("reference", "float32", "in_process", on_torch=True)
        if self.gpu is None:
            return [reference, self._build("bls", "float32", "bls", on_torch=True)]
        short = {"max_num_tokens": 512, "enable_chunked_context": True}
        made = [
            reference,
            self._build("bf16", "bfloat16", "in_process"),
            self._build("bf16-bls", "bfloat16", "bls"),
            # As many tokens as sixteen texts have do not fit an iteration, so that drafts are cut.
            self._build("bf16-chunked", "bfloat16", "in_process", engine=short),
        ]
        if self.gpu.fp8:
            calibrated = {"dataset": str(calibration), "samples": len(PROMPTS), "max_length": 256}
            fp8 = {"weights": "fp8", "kv_cache": "fp8", "calibration": calibrated}
            made.append(self._build("fp8", "fp8", "in_process", quantization=fp8))
        if self.heads is not None:
            made.append(self._build("medusa", "bfloat16", "in_process", heads=self.heads))
        return made

    def _build(
        self,
        name: str,
        dtype: str,
        layout: str,
        *,
        on_torch: bool = False,
        engine: dict[str, Any] | None = None,
        quantization: dict[str, Any] | None = None,
        heads: Path | None = None,
    ) -> TinyBuild:
        own = {"dtype": "float32" if dtype == "float32" else "bfloat16"}
        if quantization:
            own["quantization"] = quantization  # type: ignore[assignment]
        draft: dict[str, Any] = (
            {"model": str(heads)} if heads else {"model": str(self.folder / "draft"), **own}
        )
        if not on_torch and not heads:
            draft["device"] = "cuda:0"
        speculation = {"method": "medusa"} if heads else {"max_draft_len": 8, "num_draft_tokens": 4}
        values = {
            "name": name,
            "target": {"model": str(self.folder / "target"), **own},
            "draft": draft,
            "speculation": speculation,
            "engine": {
                "backend": "torch" if on_torch else "tensorrt_llm",
                **({} if on_torch else {"release": self.release}),
                "max_batch_size": 16, "max_seq_len": 1024,
                **(engine or {}),
            },
            "hardware": {"gpu": gpus.NONE if on_torch or self.gpu is None else self.gpu.name},
            "serving": {"layout": layout},
        }
        return TinyBuild(name, dtype, layout, values)


def product_of(gpu: Gpu) -> gpus.GpuProduct:
    """Returns what recipes call this GPU, or one of the same kind; raises `UnavailableError` for another."""
    known = [each for each in gpus.GPUS.values() if each.sm == gpu.sm]
    for product in known:
        if product.label == gpu.name:
            return product
    if not known:
        raise UnavailableError(gpu.name, f"no recipe can name a GPU of compute capability {gpu.sm / 10}")
    return min(known, key=lambda each: each.memory_gib)
