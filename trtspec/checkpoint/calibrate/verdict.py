"""Says in words what FP8 costs a model after its calibration, and what to worry about."""

from __future__ import annotations

from collections.abc import Iterator

from trtspec.checkpoint.calibration import CalibratedRanges

# Limits far beyond what static FP8 should cost: for the demo draft 0.004 nats and 0.2 % of perplexity.
LEAST_AGREEMENT = 0.9
MOST_KL = 0.05
MOST_PERPLEXITY = 1.02  # the quantized model's, divided by the original's
_REPAIR = "calibrate with texts like your users', or leave kv_cache or weights unquantized"


def cost(calibration: CalibratedRanges) -> str | None:
    """One sentence on what FP8 costs; None if nothing was measured."""
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
