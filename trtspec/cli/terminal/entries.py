"""Prints entries of a store, for people and for machines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from trtspec.base.units import three_digits
from trtspec.cli.terminal.output import out

if TYPE_CHECKING:
    from trtspec.pipeline.store.entry import Entry


def print_pushed(entries: Sequence[Entry]) -> None:
    """Prints what a push has put into the store."""
    for entry in entries:
        out.status(f"pushed {entry.role} {entry.digest[:12]}, {three_digits(entry.size)}")
    if not entries:
        out.status("the store has it all")


def entry_as_json(entry: Entry) -> dict[str, Any]:
    platform = {key: getattr(entry.platform, key) for key in ("backend", "sm", "tensorrt", "tensorrt_llm")}
    return {
        "digest": entry.digest,
        "name": entry.name,
        "role": entry.role,
        "platform": platform,
        "size": entry.size,
        "created": entry.created,
    }
