"""Calibrates a model: finds the scales of its FP8 version with texts, and measures the loss of quality."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtspec.base.errors import DatasetError, ModelError
from trtspec.base.progress import Advance
from trtspec.checkpoint.blueprint import QKV, check_finite, check_tensors, check_tied_head, scales_of
from trtspec.checkpoint.calibrate.model import device_of, load_model, quiet_transformers
from trtspec.checkpoint.calibrate.texts import Encoder, batches, choose, encode, read_texts
from trtspec.checkpoint.calibration import Amax, CalibratedRanges, Quality, check_amax
from trtspec.checkpoint.tensors import FP8_MAX
from trtspec.models.families import family_of
from trtspec.models.families.family import FamilyTensor
from trtspec.models.source import Source, Tensor

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel


FORMAT = 2  # raised when the same texts and options give other numbers
HELD_OUT = 64  # texts that quality is measured on
PACKAGES = ("nvidia-modelopt", "transformers", "accelerate", "pyarrow", "torch")  # of the extra `fp8`
_LARGER = "write dtype: bfloat16, which holds larger numbers, or remove fp8"
_NO_SCALES = "remove fp8: the model's own numbers become infinite on these texts"
_ZEROS = "remove fp8: values that are all zero have no scale"


@dataclass(frozen=True, slots=True)
class CalibrateOptions:
    """The options of a calibration; those without a description are the recipe's."""

    dtype: str
    """The model computes in this dtype."""
    kv_cache: bool
    samples: int
    max_length: int
    batch_size: int
    seed: int
    text_field: str
    chat_template: bool


def calibrate(
    source: Source,
    dataset: Path,
    options: CalibrateOptions,
    origin: Mapping[str, Any],
    advance: Advance = lambda *_: None,
) -> CalibratedRanges:
    """Calibrates with `samples` texts of the dataset, and measures on others what FP8 changes.

    `origin` describes model and dataset, and becomes part of the provenance. `advance` is called with a note
    and no bytes. Raises DatasetError, ModelError or TensorError.
    """
    quiet_transformers()
    weights = tuple(family_of(source).weights(source))
    tensors = check_tensors(source, weights, None).values()
    check_tied_head(source)
    fitting, held_out = _texts(source, dataset, options)
    total = len(fitting) + len(held_out)
    done = 0

    def count(texts: int) -> None:
        nonlocal done
        done += texts
        advance(0, f"text {done} of {total}")

    model = load_model(source, options.dtype, options.batch_size * options.max_length)

    run = partial(_run, batches(fitting, options.batch_size), count)
    with _finite(source, options, tensors):
        quantized = FakeQuantized(model, run, kv_cache=options.kv_cache)
    provenance = {
        **origin,
        **asdict(options),
        "texts": len(fitting),
        "tokens": sum(map(len, fitting)),
        "device": device_of(model),
        "tools": {name: version(name) for name in PACKAGES},
    }
    found = CalibratedRanges(*quantized.found(weights), provenance)
    check_amax(source.folder, found, _ZEROS)
    quantized.apply(weights, found)
    with _finite(source, options, tensors):
        quality = measure(quantized, held_out, count)
    return CalibratedRanges(found.linears, found.kv, provenance, quality)


@contextmanager
def _finite(source: Source, options: CalibrateOptions, tensors: Iterable[Tensor]) -> Iterator[None]:
    """Turns an OverflowError of the block into a ModelError that names the tensor, if one is the cause."""
    try:
        yield
    except OverflowError as error:
        check_finite(tensors)
        repair = _LARGER if options.dtype == "float16" else _NO_SCALES
        raise ModelError(source.folder, str(error), repair) from error


def _run(batches: Iterable[torch.Tensor], count: Callable[[int], None], model: Any) -> None:
    import torch

    for batch in batches:
        with torch.inference_mode():
            model(batch.to(model.device), use_cache=False)
        count(len(batch))


def _texts(
    source: Source, dataset: Path, options: CalibrateOptions
) -> tuple[Sequence[list[int]], Sequence[list[int]]]:
    """The token ids of the texts to calibrate with, and of those that are kept for measuring."""
    encoder = Encoder(source.folder, dataset, options.max_length, chat_template=options.chat_template)
    found = read_texts(dataset, options.text_field)
    texts = encode(choose(found, options.samples + HELD_OUT, options.seed), encoder)
    if not texts:
        raise DatasetError(dataset, "holds no text", "add the texts to calibrate with")
    # If there are too few texts for both, an eighth is kept.
    kept = min(HELD_OUT, max(len(texts) - options.samples, -(-len(texts) // 8)), len(texts) - 1)
    return texts[kept:], texts[:kept]


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


_IMPOSSIBLE = 700.0  # nats: a perplexity beyond it is no float64
_ROWS = 256  # positions whose distributions are compared at once, in float32
# Limits far beyond what static FP8 should cost: for the demo draft 0.004 nats and 0.2 % of perplexity.
LEAST_AGREEMENT = 0.9
MOST_KL = 0.05
MOST_PERPLEXITY = 1.02  # the quantized model's, divided by the original's
_REPAIR = "calibrate with texts like your users', or leave kv_cache or weights unquantized"


def measure(
    quantized: FakeQuantized, texts: Sequence[Sequence[int]], advance: Callable[[int], None]
) -> Quality | None:
    """Compares the quantized model with the original on token ids; None if no text has a next token.

    `advance` is called with 1 after each text. Raises OverflowError for logits that are no distribution, or a
    distribution in which the texts are almost impossible.
    """
    import torch

    tokens = sum(len(text) - 1 for text in texts)
    if not tokens:
        return None
    sums = torch.zeros(4, dtype=torch.float64)
    for text in texts:
        ids = torch.tensor([text], device=quantized.model.device)
        with torch.inference_mode():
            found = quantized.model(ids, use_cache=False).logits[0, :-1]
            with quantized.original():
                expected = quantized.model(ids, use_cache=False).logits[0, :-1]
            parts = (rows.split(_ROWS) for rows in (expected, found, ids[0, 1:]))
            for part in zip(*parts, strict=True):
                sums += _compare(*part).cpu()
        advance(1)
    agreement, kl, surprise, original_surprise = (sums / tokens).tolist()
    if not (math.isfinite(kl) and surprise < _IMPOSSIBLE and original_surprise < _IMPOSSIBLE):
        problem = f"the held-out texts cost {original_surprise:g} nats a token, and {surprise:g} in FP8"
        raise OverflowError(problem)
    return Quality(
        texts=len(texts),
        tokens=tokens,
        agreement=agreement,
        kl=max(kl, 0.0),
        perplexity=math.exp(surprise),
        original_perplexity=math.exp(original_surprise),
    )


def _compare(expected: torch.Tensor, found: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
    """Four sums over positions, [4] float64, of nats except the first.

    They are of equal argmax, of KL(expected || found), and of -log p of the following token in `found` and in
    `expected`. Both are logits [positions, vocabulary]; `following` has token ids [positions].
    """
    import torch

    p, q = (logits.float().log_softmax(-1) for logits in (expected, found))
    same = (expected.argmax(-1) == found.argmax(-1)).double().sum()
    kl = (p.exp() * (p - q)).sum(-1).double().sum()
    losses = [-logs.gather(1, following[:, None]).double().sum() for logs in (q, p)]
    return torch.stack([same, kl, *losses])


def cost(calibration: CalibratedRanges) -> str | None:
    """One sentence on the loss by FP8; None if nothing was measured."""
    found = calibration.quality
    if found is None:
        return None
    return (
        f"FP8 agrees with the original on {100 * found.agreement:.2f} % of {found.tokens} next tokens"
        f" of {found.texts} held-out texts; KL {found.kl:.4f},"
        f" perplexity {found.perplexity:.3f} (original {found.original_perplexity:.3f})"
    )


def worries(calibration: CalibratedRanges) -> Iterator[str]:
    """Yields a sentence for too few texts, and for each measurement beyond its limit."""
    found, made = calibration.quality, calibration.provenance
    if made.get("texts", 0) < made.get("samples", 0):
        yield (
            f"calibrated with all {made['texts']} texts of the dataset, though {made['samples']} were "
            "requested"
        )
    if found is None:
        yield "the dataset has too few texts to hold one out, so the loss of quality by FP8 is unknown"
        return
    if found.agreement < LEAST_AGREEMENT:
        yield f"agreement is below {100 * LEAST_AGREEMENT:.0f} %; {_REPAIR}"
    if found.kl > MOST_KL:
        yield f"KL is above {MOST_KL}; {_REPAIR}"
    if found.perplexity > MOST_PERPLEXITY * found.original_perplexity:
        yield f"perplexity is more than {100 * (MOST_PERPLEXITY - 1):.0f} % above the original's; {_REPAIR}"
