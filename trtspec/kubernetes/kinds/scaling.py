"""HorizontalPodAutoscaler (`autoscaling/v2`) and KEDA's ScaledObject (`keda.sh/v1alpha1`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from trtspec.kubernetes.kinds.base import Object


@dataclass(frozen=True, slots=True)
class Workload:
    """What is scaled."""

    api_version: str
    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class MetricName:
    """A metric by its name."""

    name: str


@dataclass(frozen=True, slots=True)
class MetricTarget:
    """What a metric should be on average of the pods, as a quantity: 800m is 0.8."""

    type: str
    average_value: str


@dataclass(frozen=True, slots=True)
class PodsMetric:
    """A metric that each pod has."""

    metric: MetricName
    target: MetricTarget


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric of the kind that `type` names."""

    type: str
    pods: PodsMetric


@dataclass(frozen=True, slots=True)
class Policy:
    """How many pods may come or go in so many seconds."""

    type: str
    value: int
    period_seconds: int


@dataclass(frozen=True, slots=True)
class Rules:
    """How fast the number of pods follows; the window is for how long a metric must have said so."""

    stabilization_window_seconds: int
    policies: Sequence[Policy]


@dataclass(frozen=True, slots=True)
class Behavior:
    """How fast pods come and go."""

    scale_up: Rules
    scale_down: Rules


@dataclass(frozen=True, slots=True)
class AutoscalerSpec:
    """A number of pods that follows metrics: the largest that one of them asks for."""

    scale_target_ref: Workload
    min_replicas: int
    max_replicas: int
    metrics: Sequence[Metric]
    behavior: Behavior


@dataclass(frozen=True)
class HorizontalPodAutoscaler(Object):
    """A number of pods that follows metrics."""

    api_version: ClassVar[str] = "autoscaling/v2"
    kind: ClassVar[str] = "HorizontalPodAutoscaler"

    spec: AutoscalerSpec


@dataclass(frozen=True, slots=True)
class Query:
    """A query of Prometheus, whose value divided by the threshold is how many pods it asks for."""

    server_address: str
    query: str
    threshold: str


@dataclass(frozen=True, slots=True)
class Trigger:
    """What KEDA goes by."""

    type: str
    metric_type: str
    metadata: Query


@dataclass(frozen=True, slots=True)
class AutoscalerConfig:
    """How fast the autoscaler that KEDA makes lets pods come and go."""

    behavior: Behavior


@dataclass(frozen=True, slots=True)
class Advanced:
    """What KEDA passes on to the autoscaler that it makes."""

    horizontal_pod_autoscaler_config: AutoscalerConfig


@dataclass(frozen=True, slots=True)
class ScaledObjectSpec:
    """A number of pods that follows queries."""

    scale_target_ref: Workload
    min_replica_count: int
    max_replica_count: int
    advanced: Advanced
    triggers: Sequence[Trigger]


@dataclass(frozen=True)
class ScaledObject(Object):
    """A number of pods that follows queries of Prometheus."""

    api_version: ClassVar[str] = "keda.sh/v1alpha1"
    kind: ClassVar[str] = "ScaledObject"

    spec: ScaledObjectSpec
