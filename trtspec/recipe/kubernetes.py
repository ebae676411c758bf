"""Defines the recipe's section for Kubernetes, by which `trtspec kubernetes deploy` serves a build.

What the section leaves out follows from the recipe and from what the store has of its build; the section
changes nothing in what is built. Names are those of Kubernetes.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from trtspec.base.section import Section, with_kind
from trtspec.recipe.section import Positive, Text

LABEL = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"
SERVICE = r"^[a-z]([-a-z0-9]{0,38}[a-z0-9])?$"
NAME = r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$"
HOST = r"^(\*\.)?[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$"
KEY = r"^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
VALUE = r"^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$"
QUANTITY = r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|Ki|Mi|Gi|Ti)?$"
FOLDER = r"^(/[A-Za-z0-9._-]+)+$"

LabelName = Annotated[str, Field(pattern=LABEL)]
ServiceName = Annotated[str, Field(pattern=SERVICE)]
Name = Annotated[str, Field(pattern=NAME)]
HostName = Annotated[str, Field(pattern=HOST)]
LabelKey = Annotated[str, Field(pattern=KEY)]
LabelValue = Annotated[str, Field(pattern=VALUE)]
Quantity = Annotated[str, Field(pattern=QUANTITY)]
Form = Literal["deployment", "kserve"]
Port = Annotated[int, Field(ge=1, le=65535)]
Seconds = Annotated[int, Field(ge=0, le=86_400)]
Fraction = Annotated[int | float, Field(ge=0.01, le=1, allow_inf_nan=False)]

_IMAGE = re.compile(
    r"[^\s:@]+(:\d+/[^\s:@]+)?(:(?P<tag>[\w][\w.-]{0,127}))?(@sha256:(?P<digest>[0-9a-f]{64}))?"
)


def check_image(image: str) -> str:
    """Returns the name of an image with a tag or a digest; raises ValueError(problem, repair)."""
    found = _IMAGE.fullmatch(image)
    if found is None:
        raise ValueError(f"found {image!r:.80}, which is no image", "write registry/name:tag")
    if found["digest"] is None and found["tag"] in (None, "latest"):
        raise ValueError(f"{image} is another image every day", "name a tag other than latest, or a digest")
    return image


Image = Annotated[str, AfterValidator(check_image)]


class EmptyDir(Section):
    """A folder on the node that exists as long as its pod: each pod pulls the engines for itself."""

    kind: Literal["empty_dir"] = Field(default="empty_dir", description="The name of this kind of volume.")


class HostPath(Section):
    """A folder of the node, which all its pods share: a node pulls the engines once."""

    kind: Literal["host_path"] = Field(description="The name of this kind of volume.")
    path: Annotated[str, Field(pattern=FOLDER)] = Field(
        default="/var/lib/trtspec",
        description="The folder; it must be there on every node, and belong to user 1000.",
    )


class Claim(Section):
    """A PersistentVolumeClaim that all pods share: the cluster pulls the engines once."""

    kind: Literal["claim"] = Field(description="The name of this kind of volume.")
    name: Name | None = Field(default=None, description="An existing claim; if left out, one is made.")
    storage_class: Name | None = Field(
        default=None,
        description="The storage class of the claim that is made; it must allow ReadWriteMany.",
    )
    size: Quantity | None = Field(
        default=None,
        description="The size of the claim that is made; if left out, twice the size of the build.",
    )


Volume = Annotated[
    EmptyDir | HostPath | Claim,
    Field(discriminator="kind"),
    BeforeValidator(
        with_kind,
        json_schema_input_type=Literal["empty_dir", "host_path", "claim"] | EmptyDir | HostPath | Claim,
    ),
]


class OwnClaim(Section):
    """A PersistentVolumeClaim that is there already, ReadWriteMany, which the pods of all nodes share."""

    kind: Literal["claim"] = Field(description="The name of this kind of volume.")
    name: Name = Field(description="The claim.")


WorkVolume = Annotated[
    EmptyDir | HostPath | OwnClaim,
    Field(discriminator="kind"),
    BeforeValidator(
        with_kind, json_schema_input_type=Literal["empty_dir", "host_path"] | EmptyDir | HostPath | OwnClaim
    ),
]


class BuildJobSection(Section):
    """The requests of the jobs of `trtspec build --on kubernetes`, beside those of servers."""

    queue: LabelName | None = Field(
        default=None, description="A LocalQueue of Kueue: jobs then wait until it admits them."
    )
    volume: WorkVolume = Field(
        default=EmptyDir(),
        description="The volume at /scratch for models, checkpoints and engines. An interrupted job "
        "continues from a host_path or a claim. With a claim, jobs without a GPU do what "
        "needs none.",
    )
    cpu: Quantity = Field(default="4", description="Processors of a job.")
    memory: Quantity | None = Field(
        default=None, description="Memory of a job; if left out, it follows from the model."
    )
    disk: Quantity | None = Field(
        default=None,
        description="Disk of the node, with volume: empty_dir; if left out, it follows from the model.",
    )
    limit_hours: Annotated[int, Field(ge=1, le=1000)] = Field(
        default=24, description="The longest time of a job; the next call continues it."
    )
    secret: Name | None = Field(
        default=None,
        description="A Secret whose keys are variables for writing the store, and HF_TOKEN for gated models;"
        " secrets.store if left out.",
    )
    priority_class: Name | None = Field(
        default=None, description="PriorityClass of the jobs; if left out, that of the servers."
    )


class Autoscaling(Section):
    """Autoscaling of the replicas by the coordinators' own gauges."""

    by: Literal["hpa", "keda"] = Field(
        default="hpa",
        description="hpa: a HorizontalPodAutoscaler on metrics of prometheus-adapter; keda: a ScaledObject.",
    )
    max_replicas: Positive = Field(
        description="Largest number of servers; kubernetes.replicas is the smallest."
    )
    places: Fraction = Field(
        default=0.8,
        description="The share of the servers' slots that running and waiting completions should take.",
    )
    kv_cache: Fraction = Field(default=0.85, description="The share of the KV caches that should be in use.")
    prometheus: Text | None = Field(
        default=None, description="The URL of Prometheus, for keda: http://prometheus.monitoring:9090."
    )


class Secrets(Section):
    """Names of Secrets; no manifest contains their content."""

    store: Name | None = Field(
        default=None,
        description="A Secret whose keys are variables for reading the store: AWS_ACCESS_KEY_ID and so on.",
    )
    api_keys: Name | None = Field(
        default=None,
        description="A Secret with the key `keys`: keys of OpenAI's API, one a line; for vLLM a single "
        "one, without a line break after it.",
    )
    hub: Name | None = Field(
        default=None,
        description="A Secret whose keys are variables for the Hub, such as HF_TOKEN: vLLM, SGLang and "
        "trtllm-serve load gated models with it.",
    )
    image_pull: list[Name] = Field(default=[], description="Secrets for pulling images.")


class ResourcesSection(Section):
    """The resources that a pod requests, in Kubernetes' quantities; those left out follow from the build."""

    cpu: Quantity | None = Field(default=None, description="Processors that the server requests.")
    memory: Quantity | None = Field(
        default=None, description="Host memory that the server requests; also its limit."
    )
    shared_memory: Quantity | None = Field(
        default=None, description="Size of /dev/shm, a part of that memory."
    )
    disk: Quantity | None = Field(default=None, description="Disk of the node, for what its pods keep there.")


class Monitoring(Section):
    """The objects of the Prometheus operator and Grafana that a deployment gets."""

    pod_monitor: bool = Field(default=True, description="A PodMonitor of the metrics.")
    rules: bool = Field(
        default=True, description="A PrometheusRule with the alerts, and what autoscaling reads."
    )
    dashboard: bool = Field(default=True, description="The dashboard, as a ConfigMap for Grafana's sidecar.")
    labels: dict[LabelKey, LabelValue] = Field(
        default={}, description="Labels of these objects, by which operators choose: {release: prometheus}."
    )


class Gateway(Section):
    """A route of the Gateway API to OpenAI's API."""

    name: Name = Field(description="The Gateway.")
    namespace: LabelName | None = Field(
        default=None, description="The namespace of the Gateway, if it is another one."
    )
    hostnames: list[HostName] = Field(
        default=[], description="The host names of the route, or *.example.com; all if left out."
    )
    endpoint_picker: Name | None = Field(
        default=None,
        description="The Service of an endpoint picker of the Gateway API Inference Extension: the route then"
        " leads to an InferencePool. It must read the metrics on port 8002, or on 9000 for vLLM, "
        "SGLang and trtllm-serve.",
    )


class Hosts(Section):
    """Engines that span hosts: a group of pods for each server, one of which leads.

    The image has its own way to start their ranks, because trtspec deploy keeps to one host.
    """

    gpus_per_host: Positive = Field(description="GPUs of one host; hardware.count must be a multiple of it.")
    leader: Annotated[list[Text], Field(min_length=1)] = Field(
        description="Arguments of the leader's container, which starts the ranks and serves on our ports."
    )
    worker: Annotated[list[Text], Field(min_length=1)] = Field(
        description="Arguments of the other hosts' containers, on which ranks are started."
    )


class Kubernetes(Section):
    """The options of `trtspec kubernetes deploy`."""

    form: Form = Field(
        default="deployment",
        description="deployment: objects of Kubernetes alone; kserve: ServingRuntime and InferenceService.",
    )
    name: ServiceName | None = Field(
        default=None,
        description="Name of the objects; the recipe's, with dashes for dots, if left out.",
    )
    namespace: LabelName | None = Field(
        default=None, description="Namespace; that of the kubectl context if left out."
    )
    image: Image | None = Field(
        default=None,
        description="NVIDIA's image of the release with trtspec in it, in your registry; for vLLM, SGLang "
        "and trtllm-serve the vendor's if left out.",
    )
    store: Text | None = Field(default=None, description="URL of the store, as the pods reach it.")
    replicas: Positive = Field(
        default=1, description="The number of servers; with autoscaling, the smallest number."
    )
    max_surge: Annotated[int, Field(ge=0, le=1000)] = Field(
        default=1,
        description="Extra servers during an update; 0 needs no spare GPU, but one server at a time is "
        "missing.",
    )
    autoscaling: Autoscaling | None = Field(default=None, description="Autoscaling of the replicas.")
    cache: Volume = Field(
        default=EmptyDir(),
        description="The volume for engines, or for the models that vLLM, SGLang or trtllm-serve load: "
        "its kind, or a section.",
    )
    grace_seconds: Seconds = Field(
        default=60, description="The time that requests have to end when a pod stops."
    )
    resources: ResourcesSection = Field(
        default=ResourcesSection(), description="Processors and memory of a server."
    )
    gpu_product: LabelValue | None = Field(
        default=None,
        description="The value of nvidia.com/gpu.product on your nodes, if not NVIDIA's name with dashes: "
        "H200.",
    )
    gpu_labels: dict[LabelKey, LabelValue] | Literal[False] | None = Field(
        default=None,
        description="Labels of the nodes that fit, instead of those of NVIDIA's GPU feature discovery:"
        " {cloud.google.com/gke-accelerator: nvidia-h100-80gb}; false if nodes have none.",
    )
    node_selector: dict[LabelKey, LabelValue] = Field(
        default={}, description="Labels that a node must have, besides those of the GPU."
    )
    tolerations: list[LabelKey] = Field(
        default=[], description="Keys of taints that the pods tolerate, besides nvidia.com/gpu."
    )
    runtime_class: Name | None = Field(
        default=None, description="RuntimeClass of the pods, if GPUs need one: nvidia."
    )
    priority_class: Name | None = Field(default=None, description="PriorityClass of the pods.")
    service_account: Name | None = Field(
        default=None, description="An existing ServiceAccount; if left out, one is made."
    )
    secrets: Secrets = Field(default=Secrets(), description="Names of Secrets.")
    labels: dict[LabelKey, LabelValue] = Field(default={}, description="Labels of every object.")
    annotations: dict[LabelKey, Text] = Field(default={}, description="Annotations of the pods.")
    hosts: Hosts | None = Field(
        default=None, description="For engines that span hosts: a LeaderWorkerSet, with commands of your own."
    )
    network_policy: bool = Field(
        default=True,
        description="Whether a NetworkPolicy allows pods only their ports, DNS and egress_ports.",
    )
    egress_ports: list[Port] = Field(
        default=[443],
        description="TCP ports that a pod may connect to: the store's, and 80 if a cloud's metadata "
        "service gives the pod its role.",
    )
    monitoring: Monitoring = Field(default=Monitoring(), description="Metrics, alerts and the dashboard.")
    gateway: Gateway | None = Field(default=None, description="A route of the Gateway API.")
    build: BuildJobSection = Field(
        default=BuildJobSection(), description="The jobs of trtspec build --on kubernetes."
    )
