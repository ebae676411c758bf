"""Finds an entry by the name that a person gives."""

from __future__ import annotations

from trtspec.base.errors import StoreError
from trtspec.pipeline.store.entry import Entry
from trtspec.pipeline.store.store import Store

_SHORTEST = 6


def find_entry(store: Store, name: str) -> Entry:
    """The newest build of the recipe `name`, or the entry whose digest begins with it; raises StoreError."""
    entries = store.entries()
    pairs = [entry for entry in entries if entry.role == "pair" and entry.name == name]
    if pairs:
        return pairs[0]
    found = [entry for entry in entries if len(name) >= _SHORTEST and entry.digest.startswith(name)]
    if len(found) > 1:
        raise StoreError(str(store), f"{len(found)} digests begin with {name}", "give more digits of it")
    if not found:
        problem = f"has no build {name!r:.80}, and no entry whose digest begins with it"
        raise StoreError(str(store), problem, "trtspec store list URL shows what is there")
    return found[0]
