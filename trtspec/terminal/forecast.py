"""What drafts are expected to bring, for people and for machines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trtspec.terminal.output import out

if TYPE_CHECKING:
    from trtspec.plan.speed import Row, Speed


def print_speed(speed: Speed, gpu: str, places: int) -> None:
    """Prints the speed without drafts, and the best draft length with its gain by acceptance and streams."""
    from trtspec.plan.speed import ACCEPTANCES

    rows = [
        (
            row.streams,
            f"{row.tokens_per_second:,.0f}",
            f"{row.plain.seconds * 1000:.1f} ms",
            row.plain.bottleneck,
            *(f"{one.speedup:.2f} K {one.length}" if one.length else "-" for one in row.best),
            "never" if row.break_even is None else f"{row.break_even:.2f}",
            _limit(row, places),
        )
        for row in speed.rows
    ]
    header = (
        *("streams", "tokens/s", "a step", "limit"),
        *(f"at {acceptance}" for acceptance in ACCEPTANCES),
        "gains from",
        "",
    )
    out.result(
        f"expected of {gpu} with texts of {speed.context:,} tokens: tokens/s without drafts, and how many"
        f" times that with the best K up to {speed.pair.longest}, by how likely a draft token is accepted"
    )
    if speed.pair.draft is None:
        out.result("drafts are looked up and cost nothing; where nothing is found, the target goes on alone")
    out.table(rows, header=header)


def _limit(row: Row, places: int) -> str:
    if not row.fits:
        return "more than the KV cache holds"
    return f"max_batch_size is {places}" if row.streams > places else ""


def speed_as_json(speed: Speed) -> dict[str, Any]:
    """Returns the forecast; times are seconds."""
    from trtspec.plan.speed import ACCEPTANCES

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
