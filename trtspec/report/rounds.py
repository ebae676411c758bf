"""Where the time of a round goes, and what the server told of itself."""

from __future__ import annotations

from collections.abc import Iterator

from trtspec.bench.result import Inside, Result, RoundTimes
from trtspec.report import bars, loads
from trtspec.report.numbers import duration, in_unit, percent, plain
from trtspec.report.section import Key, Section, Table
from trtspec.report.speed import WITH, WITHOUT

_KINDS = ("draft-part", "drafts", "rest")
_NAMES = ("draft", "verification", "everything else")


def times(result: Result) -> Section | None:
    """Returns how long drafting and verifying take in a round; None where the server does not say."""
    known = [
        (level, level.arms.speculative.inside.round_times)
        for level in result.levels
        if level.arms.speculative.inside.round_times
    ]
    if not known:
        return None
    longest = max(sum(_parts(found)) for _, found in known if found)
    factor, unit = in_unit(longest)
    rows = tuple((loads.cell(level), _bar(found), *_row(found, factor)) for level, found in known if found)
    first = next(found for _, found in known if found)
    whole = sum(_parts(first))
    finding = (
        f"At {known[0][0].load} a round takes {duration(whole)}: {percent(first.draft / whole)} draft, "
        f"{percent(first.verify / whole)} verification, {percent(first.overhead / whole)} everything else."
    )
    header = (loads.header(result.levels), "shares", "draft", "verify", "other", "round")
    keys = tuple(Key(f"{kind} fill", name) for kind, name in zip(_KINDS, _NAMES, strict=True))
    table = Table(f"Mean time of a round, {unit}", header, rows, keys=keys)
    return Section("Where the time of a round goes", finding, (), (table,))


def server(result: Result) -> Section | None:
    """Returns what the server's caches and GPUs did; None where nothing is known."""
    columns = [
        (f"{name}, {arm}", [which(inside) if inside else None for inside in _insides(result, arm)])
        for name, which in (("prompt tokens from the KV cache", _kv_reuse), ("GPU busy", _gpu_use))
        for arm in (WITH, WITHOUT)
    ]
    known = [(name, shares) for name, shares in columns if any(share is not None for share in shares)]
    if not known:
        return None
    rows = tuple(
        (loads.cell(level), *(percent(shares[number]) for _, shares in known))
        for number, level in enumerate(result.levels)
    )
    header = (loads.header(result.levels), *(name for name, _ in known))
    words = "What the server's caches and GPUs did meanwhile. Drafts pay while a GPU has time to spare."
    return Section("Cache and GPU", words, (), (Table("Shares", header, rows),))


def _insides(result: Result, arm: str) -> Iterator[Inside | None]:
    for level in result.levels:
        figures = level.arms.speculative if arm == WITH else level.arms.plain
        yield figures.inside if figures else None


def _kv_reuse(inside: Inside) -> float | None:
    return inside.kv_reuse


def _gpu_use(inside: Inside) -> float | None:
    return inside.gpu_use


def _parts(found: RoundTimes) -> tuple[float, float, float]:
    return found.draft, found.verify, found.overhead


def _bar(found: RoundTimes) -> str:
    parts, whole = _parts(found), sum(_parts(found))
    shares = [(kind, part / whole) for kind, part in zip(_KINDS, parts, strict=True)]
    draft, verify, other = (percent(share) for _, share in shares)
    return bars.parts(shares, f"{draft} draft, {verify} verification, {other} other")


def _row(found: RoundTimes, factor: float) -> tuple[str, ...]:
    return tuple(plain(part * factor) for part in (*_parts(found), sum(_parts(found))))
