"""Lists the kinds of objects that trtspec makes or reads in a cluster, and writes them as YAML."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

# The labels of objects and pods are those that Kubernetes recommends ("Recommended Labels").
NAME, INSTANCE = "app.kubernetes.io/name", "app.kubernetes.io/instance"
COMPONENT = "app.kubernetes.io/component"
MANAGED_BY = "app.kubernetes.io/managed-by"

OURS = {NAME: "trtspec", MANAGED_BY: "Helm"}
"""The labels of every object of the chart."""

_WIDTH = 110
_NO_TEXT = re.compile(r"[yYnN]|[-+]?(\.\d[\d_]*|\d[\d_]*(\.[\d_]*)?)([eE][-+]?\d+)?|[-+]?0o[0-7_]+")
"""Text that Kubernetes' parsers read as a number or a Boolean, but PyYAML as text: 1e3, 1_0e3, -0o7, y."""


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


def to_yaml(objects: Iterable[dict[str, Any]]) -> str:
    """Returns objects as the documents of one text, as `kubectl apply` reads it."""
    return "".join(f"---\n{dump(thing)}" for thing in objects)


class _Dumper(yaml.SafeDumper):
    """Writes text of several lines as a block, and no anchors."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    quoted = "'" if _NO_TEXT.fullmatch(text) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else quoted)


_Dumper.add_representer(str, _text)


def dump(content: dict[str, Any]) -> str:
    """Returns one document of YAML."""
    return yaml.dump(content, Dumper=_Dumper, sort_keys=False, width=_WIDTH, allow_unicode=True)
