"""Measures the loss of quality by FP8 on held-out texts, and warns if it is high."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from trtspec.checkpoint.calibration import CalibratedRanges, Quality

if TYPE_CHECKING:
    import torch

    from trtspec.checkpoint.calibrate.fake_quantization import FakeQuantized

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
