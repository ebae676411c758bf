"""Says in words whether drafts are worth it; pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from trtspec.measure.bench.result import Arms, BenchVerdict, Interval, LoadResult, OfferedLoad

_NO_PLAIN = (
    "no speed-up is stated, since nothing was measured without drafts: --baseline URL names the same engine "
    "without drafts"
)
_NO_PAIRS = "no speed-up is stated"
_MOST_FAILED = 0.01
"""The largest share of an arm's requests at a rate that may fail for a speed-up to be stated."""


def verdict(levels: Sequence[LoadResult], notes: tuple[str, ...] = ()) -> BenchVerdict:
    """Returns the verdict on the speed-ups of the levels.

    A level gains if its whole interval is above 1, loses if it is below, and decides nothing if 1 lies
    within.
    """
    notes += tuple(
        f"{level.load}: no speed-up is stated, since {_why_none(level)}"
        for level in levels
        if level.arms.plain and level.speedup is None
    )
    known = sorted(
        ((level, level.speedup) for level in levels if level.speedup), key=lambda each: each[0].load.value
    )
    if not known:
        if not levels:
            return BenchVerdict("nothing was measured", "unmeasured", notes=notes)
        has_plain = any(level.arms.plain for level in levels)
        return BenchVerdict(_NO_PAIRS if has_plain else _NO_PLAIN, "unmeasured", notes=notes)
    states = [_state(speedup) for _, speedup in known]
    told = [f"{_factor(speedup)} at {level.load}" for level, speedup in known]
    if all(state == "gain" for state in states):
        shown = told[0] if len(told) == 1 else f"{told[0]}, {told[-1]}"
        return BenchVerdict(f"{shown}: leave it on" + _at_all(known, levels), "on", notes=notes)
    if all(state == "loss" for state in states):
        return BenchVerdict(f"{told[0]}: switch it off" + _at_all(known, levels), "off", notes=notes)
    if all(state == "open" for state in states):
        return BenchVerdict(f"no difference was found: {', '.join(told)}", "undecided", notes=notes)
    gains = states.index("gain") if states[0] == "gain" else None
    end = next((place for place, state in enumerate(states) if state != "gain"), len(states))
    if gains is None or "gain" in states[end:]:
        return BenchVerdict(f"it depends: {', '.join(told)}", "undecided", notes=notes)
    if "loss" not in states[end:]:
        (last, _), (first, after) = known[end - 1], known[end]
        words = f"{told[0]}, no difference found from {first.load} on ({_factor(after)})"
        return BenchVerdict(words, "up_to", None, last.load.value, notes)
    # The speed-up crosses 1 at a load whose interval contains 1, or at the first loss.
    past = next(place for place, (_, speedup) in enumerate(known) if speedup.value <= 1)
    (last, before), (first, after) = known[past - 1], known[past]
    even = _break_even(last.load.value, before.value, first.load.value, after.value)
    unit = "" if last.load.kind == "streams" else " requests/s"
    words = f"{told[0]}, break-even at {_number(even)}{unit}, switch off above"
    return BenchVerdict(words, "up_to", even, even, notes)


def fails_often(load: OfferedLoad, arms: Arms) -> bool:
    """Says whether too many requests at a rate failed to compare the times of two arms.

    Refused requests leave room for the others, whose times improve.
    """
    every = [arm for arm in (arms.speculative, arms.plain) if arm is not None]
    return load.kind == "rate" and any(arm.failed > _MOST_FAILED * arm.requests for arm in every)


def _why_none(level: LoadResult) -> str:
    if fails_often(level.load, level.arms):
        return f"more than {_MOST_FAILED:.0%} of the requests of an arm failed; a lower --rate avoids that"
    return "too few pairs of blocks have answers"


def _state(speedup: Interval) -> str:
    return "gain" if speedup.low > 1 else "loss" if speedup.high < 1 else "open"


def _break_even(low: float, before: float, high: float, after: float) -> float:
    """Returns the load between two loads at which the speed-up crosses 1, by interpolating logarithms."""
    share = math.log(before) / (math.log(before) - math.log(after))
    return math.exp(math.log(low) + share * (math.log(high) - math.log(low)))


def _factor(speedup: Interval) -> str:
    half = speedup.half_width
    digits = 1 if half >= 0.1 else 2
    return f"{speedup.value:.{digits}f}x ± {max(half, 0.01):.{digits}f}"


def _at_all(known: Sequence[tuple[LoadResult, Interval]], levels: Sequence[LoadResult]) -> str:
    if len(known) < len(levels):
        return f", at {len(known)} of the {len(levels)} loads that were measured"
    return f", at each of the {len(known)} loads that were measured" if len(known) > 2 else ""


def _number(load: float) -> str:
    return f"{load:.0f}" if load >= 10 else f"{load:.1f}".removesuffix(".0")
