"""Large numbers as a person reads them."""

from __future__ import annotations

GIB = 1 << 30


def short(count: int) -> str:
    """8030261248 is 8.03 B."""
    for size, letter in ((10**9, "B"), (10**6, "M"), (10**3, "k")):
        if count >= size:
            return f"{count / size:.3g} {letter}"
    return str(count)


def three_digits(size: int) -> str:
    """Bytes, in units of a thousand."""
    for unit, name in ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if size >= unit:
            return f"{size / unit:.3g} {name}"
    return f"{size} B"


def gb(size: float) -> str:
    """Bytes as a disk counts them."""
    return f"{size / 1e9:.1f} GB"


def mb_or_gb(size: float) -> str:
    """The same, of files that may be small."""
    return gb(size) if size >= 1e9 else f"{size / 1e6:.1f} MB"


def gib(size: float) -> str:
    """Bytes as memory is counted."""
    return f"{size / GIB:.1f} GiB"
