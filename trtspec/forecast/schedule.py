"""Derives K by the number of running requests from the gains at some of these numbers; pure.

The gains are measured (`trtspec tune --schedule`) or forecast (`trtspec plan --schedule`). K is the one with
the largest gain, and 0, which is off, where plain decoding is faster than any. K never rises with the load:
load only makes drafts dearer, and TensorRT-LLM begins with its longest draft.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

MARGIN = 1.02
"""The factor by which another K must be faster than the one in use, as in the adaptive policy."""
_MARK = "# schedule: "


@dataclass(frozen=True, slots=True)
class LengthGain:
    """Tokens per second with a K, divided by those without drafts; with its interval, or its range."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} ({self.low:.2f} to {self.high:.2f})"


PLAIN = LengthGain(1.0, 1.0, 1.0)


@dataclass(frozen=True, slots=True)
class LoadGains:
    """The gain of each K at one load."""

    streams: int
    gains: Mapping[int, LengthGain]
    """By K, which is at least 1."""

    def of(self, length: int) -> LengthGain | None:
        """Returns the gain of K; None if it is not known."""
        return self.gains.get(length) if length else PLAIN


@dataclass(frozen=True, slots=True)
class ScheduleRow:
    """The K from so many running requests to so many."""

    first: int
    last: int | None
    """None where it has no end."""
    length: int
    """0 is off."""
    gains: tuple[tuple[int, int, LengthGain], ...]
    """Each load of the row: its streams, K, and the gain. Where drafts are off, K is the best of those that
    lose."""

    @property
    def cells(self) -> tuple[str, str, str]:
        """The row in words: requests, K, and the gains at its lowest and its highest load."""
        requests = f"{self.first} and more" if self.last is None else f"{self.first} to {self.last}"
        if self.last == self.first:
            requests = str(self.first)
        said = dict.fromkeys(
            f"{f'K = {length}: ' * (not self.length)}{gain} at {streams}"
            for streams, length, gain in (*self.gains[:1], *self.gains[-1:])
        )
        return requests, str(self.length or "off"), ", ".join(said)


@dataclass(frozen=True, slots=True)
class DraftSchedule:
    """K by the number of running requests."""

    rows: tuple[ScheduleRow, ...]
    levels: tuple[LoadGains, ...]
    is_measured: bool
    origin: str
    """Where the gains come from, in a sentence."""
    notes: tuple[str, ...] = field(default=())

    @property
    def by_requests(self) -> dict[int, int]:
        """K by the least number of requests that it holds for, as `speculation.schedule` has it."""
        return {row.first: row.length for row in self.rows}

    @property
    def is_off(self) -> bool:
        """True if no load gains by drafts, so that there is nothing to schedule."""
        return not any(self.by_requests.values())

    def lines(self) -> Iterator[str]:
        """Yields the table and its notes as comments of a recipe."""
        yield f"{_MARK}{'' if self.is_measured else 'NOT MEASURED: '}{self.origin}"
        table = [
            ("requests", "K", "times the speed without drafts, with its range"),
            *(r.cells for r in self.rows),
        ]
        widths = [max(len(row[place]) for row in table) for place in (0, 1)]
        for requests, length, gains in table:
            yield f"{_MARK}{requests:{widths[0]}}  {length:{widths[1]}}  {gains}"
        for note in self.notes:
            yield f"{_MARK}{' '.join(note.split())}"

    def written(self, text: str) -> str:
        """Returns a recipe's text with the table at its beginning, in place of an earlier one."""
        kept = [line for line in text.splitlines(keepends=True) if not line.startswith(_MARK.rstrip())]
        return "".join((*(f"{line}\n" for line in self.lines()), *kept))


def schedule(
    levels: Sequence[LoadGains], *, is_measured: bool, origin: str, notes: tuple[str, ...] = ()
) -> DraftSchedule:
    """Returns the schedule of gains at one load or more, the lowest first."""
    lengths = _chosen(levels)
    firsts = [1, *(_first(one, other) for one, other in pairwise(zip(levels, lengths, strict=True)))]
    groups: list[tuple[int, int, list[LoadGains]]] = []
    for first, length, level in zip(firsts, lengths, levels, strict=True):
        if groups and groups[-1][1] == length:
            groups[-1][2].append(level)
        else:
            groups.append((first, length, [level]))
    ends: list[int | None] = [first - 1 for first, _, _ in groups[1:]]
    rows = tuple(
        ScheduleRow(first, last, length, tuple(_shown(length, own)))
        for (first, length, own), last in zip(groups, [*ends, None], strict=True)
    )
    return DraftSchedule(rows, tuple(levels), is_measured, origin, notes)


def _chosen(levels: Sequence[LoadGains]) -> list[int]:
    chosen: list[int] = []
    for level in levels:
        most = chosen[-1] if chosen else math.inf
        values = {0: 1.0, **{length: gain.value for length, gain in level.gains.items() if length <= most}}
        best = max(values, key=lambda length: (values[length], -length))
        is_kept = chosen and values.get(chosen[-1], 0.0) * MARGIN >= values[best]
        chosen.append(chosen[-1] if is_kept else best)
    return chosen


def _first(one: tuple[LoadGains, int], other: tuple[LoadGains, int]) -> int:
    """Returns the number of requests from which the K of the higher load holds.

    It is where the gains of both K are equal, by interpolating logarithms; the geometric mean of the loads if
    not all gains are known.
    """
    (low, before), (high, after) = one, other
    share = 0.5
    ends = [(level.of(before), level.of(after)) for level in (low, high)]
    logs = [math.log(first.value / second.value) for first, second in ends if first and second]
    if len(logs) == 2 and logs[0] > logs[1]:
        share = min(max(logs[0] / (logs[0] - logs[1]), 0.0), 1.0)
    crossing: float = low.streams * (high.streams / low.streams) ** share
    return min(max(math.ceil(crossing - 1e-9), low.streams + 1), high.streams)


def _shown(length: int, levels: Sequence[LoadGains]) -> Iterator[tuple[int, int, LengthGain]]:
    for level in levels:
        own = length or max(level.gains, key=lambda one: level.gains[one].value, default=0)
        if own and (gain := level.of(own)):
            yield level.streams, own, gain
