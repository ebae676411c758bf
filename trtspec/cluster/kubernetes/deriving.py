"""Derives the values of a deployment from its recipe and from what it serves; pure."""

from __future__ import annotations

import hashlib
import math
import re
import string
from dataclasses import dataclass

from trtspec.backends.recipes import runner_of
from trtspec.base.errors import RecipeError
from trtspec.base.units import GIB
from trtspec.cluster.kubernetes.values import (
    EngineValues,
    GpuChoice,
    GroupValues,
    HostResources,
    ScalingValues,
    ServerTimes,
    Values,
    VendorServerValues,
)
from trtspec.deployment import pod
from trtspec.recipe import gpus
from trtspec.recipe.kubernetes import Autoscaling, Claim, EmptyDir, HostPath, Hosts, Kubernetes, Monitoring
from trtspec.recipe.loader import LoadedRecipe
from trtspec.recipe.releases import release_of
from trtspec.recipe.schema import Recipe

_LONGEST_NAME = 40  # 63 characters, less the longest suffix of an object's name
_UNITS = {"": 1, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_UNITS |= {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
IMAGE_S = 900
"""The seconds for a node that must pull the image first."""


@dataclass(frozen=True, slots=True)
class ServedRecipe:
    """A served recipe, with the values that follow from it; either `engines` or `server` is set."""

    image: str
    model_name: str
    digest: str
    volume: EmptyDir | HostPath | Claim
    resources: HostResources
    times: ServerTimes
    monitoring: Monitoring
    engines: EngineValues | None = None
    """The values of engines that a store has."""
    server: VendorServerValues | None = None
    """The values of another engine's server."""


def derive(loaded: LoadedRecipe, served: ServedRecipe, namespace: str | None) -> Values:
    """Returns the values of a deployment; `namespace` replaces the recipe's.

    Raises RecipeError if KEDA needs a namespace and none is known.
    """
    recipe, options = loaded.recipe, loaded.recipe.kubernetes
    namespace = namespace or options.namespace
    if options.autoscaling and options.autoscaling.by == "keda" and namespace is None:
        problem = "is missing: KEDA asks Prometheus for the servers of one namespace"
        raise RecipeError(loaded.path, [loaded.problem("kubernetes.namespace", problem, "or --namespace")])
    return Values(
        name=options.name or name_of(recipe.name),
        namespace=namespace,
        labels=options.labels,
        annotations=options.annotations,
        image=served.image,
        image_pull_secrets=tuple(options.secrets.image_pull),
        model_name=served.model_name,
        digest=served.digest,
        engines=served.engines,
        server=served.server,
        group=_group(recipe, options.hosts) if options.hosts else None,
        kserve=options.form == "kserve",
        replicas=options.replicas,
        scaling=_scaling(options.autoscaling) if options.autoscaling else None,
        max_surge=options.max_surge,
        max_unavailable=0 if options.max_surge else 1,
        volume=served.volume,
        gpu=gpu_choice(recipe),
        resources=served.resources,
        times=served.times,
        node_selector=options.node_selector,
        gpu_labels=options.gpu_labels,
        tolerations=tuple(options.tolerations),
        runtime_class=options.runtime_class,
        priority_class=options.priority_class,
        service_account=options.service_account,
        api_keys_secret=options.secrets.api_keys,
        network_policy=options.network_policy,
        egress_ports=tuple(options.egress_ports),
        monitoring=served.monitoring,
        gateway=options.gateway,
    )


def volume_of(options: Kubernetes, size: float) -> EmptyDir | HostPath | Claim:
    """Returns the volume for engines or models of `size` bytes.

    A new claim has room for the two builds of an update.
    """
    volume = options.cache
    if isinstance(volume, Claim) and volume.name is None and volume.size is None:
        return volume.model_copy(update={"size": gib(2 * size)})
    return volume


def name_of(recipe: str) -> str:
    """Returns a recipe's name in Kubernetes' form (RFC 1035): letters, digits and dashes, a letter first."""
    plain = re.sub(r"[^a-z0-9]+", "-", recipe).strip("-")
    name = plain if plain[0].isalpha() else f"trtspec-{plain}"
    if len(name) <= _LONGEST_NAME:
        return name
    return f"{name[: _LONGEST_NAME - 7].rstrip('-')}-{hashlib.sha256(recipe.encode()).hexdigest()[:6]}"


def default_image(recipe: Recipe, version: str) -> str:
    """Returns the image's name for a recipe that names none: no registry has this image."""
    if runner_of(recipe).is_embedded:
        return f"trtspec:{version}-{recipe.backend}"
    return f"trtspec:{version}-{release_of(recipe.engine.release).version}"


def gpu_choice(recipe: Recipe) -> GpuChoice | None:
    """Returns the GPUs that a recipe's engines were built for; None for the CPU."""
    product = gpus.GPUS.get(recipe.hardware.gpu)
    if product is None:
        return None
    # The label is the name that nvidia-smi shows, with dashes for its blanks.
    return GpuChoice(
        product=recipe.kubernetes.gpu_product or product.label.replace(" ", "-"),
        compute_major=str(product.sm // 10),
        count=recipe.kubernetes.hosts.gpus_per_host if recipe.kubernetes.hosts else recipe.hardware.count,
    )


def gpu_labels(recipe: Recipe) -> dict[str, str]:
    """Returns the labels of a node with the recipe's GPUs; empty if any node will do.

    The labels come from NVIDIA's GPU feature discovery, unless the recipe names others, or none.
    """
    gpu, own = gpu_choice(recipe), recipe.kubernetes.gpu_labels
    if gpu is None or own is False:
        return {}
    found = {"nvidia.com/gpu.product": gpu.product, "nvidia.com/gpu.compute.major": gpu.compute_major}
    return found if own is None else own


def _group(recipe: Recipe, hosts: Hosts) -> GroupValues:
    size = recipe.hardware.count // hosts.gpus_per_host
    return GroupValues(size=size, leader=tuple(hosts.leader), worker=tuple(hosts.worker))


def _scaling(asked: Autoscaling) -> ScalingValues:
    return ScalingValues(
        max_replicas=asked.max_replicas,
        places=f"{asked.places:g}",
        kv_cache=f"{asked.kv_cache:g}",
        prometheus=asked.prometheus,
    )


def host_resources(
    recipe: Recipe, *, cpus: int, memory: float, shared: float, disk: float, weights: int, on_cpu: bool
) -> HostResources:
    """Returns the host's resources of a server; what the recipe asks for comes first.

    `memory` is that without /dev/shm, and `disk` that without the `weights`, which a volume of the pod holds.
    """
    asked = recipe.kubernetes.resources
    cpu = asked.cpu or str(cpus)
    size = bytes_of(asked.shared_memory) if asked.shared_memory else shared
    is_with_pod = isinstance(recipe.kubernetes.cache, EmptyDir)
    return HostResources(
        cpu=cpu,
        # PyTorch runs a thread for each processor that it may use.
        cpu_limit=cpu if on_cpu else None,
        memory=asked.memory or gib(memory + size),
        shared_memory=asked.shared_memory or gib(shared),
        disk=asked.disk or gib(disk + weights * is_with_pod),
    )


def server_times(options: Kubernetes, failures: int, pull_s: float) -> ServerTimes:
    """Returns the limits of a server that pulls for `pull_s` seconds and then fails so many checks."""
    progress_s = math.ceil(pull_s) + failures * pod.STARTUP_S
    return ServerTimes(grace_s=options.grace_seconds, startup_failures=failures, progress_s=progress_s)


def gib(size: float) -> str:
    """Returns bytes as a Kubernetes quantity, rounded up."""
    return f"{math.ceil(size / GIB)}Gi"


def bytes_of(quantity: str) -> float:
    """Returns the bytes of a quantity in the form that recipes use."""
    number = quantity.rstrip(string.ascii_letters)
    return float(number) * _UNITS[quantity[len(number) :]]
