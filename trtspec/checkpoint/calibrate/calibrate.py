"""Calibrates a model: finds the scales of its FP8 version with texts, and measures the loss of quality."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtspec.base.errors import DatasetError, ModelError
from trtspec.base.progress import Advance
from trtspec.checkpoint.blueprint import check_finite, check_tensors, check_tied_head
from trtspec.checkpoint.calibrate.fake_quantization import FakeQuantized
from trtspec.checkpoint.calibrate.model import device_of, load_model, quiet_transformers
from trtspec.checkpoint.calibrate.quality import measure
from trtspec.checkpoint.calibrate.texts import Encoder, batches, choose, encode, read_texts
from trtspec.checkpoint.calibration import CalibratedRanges, check_amax
from trtspec.models.families import family_of
from trtspec.models.source import Source, Tensor

if TYPE_CHECKING:
    import torch

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
