"""Derives the values of a deployment of engines that a store has; pure."""

from __future__ import annotations

import math

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
from trtspec.cluster.kubernetes.stored import StoredBuild
from trtspec.cluster.kubernetes.values import EngineValues, HostResources
from trtspec.deployment import pod
from trtspec.deployment.patience import SLOW_B_S
from trtspec.recipe import gpus
from trtspec.recipe.schema import Recipe

# Estimates, rather too large: first for Triton, the coordinator and OpenAI's API, then for the CUDA context,
# NCCL and pinned memory of each rank.
_BASE, _OF_A_RANK = 6 * GIB, 4 * GIB
_CPUS, _CPUS_OF_A_RANK = 4, 2
_TEMPORARY = GIB  # the disk for unpacked files and logs in /tmp
# For a cache of the torch backend: slots take more than they hold, and the cache gets half of the free
# memory.
_AHEAD, _OF_FREE = 1.5, 2


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
    is_on_cpu = {role: _is_on_cpu(recipe, role) for role in build.engines}
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
        shared += engine.draft_logits if _is_bls(recipe, build) else 0
    return host_resources(
        recipe,
        cpus=cpus,
        memory=memory,
        shared=shared,
        disk=_TEMPORARY,
        weights=build.entry.size,
        on_cpu=any(is_on_cpu.values()),
    )


def _is_bls(recipe: Recipe, build: StoredBuild) -> bool:
    is_needed = any(engine.ranks > 1 for engine in build.engines.values())
    return recipe.serving.layout == "bls" or is_needed


def _is_on_cpu(recipe: Recipe, role: Role) -> bool:
    on_cpu = role is Role.DRAFT and recipe.draft_gpus == ()
    return on_cpu or recipe.hardware.gpu == gpus.NONE
