"""Defines the values of the Helm chart in `chart/`, which is written by hand."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from trtspec.base.section import Section
from trtspec.recipe.kubernetes import (
    Claim,
    EmptyDir,
    Gateway,
    HostPath,
    Image,
    LabelKey,
    LabelName,
    LabelValue,
    Monitoring,
    Name,
    Port,
    Quantity,
    Seconds,
)
from trtspec.recipe.section import Positive, Text

Servers = Annotated[int, Field(ge=0, le=1000)]


class GpuChoice(Section):
    """The nodes on which an engine can run, by the labels of NVIDIA's GPU feature discovery."""

    product: LabelValue = Field(description="The value of nvidia.com/gpu.product on a suitable node.")
    compute_major: LabelValue = Field(
        description="The value of nvidia.com/gpu.compute.major on a suitable node."
    )
    count: Positive = Field(description="Number of GPUs of one host that a server takes.")


class HostResources(Section):
    """The host's resources that a server takes, in Kubernetes' quantities."""

    cpu: Quantity = Field(description="Processors that the server requests.")
    cpu_limit: Quantity | None = Field(
        description="Limit of processors; null lets a server use any idle ones."
    )
    memory: Quantity = Field(description="Host memory that the server requests; also its limit.")
    shared_memory: Quantity = Field(description="Size of /dev/shm, a part of that memory.")
    disk: Quantity = Field(description="Disk of the node, for engines in an empty_dir and files in /tmp.")


class ServerTimes(Section):
    """Time limits of a server."""

    grace_s: Seconds = Field(
        description="Seconds in which requests in flight must finish when the server stops."
    )
    startup_failures: Positive = Field(
        description="How many checks may find the server not ready while it starts; there is one every 5 "
        "seconds."
    )
    progress_s: Positive = Field(
        description="Seconds in which the next server of an update must become ready."
    )


class ScalingValues(Section):
    """Autoscaling by the averages of two metrics of the servers."""

    max_replicas: Positive = Field(description="Largest number of servers.")
    places: Quantity = Field(description='Running and waiting completions for each slot of a server: "0.8".')
    kv_cache: Quantity = Field(description='Share of the KV cache in use: "0.85".')
    prometheus: Text | None = Field(
        description="URL of the Prometheus that KEDA asks; null for Kubernetes' own autoscaler with "
        "prometheus-adapter."
    )


class GroupValues(Section):
    """A server that spans several hosts."""

    size: Positive = Field(description="Number of hosts.")
    leader: tuple[Text, ...] = Field(description="Arguments of the container of the first host.")
    worker: tuple[Text, ...] = Field(description="Arguments of the containers of the others.")


class EngineValues(Section):
    """Engines in a store: each pod pulls them, and trtspec serves them."""

    recipe: str = Field(description="The text of the recipe that was built.")
    store: Text = Field(description="URL of the store, as the pods reach it.")
    store_secret: Name | None = Field(
        description="A Secret whose keys become variables for reading the store: AWS_ACCESS_KEY_ID and so on."
    )
    platform: Text = Field(
        description="The platform that loads the engines: the name of a folder in the store and on the "
        "volume."
    )


class Variable(Section):
    """A variable of a server's environment."""

    name: Text = Field(description="Its name.")
    value: Text = Field(description="Its value.")


class EngineServerValues(Section):
    """Another engine's server in its vendor's image. It loads the models itself."""

    command: tuple[Text, ...] = Field(description="The program, instead of the image's own entry point.")
    arguments: tuple[Text, ...] = Field(description="Its arguments; $$( stands for $(.")
    environment: tuple[Variable, ...] = Field(description="Variables besides those that every server has.")
    files: dict[str, str] = Field(description="Files that the arguments name, below /etc/trtspec/launch.")
    hub: bool = Field(
        description="Whether it downloads models of the Hub to the volume; else it only reads the volume."
    )
    hub_secret: Name | None = Field(
        description="A Secret whose keys become variables for the Hub, whose models may be gated: HF_TOKEN."
    )
    key_variable: Text | None = Field(
        description="The variable that gets the key of OpenAI's API from apiKeysSecret; null for no key."
    )
    metrics_path: Text = Field(description="Path of its metrics, for a PodMonitor.")


class Values(Section):
    """One deployment: what is served, and the pods that serve it."""

    name: LabelName = Field(description="Name of the objects.")
    namespace: LabelName | None = Field(description="Namespace of the objects; by default the client's.")
    labels: dict[LabelKey, LabelValue] = Field(description="Labels of every object.")
    annotations: dict[LabelKey, Text] = Field(description="Annotations of the pods.")
    image: Image = Field(
        description="NVIDIA's image of the release with trtspec in it, or another engine's image."
    )
    image_pull_secrets: tuple[Name, ...] = Field(description="Secrets for pulling images.")
    model_name: Text = Field(description="Name of the model.")
    digest: Text = Field(
        description="The build: the digest of its entry in the store, or of another server's launch."
    )
    engines: EngineValues | None = Field(
        description="Engines in a store; null if another engine's server serves."
    )
    server: EngineServerValues | None = Field(
        description="Another engine's server; null if trtspec serves engines."
    )
    group: GroupValues | None = Field(
        description="A server that spans several hosts; null if it runs on one."
    )
    kserve: bool = Field(description="Whether KServe makes the workload.")
    replicas: Positive = Field(description="Number of servers; with scaling, the smallest number.")
    scaling: ScalingValues | None = Field(description="Autoscaling of the servers; null for a fixed number.")
    max_surge: Servers = Field(description="Extra servers during an update.")
    max_unavailable: Servers = Field(
        description="Servers that may be missing during an update: 1 or more where maxSurge is 0."
    )
    volume: EmptyDir | HostPath | Claim = Field(
        discriminator="kind",
        description="Where engines or models are kept: empty_dir for each pod; host_path, a path on each "
        "node; claim, a PersistentVolumeClaim by its name.",
    )
    gpu: GpuChoice | None = Field(description="The GPUs of a server; null for the CPU.")
    resources: HostResources = Field(description="The host's resources that a server takes.")
    times: ServerTimes = Field(description="Time limits of a server.")
    gpu_labels: dict[LabelKey, LabelValue] | Literal[False] | None = Field(
        description="Labels of a suitable node, instead of those of GPU feature discovery; false for none."
    )
    node_selector: dict[LabelKey, LabelValue] = Field(
        description="Labels that a node must have, besides those of the GPU."
    )
    tolerations: tuple[LabelKey, ...] = Field(
        description="Keys of taints that the pods tolerate, besides nvidia.com/gpu."
    )
    runtime_class: Name | None = Field(description="RuntimeClass of the pods, if GPUs need one: nvidia.")
    priority_class: Name | None = Field(description="PriorityClass of the pods.")
    service_account: Name | None = Field(description="An existing ServiceAccount; if left out, one is made.")
    api_keys_secret: Name | None = Field(
        description="A Secret with the key `keys`: keys of OpenAI's API, one per line. Other engines' "
        "servers take one."
    )
    network_policy: bool = Field(
        description="Whether a NetworkPolicy limits pods to their own ports, DNS and egressPorts."
    )
    egress_ports: tuple[Port, ...] = Field(
        description="TCP ports that a pod may connect to under that policy."
    )
    monitoring: Monitoring = Field(description="Metrics, alerts and the dashboard.")
    gateway: Gateway | None = Field(description="A route of the Gateway API.")

    @property
    def config_map(self) -> str:
        """The name of the ConfigMap that the chart makes for pods; it changes with the content."""
        if self.engines:
            return f"{self.name}-recipe-{_fingerprint(self.engines.recipe)}"
        return f"{self.name}-launch-{_fingerprint(self.digest)}"


def _fingerprint(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


_OF_RELEASE = ("name", "namespace")
"""Fields that a release of Helm sets itself."""


def chart_values(values: Values) -> dict[str, Any]:
    """Returns the chart's values; the release has the deployment's name and namespace."""
    return {key: content for key, content in _plain(values).items() if key not in _OF_RELEASE}


def _key(field: str) -> str:
    """Returns the chart's key of a field: `graceSeconds` for `grace_s`."""
    first, *rest = re.sub("_s$", "_seconds", field).split("_")
    return first + "".join(word.capitalize() for word in rest)


def _plain(part: Any) -> Any:
    if isinstance(part, BaseModel):
        return {_key(name): _plain(getattr(part, name)) for name in type(part).model_fields}
    if isinstance(part, Mapping):
        return dict(part)
    if isinstance(part, Sequence) and not isinstance(part, str):
        return [_plain(item) for item in part]
    return part
