"""PodMonitor and PrometheusRule of the Prometheus operator (`monitoring.coreos.com/v1`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from trtspec.kubernetes.kinds.base import Object, Selector


@dataclass(frozen=True, slots=True)
class Relabeling:
    """A label of what is scraped, and its value."""

    target_label: str
    replacement: str


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a pod tells its metrics, and how often it is asked."""

    port: str
    path: str
    interval: str
    relabelings: Sequence[Relabeling]


@dataclass(frozen=True, slots=True)
class PodMonitorSpec:
    """The pods that Prometheus asks."""

    selector: Selector
    pod_metrics_endpoints: Sequence[Endpoint]


@dataclass(frozen=True)
class PodMonitor(Object):
    """The pods that Prometheus asks."""

    api_version: ClassVar[str] = "monitoring.coreos.com/v1"
    kind: ClassVar[str] = "PodMonitor"

    spec: PodMonitorSpec


@dataclass(frozen=True, slots=True)
class RulesSpec:
    """Groups of rules, as Prometheus's own files have them."""

    groups: Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class PrometheusRule(Object):
    """Alerts, and series that are computed of others."""

    api_version: ClassVar[str] = "monitoring.coreos.com/v1"
    kind: ClassVar[str] = "PrometheusRule"

    spec: RulesSpec
