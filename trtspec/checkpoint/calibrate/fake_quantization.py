"""A model whose linear layers, and whose KV cache, NVIDIA ModelOpt calibrates and quantizes in place."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from typing import TYPE_CHECKING, Any

from trtspec.checkpoint.blueprint import QKV, scales_of
from trtspec.checkpoint.calibration import Amax, CalibratedRanges
from trtspec.checkpoint.tensors import FP8_MAX
from trtspec.models.families.family import FamilyTensor

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class FakeQuantized:
    """A model that rounds its numbers to those of FP8, and computes with them in its own dtype.

    `run` is called with the model and runs the calibration texts through it. `lm_head` is not quantized.
    Raises OverflowError for numbers that the model's dtype does not hold.
    """

    def __init__(self, model: PreTrainedModel, run: Callable[[Any], None], *, kv_cache: bool) -> None:
        import modelopt.torch.quantization as mtq
        from modelopt.torch.quantization.nn import TensorQuantizer

        self.model, self._kv_cache = model, kv_cache
        rules = [*mtq.FP8_DEFAULT_CFG["quant_cfg"], *(mtq.FP8_KV_CFG["quant_cfg"] if kv_cache else ())]
        with redirect_stdout(StringIO()), warnings.catch_warnings():  # ModelOpt prints to stdout.
            warnings.simplefilter("ignore")
            try:
                mtq.quantize(model, {**mtq.FP8_DEFAULT_CFG, "quant_cfg": rules}, run)
            except AssertionError as error:
                if "values in amax" not in str(error):
                    raise
                raise OverflowError(f"the model's numbers are not finite in {model.dtype}") from error
        modules = model.modules()
        self._active = [item for item in modules if isinstance(item, TensorQuantizer) and item.is_enabled]

    @contextmanager
    def original(self) -> Iterator[None]:
        """Switches quantization off within this context."""
        for quantizer in self._active:
            quantizer.disable()
        try:
            yield
        finally:
            for quantizer in self._active:
                quantizer.enable()

    def found(self, weights: Iterable[FamilyTensor]) -> tuple[dict[str, Amax], dict[str, float]]:
        """Returns the largest absolute values that were found: `linears` and `kv` of a `CalibratedRanges`."""
        linears, kv = dict[str, Amax](), dict[str, float]()
        for weight in (weight for weight in weights if weight.linear):
            for part in weight.parts:
                module = self.model.get_submodule(part.module)
                linears[part.module] = Amax(_number(module.weight_quantizer), _number(module.input_quantizer))
            if self._kv_cache and weight.name == QKV:
                kv |= {name: _number(self._cache_quantizer(name)) for name in weight.caches}
        return linears, kv

    def apply(self, weights: Iterable[FamilyTensor], calibration: CalibratedRanges) -> None:
        """Sets the scales that TensorRT-LLM will read, which the layers of one product share."""
        for weight, scales in scales_of(weights, calibration, kv_cache=self._kv_cache).items():
            stem = weight.name.removesuffix(".weight")
            for part in weight.parts:
                module = self.model.get_submodule(part.module)
                _set(module.weight_quantizer, scales.weights[part.module])
                _set(module.input_quantizer, scales.tensors[f"{stem}.activation_scaling_factor"][0])
            if self._kv_cache and weight.name == QKV:
                for name in weight.caches:
                    _set(self._cache_quantizer(name), scales.tensors["attention.kv_cache_scaling_factor"][0])

    def _cache_quantizer(self, module: str) -> Any:
        """The quantizer of the keys or values that a calibration has as `module`, a `k_proj` or `v_proj`."""
        attention, _, name = module.rpartition(".")
        return getattr(self.model.get_submodule(attention), f"{name[0]}_bmm_quantizer")


def _number(quantizer: Any) -> float:
    return float(quantizer.amax.float())


def _set(quantizer: Any, scale: float) -> None:
    import torch

    quantizer.amax = torch.tensor(scale * FP8_MAX, device=quantizer.amax.device)
