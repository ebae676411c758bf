"""The spans of a step, and their batches for attention. No tensors."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Span:
    """The new positions of one sequence. The cache has those before."""

    slot: int
    """The number of the sequence's slot."""
    start: int
    """The first new position."""
    rows: int
    """The number of new positions."""
    prompt_len: int = 0
    """The number of positions of the prompt."""


@dataclass(slots=True)
class Batch:
    """Spans with the same number of rows, which go through attention together."""

    spans: list[Span]
    first: int
    """The first position that any span sees."""
    end: int
    """The end of the positions that any span sees."""
    used: int
    """The sum of the positions that each span sees."""

    @property
    def tokens(self) -> int:
        """The number of positions of all spans, padding included."""
        return len(self.spans) * (self.end - self.first)

    def tokens_with(self, first: int, end: int) -> int:
        """Returns `tokens` with another span that sees the positions from `first` to `end`."""
        return (len(self.spans) + 1) * (max(self.end, end) - min(self.first, first))

    def add(self, span: Span, first: int, end: int) -> None:
        self.spans.append(span)
        self.first, self.end = min(self.first, first), max(self.end, end)
        self.used += end - first


@dataclass(frozen=True, slots=True)
class BatchSize:
    """The bounds of a batch, in bytes of one layer's keys and values."""

    most: int
    """The bound of all positions, padding included. It does not hold for two sequences."""
    padding: int
    """The bound of the padding, which is needed if spans see different positions."""


# On a CPU the keys of a batch must stay in the processor's caches until they are used, and padding of this
# size costs as much as the calls of another batch. On a GPU the calls cost most, but the padding takes memory
# that the KV cache's budget does not count.
SIZES = {
    "cpu": BatchSize(most=4 << 20, padding=1 << 20),
    "cuda": BatchSize(most=sys.maxsize, padding=256 << 20),
}


def batches(spans: Iterable[Span], window: int | None, bytes_per_token: int, size: BatchSize) -> list[Batch]:
    """Returns batches of neighbouring spans, in their order. A row sees `window` tokens at most."""
    result: list[Batch] = []
    for span in spans:
        first, end = 0 if window is None else max(span.start + 1 - window, 0), span.start + span.rows
        batch = result[-1] if result else None
        if batch is not None and batch.spans[0].rows == span.rows:
            tokens = batch.tokens_with(first, end)
            padding = tokens - batch.used - (end - first)
            is_small = len(batch.spans) == 1 or tokens * bytes_per_token <= size.most
            if is_small and padding * bytes_per_token <= size.padding:
                batch.add(span, first, end)
                continue
        result.append(Batch([span], first, end, end - first))
    return result
