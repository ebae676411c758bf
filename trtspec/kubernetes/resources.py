"""The kinds of objects that trtspec makes or looks at in a cluster: where the API server keeps them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind of object; `owner` is the project that brings it to a cluster, None for Kubernetes itself.

    One that is `only_seen_by_others` can be left out where a cluster lacks it: nothing else needs it.
    """

    api_version: str
    kind: str
    plural: str
    owner: str | None = None
    only_seen_by_others: bool = False

    def path(self, namespace: str, name: str = "") -> str:
        """Returns the path of one object at the API server, or of all in the namespace."""
        root = "/apis" if "/" in self.api_version else "/api"
        tail = f"/{name}" if name else ""
        return f"{root}/{self.api_version}/namespaces/{namespace}/{self.plural}{tail}"


_OPERATOR = "the Prometheus Operator"
POD = Resource("v1", "Pod", "pods")
EVENT = Resource("v1", "Event", "events")
CONFIG_MAP = Resource("v1", "ConfigMap", "configmaps")
VOLUME_CLAIM = Resource("v1", "PersistentVolumeClaim", "persistentvolumeclaims")
SERVICE = Resource("v1", "Service", "services")
JOB = Resource("batch/v1", "Job", "jobs")
DEPLOYMENT = Resource("apps/v1", "Deployment", "deployments")
LEADER_WORKER_SET = Resource(
    "leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", "leaderworkersets", "LeaderWorkerSet"
)
INFERENCE_SERVICE = Resource("serving.kserve.io/v1beta1", "InferenceService", "inferenceservices", "KServe")
HTTP_ROUTE = Resource("gateway.networking.k8s.io/v1", "HTTPRoute", "httproutes", "the Gateway API")
ARGO_ROLLOUT = Resource("argoproj.io/v1alpha1", "Rollout", "rollouts", "Argo Rollouts")

AUTOSCALERS = (
    Resource("autoscaling/v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers"),
    Resource("keda.sh/v1alpha1", "ScaledObject", "scaledobjects", "KEDA"),
)
APPLIED = (
    Resource("v1", "ServiceAccount", "serviceaccounts"),
    CONFIG_MAP,
    VOLUME_CLAIM,
    SERVICE,
    Resource("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies"),
    Resource("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets"),
    Resource("serving.kserve.io/v1alpha1", "ServingRuntime", "servingruntimes", "KServe"),
    DEPLOYMENT,
    LEADER_WORKER_SET,
    INFERENCE_SERVICE,
    ARGO_ROLLOUT,
    JOB,
    *AUTOSCALERS,
    Resource("monitoring.coreos.com/v1", "PodMonitor", "podmonitors", _OPERATOR, True),
    Resource("monitoring.coreos.com/v1", "PrometheusRule", "prometheusrules", _OPERATOR, True),
    Resource(
        "inference.networking.k8s.io/v1",
        "InferencePool",
        "inferencepools",
        "the Gateway API Inference Extension",
    ),
    HTTP_ROUTE,
)
"""What can be applied, in the order in which it is: what pods refer to comes before them."""

_BY_KIND = {(each.api_version, each.kind): each for each in APPLIED}


@dataclass(frozen=True, slots=True)
class Ref:
    """One object by its kind and name, in the words of kubectl: `deployment/llama`."""

    resource: Resource
    name: str

    def __str__(self) -> str:
        return f"{self.resource.kind.lower()}/{self.name}"


def ref_of(manifest: Mapping[str, Any]) -> Ref:
    """Returns what an object is; a kind that trtspec does not make is a KeyError."""
    return Ref(_BY_KIND[manifest["apiVersion"], manifest["kind"]], manifest["metadata"]["name"])


def in_order(manifests: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns objects in the order in which they are to be applied."""
    return sorted(manifests, key=lambda each: APPLIED.index(ref_of(each).resource))
