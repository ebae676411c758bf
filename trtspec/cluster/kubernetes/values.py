"""The values of the Helm chart, `chart/`, which is kept by hand."""

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
    """The nodes that an engine loads on, by the labels of NVIDIA's GPU feature discovery."""

    product: LabelValue = Field(description="What nvidia.com/gpu.product is on a node that fits.")
    compute_major: LabelValue = Field(description="What nvidia.com/gpu.compute.major is on it.")
    count: Positive = Field(description="How many GPUs of one host a server takes.")


class HostResources(Section):
    """The resources that a server takes of its host, in Kubernetes' quantities."""

    cpu: Quantity = Field(description="Processors of the server.")
    cpu_limit: Quantity | None = Field(
        description="The most processors; null where a server may use what its neighbours leave."
    )
    memory: Quantity = Field(description="Memory of the host; also the limit.")
    shared_memory: Quantity = Field(description="Size of /dev/shm, of that memory.")
    disk: Quantity = Field(
        description="Disk of the node: engines in an empty_dir, and what is written to /tmp."
    )


class ServerTimes(Section):
    """Times of a server."""

    grace_s: Seconds = Field(description="What requests in flight have to end in, in seconds.")
    startup_failures: Positive = Field(
        description="How often a server that is looked at every 5 seconds may not be ready yet."
    )
    progress_s: Positive = Field(
        description="What the next server of an update may take until it is ready, in seconds."
    )


class ScalingValues(Section):
    """Servers that follow the load, by the averages of two numbers that each of them tells."""

    max_replicas: Positive = Field(description="The most servers.")
    places: Quantity = Field(
        description='Completions at work and waiting, for each place of a server: "0.8".'
    )
    kv_cache: Quantity = Field(description='The share of the KV cache in use: "0.85".')
    prometheus: Text | None = Field(
        description="The URL that KEDA asks; null for Kubernetes' own autoscaler and prometheus-adapter."
    )


class GroupValues(Section):
    """Hosts that one server spans."""

    size: Positive = Field(description="How many hosts.")
    leader: tuple[Text, ...] = Field(description="Arguments of the container of the first host.")
    worker: tuple[Text, ...] = Field(description="Arguments of the containers of the others.")


class EngineValues(Section):
    """Engines of a store, which each pod pulls, and trtspec serves."""

    recipe: str = Field(description="The text of the recipe that was built.")
    store: Text = Field(description="URL of the store, as the pods reach it.")
    store_secret: Name | None = Field(
        description="A Secret whose keys become variables for reading the store: AWS_ACCESS_KEY_ID and so on."
    )
    platform: Text = Field(description="What loads the engines, as a folder of the store and of the volume.")


class Variable(Section):
    """A variable of a server's environment."""

    name: Text = Field(description="Its name.")
    value: Text = Field(description="Its value.")


class VendorServerValues(Section):
    """A server of others in its vendor's image, which loads the models itself."""

    command: tuple[Text, ...] = Field(description="The program, in place of the image's own entry point.")
    arguments: tuple[Text, ...] = Field(description="Its arguments; $$( stands for $(.")
    environment: tuple[Variable, ...] = Field(description="Variables beside those that every server has.")
    files: dict[str, str] = Field(description="Files that the arguments name, below /etc/trtspec/launch.")
    hub: bool = Field(
        description="Whether it loads models of the Hub, which the volume keeps; else it only reads there."
    )
    hub_secret: Name | None = Field(
        description="A Secret whose keys become variables for the Hub, whose models may be gated: HF_TOKEN."
    )
    key_variable: Text | None = Field(
        description="The variable that has the key of OpenAI's API, of apiKeysSecret; null if none has."
    )
    metrics_path: Text = Field(description="Where it tells its metrics, for a PodMonitor.")


class Values(Section):
    """One deployment: what is served, and the pods that serve it."""

    name: LabelName = Field(description="Name of the objects.")
    namespace: LabelName | None = Field(description="Their namespace; that of the client if left out.")
    labels: dict[LabelKey, LabelValue] = Field(description="Labels of every object.")
    annotations: dict[LabelKey, Text] = Field(description="Annotations of the pods.")
    image: Image = Field(
        description="NVIDIA's image of the release with trtspec in it, or the image of a server of others."
    )
    image_pull_secrets: tuple[Name, ...] = Field(description="Secrets with which images are pulled.")
    model_name: Text = Field(description="The name of the model.")
    digest: Text = Field(
        description="The build: its entry in the store, or what a server of others is started with."
    )
    engines: EngineValues | None = Field(
        description="Engines of a store; null where a server of others serves."
    )
    server: VendorServerValues | None = Field(
        description="A server of others; null where trtspec serves engines."
    )
    group: GroupValues | None = Field(description="The hosts that one server spans; null where it is on one.")
    kserve: bool = Field(description="Whether KServe makes the workload.")
    replicas: Positive = Field(description="Servers; with scaling the fewest.")
    scaling: ScalingValues | None = Field(description="Servers that follow the load.")
    max_surge: Servers = Field(description="Servers beyond replicas during an update.")
    max_unavailable: Servers = Field(
        description="Servers that may be missing during an update: 1 or more where maxSurge is 0."
    )
    volume: EmptyDir | HostPath | Claim = Field(
        discriminator="kind",
        description="Where engines or models are kept: empty_dir, of each pod; host_path, a path of each"
        " node; claim, a PersistentVolumeClaim by its name.",
    )
    gpu: GpuChoice | None = Field(description="The GPUs of a server; null for the CPU.")
    resources: HostResources = Field(description="What a server takes of its host.")
    times: ServerTimes = Field(description="Times of a server.")
    gpu_labels: dict[LabelKey, LabelValue] | Literal[False] | None = Field(
        description="Labels of a node that fits, in place of those of GPU feature discovery; false for none."
    )
    node_selector: dict[LabelKey, LabelValue] = Field(
        description="Labels that a node must have, beside those of the GPU."
    )
    tolerations: tuple[LabelKey, ...] = Field(
        description="Keys of taints that a node may have, beside nvidia.com/gpu."
    )
    runtime_class: Name | None = Field(description="RuntimeClass of the pods, where GPUs need one: nvidia.")
    priority_class: Name | None = Field(description="PriorityClass of the pods.")
    service_account: Name | None = Field(description="An existing ServiceAccount; if left out, one is made.")
    api_keys_secret: Name | None = Field(
        description="A Secret with the key `keys`: keys of OpenAI's API, one a line; of other servers one."
    )
    network_policy: bool = Field(
        description="Whether a NetworkPolicy leaves pods their ports alone, and DNS and egressPorts."
    )
    egress_ports: tuple[Port, ...] = Field(description="TCP ports that a pod may then connect to.")
    monitoring: Monitoring = Field(description="Metrics, alerts and the dashboard.")
    gateway: Gateway | None = Field(description="A route of the Gateway API.")

    @property
    def config_map(self) -> str:
        """The name of the ConfigMap that pods mount, as the chart makes it: another for another content."""
        if self.engines:
            return f"{self.name}-recipe-{_fingerprint(self.engines.recipe)}"
        return f"{self.name}-launch-{_fingerprint(self.digest)}"


def _fingerprint(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


_OF_RELEASE = ("name", "namespace")
"""Fields that a release of Helm has by itself."""


def chart_values(values: Values) -> dict[str, Any]:
    """Returns the chart's values, for a release of the deployment's name in its namespace."""
    return {key: content for key, content in _plain(values).items() if key not in _OF_RELEASE}


def _key(field: str) -> str:
    """Returns a field's key in the chart: `grace_s` is `graceSeconds` there."""
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
