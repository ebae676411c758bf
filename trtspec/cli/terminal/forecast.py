"""Prints what drafts are expected to bring, for people and for machines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from trtspec.cli.terminal.output import out
from trtspec.pipeline.plan.speed import ACCEPTANCES

if TYPE_CHECKING:
    from trtspec.pipeline.plan.speed import Speed


def print_speed(speed: Speed, gpu: str, places: int) -> None:
    """Prints the speed without drafts, and the best draft length with its gain by acceptance and streams."""
    rows = [
        (
            row.streams,
            f"{row.tokens_per_second:,.0f}",
            *(f"{one.speedup:.2f}@{one.length}" if one.length else "-" for one in row.best),
            "never" if row.break_even is None else f"{row.break_even:.2f}",
        )
        for row in speed.rows
    ]
    out.result(f"expected of {gpu}, texts of {speed.context:,} tokens: tokens/s without drafts, then")
    out.result(f"times that @ the best K up to {speed.pair.longest}, by how likely a draft token is accepted")
    out.table(rows, header=("streams", "tokens/s", *(f"at {value}" for value in ACCEPTANCES), "from"))
    for line in _notes(speed, places):
        out.result(line)


def _notes(speed: Speed, places: int) -> Iterator[str]:
    """Yields what is to be known beside the numbers."""
    first, last = speed.rows[0], speed.rows[-1]
    yield "from: the acceptance at which drafts begin to gain; -: they gain nothing"
    span = f"{first.plain.seconds * 1000:.1f} ms for {first.streams} stream"
    span += f", {last.plain.seconds * 1000:.1f} ms for {last.streams}"
    limits = [(row.streams, row.plain.bottleneck) for row in speed.rows]
    changes = [one for number, one in enumerate(limits) if not number or limits[number - 1][1] != one[1]]
    waits = ", ".join(f"{limit} from {streams} on" for streams, limit in changes)
    yield f"a step without drafts: {span}; it waits for {waits}"
    if speed.pair.draft is None:
        yield "drafts are looked up and cost nothing; where nothing is found, there is none"
    if full := [row.streams for row in speed.rows if not row.fits]:
        texts = "a text" if full[0] == 1 else f"{full[0]} texts"
        yield f"the KV cache does not hold {texts} of that length"
    if places < last.streams:
        yield f"max_batch_size is {places}: of more streams the others wait in line"


def speed_as_json(speed: Speed) -> dict[str, Any]:
    """Returns the forecast; times are seconds."""
    return {
        "context": speed.context,
        "max_draft_len": speed.pair.longest,
        "round_overhead": speed.pair.overhead_s,
        "streams": [
            {
                "streams": row.streams,
                "tokens_per_second": row.tokens_per_second,
                "step": row.plain.seconds,
                "limit": row.plain.bottleneck,
                "draft_cost": row.draft_cost,
                "break_even": row.break_even,
                "fits": row.fits,
                "best": [
                    {"acceptance": acceptance, "num_draft_tokens": one.length, "speedup": one.speedup}
                    for acceptance, one in zip(ACCEPTANCES, row.best, strict=True)
                ],
            }
            for row in speed.rows
        ],
    }
