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
    for unit, name in ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if rounded >= unit:
            return f"{rounded / unit:.3g} {name}"
    return f"{size} B"


def gb(size: float) -> str:
    """Bytes in GB (10**9 bytes), as disks are measured."""
    return f"{size / 1e9:.1f} GB"


def mb_or_gb(size: float) -> str:
    """Bytes in GB, or in MB (10**6 bytes) if there is less than one GB."""
    return gb(size) if size >= 1e9 else f"{size / 1e6:.1f} MB"


def gib(size: float) -> str:
    """Bytes in GiB (2**30 bytes), as memory is measured."""
    return f"{size / GIB:.1f} GiB"
