"""Large numbers as a person reads them."""

from __future__ import annotations

GIB = 1 << 30


def short(count: int) -> str:
    """A count with three digits and a letter for its unit: 8030261248 is 8.03 B."""
    rounded = float(f"{count:.3g}")
    for size, letter in ((10**9, "B"), (10**6, "M"), (10**3, "k")):
        if rounded >= size:
            return f"{rounded / size:.3g} {letter}"
    return str(count)


def three_digits(size: int) -> str:
    """Bytes with three digits, in powers of 1000: 8030261248 is 8.03 GB."""
    rounded = float(f"{size:.3g}")
    for unit, name in ((10**15, "PB"), (10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if rounded >= unit:
            return f"{rounded / unit:.3g} {name}"
    return f"{size} B"


def lacking(needed: int, free: int) -> str:
    """The bytes that are needed and those that are free, all digits of them where three would be the same."""
    sizes = three_digits(needed), three_digits(free)
    more, room = sizes if len(set(sizes)) > 1 else (f"{needed:,} B", f"{free:,} B")
    return f"{more}, but {room} are free"


def gib(size: float) -> str:
    """Bytes in GiB (2**30 bytes), as memory is measured; in MiB or KiB where GiB would be 0.0."""
    for unit, name in ((GIB, "GiB"), (GIB >> 10, "MiB"), (GIB >> 20, "KiB")):
        if abs(size) >= unit / 20:
            return f"{size / unit:.1f} {name}"
    return f"{size:.0f} B" if size else "0 GiB"
