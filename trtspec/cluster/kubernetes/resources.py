"""Lists the kinds of objects that trtspec makes or reads in a cluster, with their API paths and labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# The labels of objects and pods are those that Kubernetes recommends ("Recommended Labels").
NAME, INSTANCE = "app.kubernetes.io/name", "app.kubernetes.io/instance"
COMPONENT = "app.kubernetes.io/component"
MANAGED_BY = "app.kubernetes.io/managed-by"

OURS = {NAME: "trtspec", MANAGED_BY: "Helm"}
"""The labels of every object of the chart."""


def of_instance(name: str) -> dict[str, str]:
    """Returns the labels of all objects and pods of a deployment."""
    return {**OURS, INSTANCE: name}


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind of object."""

    api_version: str
    kind: str
    plural: str
    owner: str | None = None
    """The project that defines the kind; None for Kubernetes itself."""

    def path(self, namespace: str, name: str = "") -> str:
        """Returns the API path of one object, or of all in the namespace."""
        root = "/apis" if "/" in self.api_version else "/api"
        tail = f"/{name}" if name else ""
        return f"{root}/{self.api_version}/namespaces/{namespace}/{self.plural}{tail}"


_OPERATOR = "the Prometheus Operator"
POD = Resource("v1", "Pod", "pods")
EVENT = Resource("v1", "Event", "events")
CONFIG_MAP = Resource("v1", "ConfigMap", "configmaps")
VOLUME_CLAIM = Resource("v1", "PersistentVolumeClaim", "persistentvolumeclaims")
JOB = Resource("batch/v1", "Job", "jobs")
DEPLOYMENT = Resource("apps/v1", "Deployment", "deployments")
LEADER_WORKER_SET = Resource(
    "leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", "leaderworkersets", "LeaderWorkerSet"
)
INFERENCE_SERVICE = Resource("serving.kserve.io/v1beta1", "InferenceService", "inferenceservices", "KServe")

MONITORS = (
    Resource("monitoring.coreos.com/v1", "PodMonitor", "podmonitors", _OPERATOR),
    Resource("monitoring.coreos.com/v1", "PrometheusRule", "prometheusrules", _OPERATOR),
)
"""Optional kinds: the chart leaves them out if the cluster lacks them."""

SCALED_OBJECT = Resource("keda.sh/v1alpha1", "ScaledObject", "scaledobjects", "KEDA")
INFERENCE_POOL = Resource(
    "inference.networking.k8s.io/v1", "InferencePool", "inferencepools", "the Gateway API Inference Extension"
)
HTTP_ROUTE = Resource("gateway.networking.k8s.io/v1", "HTTPRoute", "httproutes", "the Gateway API")

_APPLIED = (
    CONFIG_MAP,
    Resource("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies"),
    JOB,
    DEPLOYMENT,
    LEADER_WORKER_SET,
    INFERENCE_SERVICE,
)
_BY_KIND = {(each.api_version, each.kind): each for each in _APPLIED}


@dataclass(frozen=True, slots=True)
class Ref:
    """One object by its kind and name, in the words of kubectl: `deployment/llama`."""

    resource: Resource
    name: str

    def __str__(self) -> str:
        return f"{self.resource.kind.lower()}/{self.name}"


def ref_of(manifest: Mapping[str, Any]) -> Ref:
    """Returns the reference to an object; raises KeyError for a kind that trtspec does not make."""
    return Ref(_BY_KIND[manifest["apiVersion"], manifest["kind"]], manifest["metadata"]["name"])
