"""Which spans go through attention together: bounds of memory and padding, whatever comes."""

from __future__ import annotations

import random

import pytest

from trtspec.serving.executors.torch.spans import SIZES, Batch, BatchSize, Span, batches

BYTES = 10
SIZE = BatchSize(most=1000 * BYTES, padding=300 * BYTES)


def split(starts: list[int], rows: int = 1, window: int | None = None) -> list[list[int]]:
    """The starts of each batch."""
    spans = [Span(slot, start, rows) for slot, start in enumerate(starts)]
    return [[span.start for span in batch.spans] for batch in batches(spans, window, BYTES, SIZE)]


def test_a_batch_looks_at_no_more_than_stays_in_the_caches() -> None:
    assert split([99] * 25) == [[99] * 10, [99] * 10, [99] * 5]
    assert split([95] * 12, rows=5) == [[95] * 10, [95] * 2]


def test_two_long_texts_are_together() -> None:
    assert split([9000] * 5) == [[9000] * 2, [9000] * 2, [9000]]


def test_a_long_text_makes_no_padding_for_short_ones() -> None:
    assert split([49] * 5 + [899]) == [[49] * 5, [899]]
    assert split([49, 99, 149, 199]) == [[49, 99, 149, 199]]
    assert split([49, 99, 149, 200]) == [[49, 99, 149], [200]]


@pytest.mark.parametrize(
    ("short", "many", "long"), [(1500, 63, 120_000), (600, 255, 32_000), (600, 255, 120_000)]
)
def test_a_long_text_among_many_short_ones_does_not_fill_a_gpu(short: int, many: int, long: int) -> None:
    layer = 4096  # Llama 3.1 8B in bfloat16
    spans = [Span(slot, start, 1) for slot, start in enumerate([short] * many + [long])]
    found = batches(spans, None, layer, SIZES["cuda"])
    assert [len(batch.spans) for batch in found] == [many, 1]


def test_only_spans_of_as_many_rows_are_together() -> None:
    spans = [Span(0, 10, 1), Span(1, 10, 1), Span(2, 10, 5), Span(3, 10, 1)]
    assert [len(batch.spans) for batch in batches(spans, None, BYTES, SIZE)] == [2, 1, 1]


def test_a_window_leaves_what_lies_before_it() -> None:
    assert split([5000, 5000, 5010], window=20) == [[5000, 5000, 5010]]
    assert split([400, 5000], window=20) == [[400], [5000]]


@pytest.mark.parametrize("window", [None, 7, 150])
def test_any_spans(window: int | None) -> None:
    dice = random.Random(0)
    for _ in range(50):
        spans = [Span(slot, dice.randrange(2000), dice.choice([1, 5])) for slot in range(dice.randrange(30))]
        spans.sort(key=lambda span: (span.rows, span.start))
        found = batches(spans, window, BYTES, SIZE)
        assert [span for batch in found for span in batch.spans] == spans
        for batch in found:
            check(batch, window)


def check(batch: Batch, window: int | None) -> None:
    seen = [
        {position for position in range(span.start + span.rows) if sees(span, position, window)}
        for span in batch.spans
    ]
    assert (batch.first, batch.end) == (min(map(min, seen)), 1 + max(map(max, seen)))
    side_by_side = len(seen) * (batch.end - batch.first)
    assert batch.tokens == side_by_side
    assert len(seen) < 3 or side_by_side * BYTES <= SIZE.most
    assert (side_by_side - sum(map(len, seen))) * BYTES <= SIZE.padding


def sees(span: Span, position: int, window: int | None) -> bool:
    """Says whether one of the rows sees it."""
    return window is None or any(
        0 <= at - position < window for at in range(span.start, span.start + span.rows)
    )
