"""Everything that the objects of a deployment are made of.

The functions of `rendering/` place these values and compute nothing, so that whatever else makes manifests of
a deployment, such as a Helm chart, is made by the same functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trtspec.deploy.pod import Probe
from trtspec.recipe.kubernetes import Monitoring, Volume


@dataclass(frozen=True, slots=True)
class GpuChoice:
    """The nodes that an engine loads on, by the labels of NVIDIA's GPU feature discovery.

    `product` is the value of `nvidia.com/gpu.product`, and `compute_major` that of
    `nvidia.com/gpu.compute.major`; `count` GPUs of one host are asked for.
    """

    product: str
    compute_major: str
    count: int


@dataclass(frozen=True, slots=True)
class HostResources:
    """What a server takes of its host, in Kubernetes' quantities; `shared_memory` is part of `memory`.

    `cpu_limit` is None where a server may use what its neighbours leave.
    """

    cpu: str
    cpu_limit: str | None
    memory: str
    shared_memory: str


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of a server's life.

    It may load its engines until `startup` has failed as often as it says, and a whole update may take
    `progress_s`. `pre_stop_s` seconds after the end of a pod was announced it is told to stop, and killed
    `termination_s` after the announcement.
    """

    startup: Probe
    progress_s: int
    pre_stop_s: int
    termination_s: int


@dataclass(frozen=True, slots=True)
class Values:
    """One deployment: a build of a store, served by pods.

    `recipe` is the text of the recipe, which the ConfigMap `recipe_map` has, and `digest` the entry of the
    build in the store. `pull` and `serve` are the arguments of the two containers. `gpu` is None where all
    engines run on the CPU.
    `replicas` is None where an autoscaler has their number. Of the names of Secrets and classes None are not
    used.
    """

    name: str
    namespace: str | None
    version: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    image: str
    image_pull_secrets: tuple[str, ...]
    recipe: str
    recipe_map: str
    model_name: str
    digest: str
    pull: tuple[str, ...]
    serve: tuple[str, ...]
    replicas: int | None
    max_surge: int
    max_unavailable: int
    volume: Volume
    gpu: GpuChoice | None
    resources: HostResources
    times: Times
    node_selector: Mapping[str, str]
    tolerations: tuple[str, ...]
    runtime_class: str | None
    priority_class: str | None
    service_account: str
    store_secret: str | None
    api_keys_secret: str | None
    monitoring: Monitoring
