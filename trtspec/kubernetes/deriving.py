"""The values of a deployment, from its recipe and from what the store has of its build; pure."""

from __future__ import annotations

import hashlib
import math
import re
from dataclasses import dataclass

from trtspec.deploy import pod
from trtspec.errors import RecipeError
from trtspec.kubernetes.stored import StoredBuild
from trtspec.kubernetes.values import GpuChoice, Group, HostResources, Scaling, Times, Values
from trtspec.recipe import gpus
from trtspec.recipe.kubernetes import Autoscaling, Claim, EmptyDir, HostPath, Hosts, Kubernetes
from trtspec.recipe.loader import LoadedRecipe
from trtspec.recipe.releases import release_of
from trtspec.recipe.schema import Recipe
from trtspec.roles import Role
from trtspec.units import GIB

_LONGEST_NAME = 40  # of what is left of 63 characters by the longest suffix of an object's name
_SLOW_B_S = 200e6  # at which a build is pulled at least
_IMAGE_S = 900  # for a node that pulls the image first

# Estimates that err on the large side: Triton, the coordinator and OpenAI's API; the CUDA context, NCCL and
# pinned memory of each rank.
_BASE, _OF_A_RANK = 6 * GIB, 4 * GIB
_CPUS, _CPUS_OF_A_RANK = 4, 2
_TEMPORARY = GIB  # of the disk: what is unpacked and logged in /tmp
# Of a cache of the torch backend: slots take more than they hold, and half of what is free is the cache's.
_AHEAD, _OF_FREE = 1.5, 2


@dataclass(frozen=True, slots=True)
class Asked:
    """What a command line asks for: the store as pods reach it, and a namespace in place of the recipe's."""

    store: str
    namespace: str | None = None


def derive(loaded: LoadedRecipe, text: str, build: StoredBuild, asked: Asked, version: str) -> Values:
    """Returns the values of a deployment; `text` is that of the recipe, and `version` that of trtspec.

    Raises RecipeError where KEDA would ask for servers whose namespace is not known.
    """
    recipe, options, entry = loaded.recipe, loaded.recipe.kubernetes, build.entry
    namespace = asked.namespace or options.namespace
    if options.autoscaling and options.autoscaling.by == "keda" and namespace is None:
        problem = "is missing: keda asks Prometheus for the servers of one namespace"
        raise RecipeError(loaded.path, [loaded.problem("kubernetes.namespace", problem, "or --namespace")])
    return Values(
        name=options.name or name_of(recipe.name),
        namespace=namespace,
        version=version,
        labels=options.labels,
        annotations=options.annotations,
        image=options.image or default_image(recipe, version),
        image_pull_secrets=tuple(options.secrets.image_pull),
        recipe=text,
        model_name=recipe.serving.model_name,
        store=asked.store,
        store_secret=options.secrets.store,
        digest=entry.digest,
        platform=entry.platform.folder,
        group=_group(recipe, options.hosts) if options.hosts else None,
        kserve=options.form == "kserve",
        replicas=options.replicas,
        scaling=_scaling(options.autoscaling) if options.autoscaling else None,
        max_surge=options.max_surge,
        max_unavailable=0 if options.max_surge else 1,
        volume=_volume(options, build),
        gpu=gpu_choice(recipe),
        resources=_resources(recipe, build),
        times=_times(options, build),
        node_selector=options.node_selector,
        tolerations=tuple(options.tolerations),
        runtime_class=options.runtime_class,
        priority_class=options.priority_class,
        service_account=options.service_account,
        api_keys_secret=options.secrets.api_keys,
        network_policy=options.network_policy,
        egress_ports=tuple(options.egress_ports),
        monitoring=options.monitoring,
        gateway=options.gateway,
    )


def name_of(recipe: str) -> str:
    """Returns a recipe's name as Kubernetes takes it (RFC 1035): letters, digits, dashes, a letter first."""
    plain = re.sub(r"[^a-z0-9]+", "-", recipe).strip("-")
    name = plain if plain[0].isalpha() else f"trtspec-{plain}"
    if len(name) <= _LONGEST_NAME:
        return name
    return f"{name[: _LONGEST_NAME - 7].rstrip('-')}-{hashlib.sha256(recipe.encode()).hexdigest()[:6]}"


def default_image(recipe: Recipe, version: str) -> str:
    """Returns the name of the image that a recipe gets that names none: no registry has it."""
    if recipe.backend == "torch":
        return f"trtspec:{version}-torch"
    return f"trtspec:{version}-{release_of(recipe.engine.release).version}"


def gpu_choice(recipe: Recipe) -> GpuChoice | None:
    """Returns the GPUs that a recipe's engines are for; None for the CPU."""
    product = gpus.GPUS.get(recipe.hardware.gpu)
    if product is None:
        return None
    # The label is the name that nvidia-smi shows, with dashes for its blanks.
    return GpuChoice(
        product=recipe.kubernetes.gpu_product or product.label.replace(" ", "-"),
        compute_major=str(product.sm // 10),
        count=recipe.kubernetes.hosts.gpus_per_host if recipe.kubernetes.hosts else recipe.hardware.count,
    )


def _group(recipe: Recipe, hosts: Hosts) -> Group:
    return Group(
        size=recipe.hardware.count // hosts.gpus_per_host,
        leader=tuple(hosts.leader),
        worker=tuple(hosts.worker),
    )


def _resources(recipe: Recipe, build: StoredBuild) -> HostResources:
    """Returns what a server takes of its host.

    An engine passes through the host's memory when a GPU loads it; on the CPU it stays there with its cache.
    """
    is_with_pod = isinstance(recipe.kubernetes.cache, EmptyDir)
    asked, group = recipe.kubernetes.resources, recipe.kubernetes.hosts
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
    cpu = asked.cpu or str(cpus)
    return HostResources(
        cpu=cpu,
        # The torch backend takes a thread for each processor that it may use.
        cpu_limit=cpu if any(is_on_cpu.values()) else None,
        memory=asked.memory or gib(memory + shared),
        shared_memory=asked.shared_memory or gib(shared),
        disk=asked.disk or gib(_TEMPORARY + build.entry.size * is_with_pod),
    )


def _is_on_cpu(recipe: Recipe, role: Role) -> bool:
    on_cpu = role is Role.DRAFT and recipe.draft_gpus == ()
    return on_cpu or recipe.hardware.gpu == gpus.NONE


def _times(options: Kubernetes, build: StoredBuild) -> Times:
    failures = pod.startup_failures(build.entry)
    pull = _IMAGE_S + build.entry.size / _SLOW_B_S
    return Times(
        grace_s=options.grace_seconds,
        startup_failures=failures,
        progress_s=math.ceil(pull) + failures * pod.STARTUP_S,
    )


def _volume(options: Kubernetes, build: StoredBuild) -> EmptyDir | HostPath | Claim:
    """Returns the volume of the engines; a claim that is made has room for the builds of an update."""
    volume = options.cache
    if isinstance(volume, Claim) and volume.name is None and volume.size is None:
        return volume.model_copy(update={"size": gib(2 * build.entry.size)})
    return volume


def _scaling(asked: Autoscaling) -> Scaling:
    return Scaling(
        max_replicas=asked.max_replicas,
        places=f"{asked.places:g}",
        kv_cache=f"{asked.kv_cache:g}",
        prometheus=asked.prometheus,
    )


def gib(size: float) -> str:
    """Returns bytes as a quantity, rounded up."""
    return f"{math.ceil(size / GIB)}Gi"
