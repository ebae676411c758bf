"""Reads a recipe's build from a store: its entry, and its engines' configurations."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trtspec.base.errors import StoreError
from trtspec.base.roles import Role
from trtspec.pipeline.store.entry import Entry
from trtspec.pipeline.store.store import Store
from trtspec.recipe.schema import Recipe
from trtspec.serving.executors.draft_logits import most_bytes
from trtspec.serving.executors.limits import limits_of


@dataclass(frozen=True, slots=True)
class BuildEngine:
    """An engine of a stored build."""

    ranks: int
    weights: int
    """The bytes of all its ranks."""
    kv_per_token: int
    """The bytes of one token in the KV caches of all ranks."""
    max_batch_size: int
    """The largest number of requests at once."""
    max_seq_len: int
    """The largest number of tokens of a request."""
    draft_logits: int
    """The bytes of draft logits for the largest number of sampled requests that it verifies at once."""


@dataclass(frozen=True, slots=True)
class StoredBuild:
    """A build in a store, ready to be served."""

    entry: Entry
    engines: Mapping[Role, BuildEngine]


def find_build(store: Store, recipe: Recipe) -> StoredBuild:
    """Returns the newest build of the recipe as it is now; raises StoreError if the store has none."""
    of_name = [entry for entry in store.entries() if entry.role == "pair" and entry.name == recipe.name]
    found = [
        entry
        for entry in of_name
        if entry.manifest["recipe"] == recipe.digest and entry.platform.backend == recipe.backend
    ]
    if not found:
        other = ", but it has builds of other recipes of this name" if of_name else ""
        problem = f"has no build of {recipe.name} from the recipe as it is now{other}"
        raise StoreError(str(store), problem, "trtspec build RECIPE --store URL")
    return StoredBuild(found[0], {role: _engine(store, found[0], role) for role in recipe.engines})


def _engine(store: Store, entry: Entry, role: Role) -> BuildEngine:
    folder = f"{role}/engine"
    config = _read(store, entry, f"{folder}/config.json")
    pretrained, build = config["pretrained_config"], config["build_config"]
    heads = pretrained["num_key_value_heads"] * pretrained["head_size"]
    item = 4 if pretrained["dtype"] == "float32" else 2
    ranks = [file.size for path, file in entry.files.items() if path.startswith(f"{folder}/rank")]
    return BuildEngine(
        ranks=len(ranks),
        weights=sum(ranks),
        kv_per_token=2 * pretrained["num_hidden_layers"] * heads * item,
        max_batch_size=build["max_batch_size"],
        max_seq_len=build["max_seq_len"],
        draft_logits=most_bytes(limits_of(config)),
    )


def _read(store: Store, entry: Entry, name: str) -> dict[str, Any]:
    """Returns a JSON file of an entry."""
    content: dict[str, Any] = json.loads(
        b"".join(store.read_chunk(chunk) for chunk in entry.files[name].chunks)
    )
    return content
