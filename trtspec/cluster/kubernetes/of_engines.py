"""Finds the build of a recipe in a store, and derives the values of its deployment."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trtspec.backends.recipes import runner_of
from trtspec.base.errors import StoreError
from trtspec.base.roles import Role
from trtspec.base.units import GIB
from trtspec.cluster.kubernetes.deriving import (
    IMAGE_S,
    ServedRecipe,
    default_image,
    host_resources,
    server_times,
    volume_of,
)
from trtspec.cluster.kubernetes.values import EngineValues, HostResources
from trtspec.deployment import pod
from trtspec.deployment.patience import SLOW_B_S
from trtspec.pipeline.store.entry import Entry
from trtspec.pipeline.store.store import Store
from trtspec.recipe import gpus
from trtspec.recipe.schema import Recipe
from trtspec.serving.executors.draft_logits import most_bytes
from trtspec.serving.executors.limits import limits_of

# Estimates, rather too large: first for Triton, the coordinator and OpenAI's API, then for the CUDA context,
# NCCL and pinned memory of each rank.
_BASE, _OF_A_RANK = 6 * GIB, 4 * GIB
_CPUS, _CPUS_OF_A_RANK = 4, 2
_TEMPORARY = GIB  # the disk for unpacked files and logs in /tmp
# For a cache of the torch backend: slots take more than they hold, and the cache gets half of the free
# memory.
_AHEAD, _OF_FREE = 1.5, 2


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
    return StoredBuild(
        found[0], {role: _engine(store, found[0], role) for role in runner_of(recipe).engines(recipe)}
    )


def _engine(store: Store, entry: Entry, role: Role) -> BuildEngine:
    folder = f"{role}/engine"
    chunks = entry.files[f"{folder}/config.json"].chunks
    config: dict[str, Any] = json.loads(b"".join(store.read_chunk(chunk) for chunk in chunks))
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


def of_engines(recipe: Recipe, text: str, build: StoredBuild, store: str, version: str) -> ServedRecipe:
    """Returns the served recipe of a build; `text` is its text, and `store` the URL that pods use."""
    options, entry = recipe.kubernetes, build.entry
    return ServedRecipe(
        image=options.image or default_image(recipe, version),
        model_name=recipe.serving.triton_name,
        digest=entry.digest,
        volume=volume_of(options, entry.size),
        resources=_resources(recipe, build),
        times=server_times(options, pod.startup_failures(entry), pull_s=IMAGE_S + entry.size / SLOW_B_S),
        monitoring=options.monitoring,
        engines=EngineValues(
            recipe=text, store=store, store_secret=options.secrets.store, platform=entry.platform.folder
        ),
    )


def _resources(recipe: Recipe, build: StoredBuild) -> HostResources:
    """Returns the host's resources that a server takes.

    An engine passes through the host's memory when a GPU loads it; on the CPU it stays there with its cache.
    The coordinator holds the draft logits of sampled requests. In the bls layout Triton has a copy in
    /dev/shm.
    """
    group = recipe.kubernetes.hosts
    hosts = recipe.hardware.count // group.gpus_per_host if group else 1
    memory, shared, cpus = float(_BASE), GIB, _CPUS
    is_on_cpu = {
        role: recipe.hardware.gpu == gpus.NONE or (role is Role.DRAFT and recipe.draft_gpus == ())
        for role in build.engines
    }
    is_bls = recipe.serving.layout == "bls" or any(engine.ranks > 1 for engine in build.engines.values())
    for role, engine in build.engines.items():
        ranks = math.ceil(engine.ranks / hosts)
        memory += engine.weights * ranks / engine.ranks
        if is_on_cpu[role]:
            tokens = 2 * engine.max_batch_size * engine.max_seq_len
            memory += _OF_FREE * _AHEAD * engine.kv_per_token * tokens
        else:
            memory += _OF_A_RANK * ranks
            shared += GIB * ranks
            cpus += _CPUS_OF_A_RANK * ranks
        memory += engine.draft_logits
        shared += engine.draft_logits if is_bls else 0
    return host_resources(
        recipe,
        cpus=cpus,
        memory=memory,
        shared=shared,
        disk=_TEMPORARY,
        weights=build.entry.size,
        on_cpu=any(is_on_cpu.values()),
    )
