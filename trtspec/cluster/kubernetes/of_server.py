"""Derives the values of a deployment of another engine's server from its launch; pure."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from trtspec.backends.launch import ServerLaunch
from trtspec.backends.recipes import runner_of
from trtspec.backends.table import backend_named
from trtspec.base.digest import digest_of
from trtspec.base.errors import RecipeError
from trtspec.base.findings import Finding
from trtspec.base.units import GIB
from trtspec.cluster.kubernetes.deriving import IMAGE_S, ServedRecipe, host_resources, server_times, volume_of
from trtspec.cluster.kubernetes.values import HostResources, Variable, VendorServerValues
from trtspec.deployment import pod
from trtspec.pipeline.steps import write_layers
from trtspec.recipe import gpus
from trtspec.recipe.kubernetes import Claim, EmptyDir, HostPath
from trtspec.recipe.loader import LoadedRecipe
from trtspec.recipe.schema import Draft, Recipe

# Estimates, rather too large: first for the API and the engine, then for the CUDA context, NCCL and pinned
# memory of each rank. PyTorch's ranks share memory.
_BASE, _OF_A_RANK, _SHARED = 6 * GIB, 4 * GIB, GIB
_CPUS, _CPUS_OF_A_RANK = 4, 2
_TEMPORARY = 4 * GIB  # the disk for compiled kernels and logs


def of_server(loaded: LoadedRecipe, launch: ServerLaunch) -> ServedRecipe:
    """Returns the served recipe of a launch configuration.

    Raises RecipeError for a key that such a server does not support on a cluster, and for models that its
    pods would not see.
    """
    if findings := list(_findings(loaded, launch)):
        raise RecipeError(loaded.path, findings)
    recipe, options = loaded.recipe, loaded.recipe.kubernetes
    watched = options.monitoring.pod_monitor and launch.metrics_path is not None
    return ServedRecipe(
        image=options.image or launch.image,
        model_name=launch.served_model_name,
        digest=digest_of(launch.to_json()),
        volume=volume_of(options, launch.weights),
        resources=_resources(recipe, launch),
        times=server_times(options, pod.startup_failures_of_server(launch), pull_s=IMAGE_S),
        # Alerts and the dashboard need the metrics of trtspec's own coordinator.
        monitoring=options.monitoring.model_copy(
            update={"pod_monitor": watched, "rules": False, "dashboard": False}
        ),
        server=VendorServerValues(
            command=launch.program,
            arguments=pod.server_arguments(launch, options.grace_seconds),
            environment=tuple(Variable(name=name, value=text) for name, text in launch.environment.items()),
            files=dict(launch.files),
            hub=len(launch.models) < len(recipe.models),
            hub_secret=options.secrets.hub,
            key_variable=backend_named(launch.backend).key_variable,
            metrics_path=launch.metrics_path or "/metrics",
        ),
    )


def _resources(recipe: Recipe, launch: ServerLaunch) -> HostResources:
    """Returns the host's resources that a server takes. Weights pass through its memory to a GPU."""
    copies, on_cpu = runner_of(recipe).data_ranks(recipe.engine.extra_args), recipe.hardware.gpu == gpus.NONE
    ranks = recipe.target.parallel.ranks * copies
    return host_resources(
        recipe,
        cpus=_CPUS + _CPUS_OF_A_RANK * ranks,
        memory=_BASE + launch.weights + launch.kv_bytes + (0 if on_cpu else _OF_A_RANK * ranks),
        shared=_SHARED * (1 + ranks),
        disk=_TEMPORARY,
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
    places = f"below {pod.MODELS} on a claim of kubernetes.cache, or below the path of a host_path"
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
    return isinstance(volume, Claim) and volume.name is not None and pod.MODELS in folder.parents
