"""Derives a deployment's values from its recipe, and from what it serves: a build in a store, or a launch.

A pod of an engine server is the vendor's image with another entry point, as any user, on a root file system
that can only be read. All that these servers write is below the home folder: kernels that they compile or
download (vLLM's, FlashInfer's, Triton's, PyTorch's). PyTorch also asks for the name of a user that
`/etc/passwd` has not; `USER` answers. vLLM's image is made for this (vllm-project/vllm#40275), and SGLang's
has all that the server reads where everybody may (docker/Dockerfile). None of the images has run so here.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import string
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from trtspec.backends.launch import ServerLaunch
from trtspec.backends.table import backend_named, runner_of
from trtspec.base.digest import digest_of
from trtspec.base.errors import RecipeError, StoreError
from trtspec.base.findings import Finding
from trtspec.base.roles import Role
from trtspec.base.units import GIB
from trtspec.checkpoint.convert import rank_sizes
from trtspec.cluster.kubernetes.values import (
    EngineServerValues,
    EngineValues,
    GpuChoice,
    GroupValues,
    HostResources,
    ScalingValues,
    ServerTimes,
    Values,
    Variable,
)
from trtspec.deployment.build import default_image
from trtspec.deployment.deployment import SLOW_B_S, limit_for_engines, limit_for_models
from trtspec.deployment.engine_server import server_options
from trtspec.deployment.place import ANY
from trtspec.gateway.ports import OPENAI, Ports
from trtspec.pipeline.build.plan import BuildPlan
from trtspec.pipeline.plan.resolved import EnginePlan
from trtspec.pipeline.steps import write_layers
from trtspec.pipeline.store.store import Chunk, Entry, Store, StoredFile, platform_of
from trtspec.recipe import gpus
from trtspec.recipe.kubernetes import Autoscaling, Claim, EmptyDir, HostPath, Hosts, Kubernetes, Monitoring
from trtspec.recipe.loader import LoadedRecipe
from trtspec.recipe.schema import Draft, Recipe
from trtspec.serving.executors.draft_logits import most_bytes
from trtspec.serving.executors.validation import limits_of

_LONGEST_NAME = 40  # 63 characters, less the longest suffix of an object's name
_UNITS = {"": 1, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_UNITS |= {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
IMAGE_S = 900
"""The seconds for a node that must pull the image first."""

TEMPORARY, SHARED_FOLDER = PurePosixPath("/tmp"), PurePosixPath("/dev/shm")  # noqa: S108
"""All that a pod writes to, beside the volume of its engines: each can be an emptyDir."""

RECIPE = PurePosixPath("/etc/trtspec/recipe/recipe.yaml")
"""The recipe as the build was made from it."""

MODELS = PurePosixPath("/models")
"""The volume of the models that another engine's server loads; a folder of the node is at its own path
instead.
"""

PORTS = Ports(openai=OPENAI)

STARTUP_S = 5
"""The seconds between two looks at a server that loads its engines."""

_START_S = 30
_FILES = PurePosixPath("/etc/trtspec/launch")

# Estimates, rather too large: first for the API and the engine, or Triton and the coordinator, then for the
# CUDA context, NCCL and pinned memory of each rank.
_BASE, _OF_A_RANK = 6 * GIB, 4 * GIB
_CPUS, _CPUS_OF_A_RANK = 4, 2
_UNPACKED = GIB  # the disk for unpacked files and logs in /tmp
# For a cache of the torch backend: slots take more than they hold, and the cache gets half of the free
# memory.
_AHEAD, _OF_FREE = 1.5, 2

_SHARED = GIB  # the memory that PyTorch's ranks share
_COMPILED = 4 * GIB  # the disk for compiled kernels and logs


@dataclass(frozen=True, slots=True)
class PodValues:
    """The values of a deployment that follow from what its pods run; either `engines` or `server` is set."""

    image: str
    model_name: str
    digest: str
    volume: EmptyDir | HostPath | Claim
    resources: HostResources
    times: ServerTimes
    monitoring: Monitoring
    engines: EngineValues | None = None
    """The values of engines that a store has."""
    server: EngineServerValues | None = None
    """The values of another engine's server."""


def derive(loaded: LoadedRecipe, pods: PodValues, namespace: str | None) -> Values:
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
        image=pods.image,
        image_pull_secrets=tuple(options.secrets.image_pull),
        model_name=pods.model_name,
        digest=pods.digest,
        engines=pods.engines,
        server=pods.server,
        group=_group(recipe, options.hosts) if options.hosts else None,
        kserve=options.form == "kserve",
        replicas=options.replicas,
        scaling=_scaling(options.autoscaling) if options.autoscaling else None,
        max_surge=options.max_surge,
        max_unavailable=0 if options.max_surge else 1,
        volume=pods.volume,
        gpu=gpu_choice(recipe),
        resources=pods.resources,
        times=pods.times,
        node_selector=options.node_selector,
        gpu_labels=options.gpu_labels,
        tolerations=tuple(options.tolerations),
        runtime_class=options.runtime_class,
        priority_class=options.priority_class,
        service_account=options.service_account,
        api_keys_secret=options.secrets.api_keys,
        network_policy=options.network_policy,
        egress_ports=tuple(options.egress_ports),
        monitoring=pods.monitoring,
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
    progress_s = math.ceil(pull_s) + failures * STARTUP_S
    return ServerTimes(grace_s=options.grace_seconds, startup_failures=failures, progress_s=progress_s)


def gib(size: float) -> str:
    """Returns bytes as a Kubernetes quantity, rounded up."""
    return f"{math.ceil(size / GIB)}Gi"


def bytes_of(quantity: str) -> float:
    """Returns the bytes of a quantity in the form that recipes use."""
    number = quantity.rstrip(string.ascii_letters)
    return float(number) * _UNITS[quantity[len(number) :]]


def startup_failures(entry: Entry) -> int:
    """Returns how often the startup probe of engines may fail before it gives up.

    It does after `trtspec deploy` does, which then ends by itself and says why.
    """
    loading = limit_for_engines(file.size for name, file in entry.files.items() if "/engine/" in name)
    return math.ceil((loading.seconds + _START_S) / STARTUP_S)


def startup_failures_of_server(launch: ServerLaunch) -> int:
    """Returns how often the startup probe of another engine's server may fail before it gives up."""
    return math.ceil(limit_for_models(launch).seconds / STARTUP_S)


def server_arguments(launch: ServerLaunch, grace_s: int) -> tuple[str, ...]:
    """Returns another engine's server's arguments, in which Kubernetes is to replace no variables."""
    found = server_options(launch, _FILES, ANY, OPENAI, grace_s)
    return tuple(word.replace("$(", "$$(") for word in found)


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


def planned_build(made: BuildPlan) -> StoredBuild:
    """Returns the build that a plan would put into a store, which has no content yet; pure."""
    recipe, release = made.resolved.loaded.recipe, made.resolved.release
    roles = runner_of(recipe).engines(recipe)
    engines = {role: _planned_engine(made.resolved.engines[role]) for role in roles}
    sizes = {f"{role}/engine/rank0": engine.weights for role, engine in engines.items()}
    files = {name: StoredFile("", (Chunk("", size),)) for name, size in sizes.items()}
    platform = platform_of(recipe.hardware.gpu, release)
    return StoredBuild(Entry("pair", recipe.name, platform, "", "", files, (), {}), engines)


def _planned_engine(plan: EnginePlan) -> BuildEngine:
    source, options, ranks = plan.model.source, plan.options, plan.checkpoint.mapping.world_size
    heads, drafts = source.num_key_value_heads * source.head_size, options.max_draft_len
    # As `limits_of` reads it of an engine that verifies drafts of others, in float32.
    verifies = drafts and plan.engine_draft is None and plan.runner.rank_suffix == ".engine"
    logits = options.max_batch_size * drafts * math.ceil(source.vocab_size / ranks) * ranks * 4
    return BuildEngine(
        ranks=ranks,
        weights=sum(rank_sizes(source, plan.checkpoint, plan.engine_draft)),
        kv_per_token=2 * source.num_hidden_layers * heads * (4 if plan.checkpoint.dtype == "float32" else 2),
        max_batch_size=options.max_batch_size,
        max_seq_len=options.max_seq_len,
        draft_logits=logits if verifies else 0,
    )


def from_build(recipe: Recipe, text: str, build: StoredBuild, store: str, version: str) -> PodValues:
    """Returns the values of the pods of a build; `text` is its text, and `store` the URL that pods use."""
    options, entry = recipe.kubernetes, build.entry
    return PodValues(
        image=options.image or default_image(recipe, version),
        model_name=recipe.serving.triton_name,
        digest=entry.digest,
        volume=volume_of(options, entry.size),
        resources=_resources_of_engines(recipe, build),
        times=server_times(options, startup_failures(entry), pull_s=IMAGE_S + entry.size / SLOW_B_S),
        monitoring=options.monitoring,
        engines=EngineValues(
            recipe=text, store=store, store_secret=options.secrets.store, platform=entry.platform.folder
        ),
    )


def _resources_of_engines(recipe: Recipe, build: StoredBuild) -> HostResources:
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
        disk=_UNPACKED,
        weights=build.entry.size,
        on_cpu=any(is_on_cpu.values()),
    )


def from_launch(loaded: LoadedRecipe, launch: ServerLaunch) -> PodValues:
    """Returns the values of the pods of a launch configuration.

    Raises RecipeError for a key that such a server does not support on a cluster, and for models that its
    pods would not see.
    """
    if findings := list(_findings(loaded, launch)):
        raise RecipeError(loaded.path, findings)
    recipe, options = loaded.recipe, loaded.recipe.kubernetes
    watched = options.monitoring.pod_monitor and launch.metrics_path is not None
    return PodValues(
        image=options.image or launch.image,
        model_name=launch.served_model_name,
        digest=digest_of(launch.to_json()),
        volume=volume_of(options, launch.weights),
        resources=_resources_of_server(recipe, launch),
        times=server_times(options, startup_failures_of_server(launch), pull_s=IMAGE_S),
        # The dashboard needs the metrics of trtspec's own coordinator.
        monitoring=options.monitoring.model_copy(
            update={
                "pod_monitor": watched,
                "rules": watched and options.monitoring.rules,
                "dashboard": False,
            }
        ),
        server=EngineServerValues(
            command=launch.program,
            arguments=server_arguments(launch, options.grace_seconds),
            environment=tuple(Variable(name=name, value=text) for name, text in launch.environment.items()),
            files=dict(launch.files),
            hub=len(launch.models) < len(recipe.models),
            hub_secret=options.secrets.hub,
            key_variable=backend_named(launch.backend).key_variable,
            metrics_path=launch.metrics_path or "/metrics",
        ),
    )


def _resources_of_server(recipe: Recipe, launch: ServerLaunch) -> HostResources:
    """Returns the host's resources that a server takes. Weights pass through its memory to a GPU."""
    copies, on_cpu = runner_of(recipe).data_ranks(recipe.engine.extra_args), recipe.hardware.gpu == gpus.NONE
    ranks = recipe.target.parallel.ranks * copies
    return host_resources(
        recipe,
        cpus=_CPUS + _CPUS_OF_A_RANK * ranks,
        memory=_BASE + launch.weights + launch.kv_bytes + (0 if on_cpu else _OF_A_RANK * ranks),
        shared=_SHARED * (1 + ranks),
        disk=_COMPILED,
        weights=launch.weights,
        on_cpu=on_cpu,
    )


def _findings(loaded: LoadedRecipe, launch: ServerLaunch) -> Iterator[Finding]:
    recipe, options = loaded.recipe, loaded.recipe.kubernetes
    for found in runner_of(recipe).lacking_on_clusters(recipe):
        yield loaded.problem(found.subject, found.problem, found.repair)
    if recipe.serving.layout:
        problem = "vLLM inside Triton cannot be deployed on a cluster; vLLM's own server can"
        yield loaded.problem("serving.layout", problem, "remove this line")
    backend = backend_named(launch.backend)
    if options.secrets.api_keys and backend.key_variable is None:
        problem = (
            f"{backend.title} takes its key only on the command line, which every user of a node can read"
        )
        repair = "remove this line, and put a proxy that asks for keys in front of it"
        yield loaded.problem("kubernetes.secrets.api_keys", problem, repair)
    yield from _unseen(loaded, launch)


def _unseen(loaded: LoadedRecipe, launch: ServerLaunch) -> Iterator[Finding]:
    """Yields problems for models in folders that no volume of the pods has at the same path."""
    volume = loaded.recipe.kubernetes.cache
    places = f"below {MODELS} on a claim of kubernetes.cache, or below the path of a host_path"
    locations = loaded.locations
    named = {str(location.absolute()) for location in locations.values() if isinstance(location, Path)}
    for role, location in locations.items():
        model = loaded.recipe.models[role]
        if isinstance(model, Draft) and not named.issuperset(launch.models):
            key = "draft.layers_of_target" if model.layers_of_target else "draft.model"
            problem = "the build makes this model on this machine, and pods do not see it"
            made = f"copy the build's {write_layers.OUTPUT} to a folder {places}"
            yield loaded.problem(key, problem, f"{made}, and name that as draft.model")
        elif isinstance(location, Path) and not _is_on(volume, PurePosixPath(location.absolute())):
            problem = f"{location} is a folder of this machine, which pods do not see"
            yield loaded.problem(f"{role}.model", problem, f"name a model of the Hub, or a folder {places}")


def _is_on(volume: EmptyDir | HostPath | Claim, folder: PurePosixPath) -> bool:
    if isinstance(volume, HostPath):
        return PurePosixPath(volume.path) in folder.parents
    # A new claim is empty.
    return isinstance(volume, Claim) and volume.name is not None and MODELS in folder.parents
