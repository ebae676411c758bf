"""Large numbers as a person reads them."""

from __future__ import annotations


def short(count: int) -> str:
    """8030261248 is 8.03 B."""
    for size, letter in ((10**9, "B"), (10**6, "M"), (10**3, "k")):
        if count >= size:
            return f"{count / size:.3g} {letter}"
    return str(count)


def size(count: int) -> str:
    """Bytes, in units of a thousand."""
    for unit, name in ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if count >= unit:
            return f"{count / unit:.3g} {name}"
    return f"{count} B"
