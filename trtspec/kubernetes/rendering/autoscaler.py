"""Replicas that follow what the coordinators tell of their load.

Triton's own queue is always empty, since the model takes in every request at once; what is gone by are the
two series of `monitoring/scaling.yaml`. Kubernetes' own autoscaler has them as metrics of pods by way of
prometheus-adapter, whose default rules offer every series that has the labels `namespace` and `pod`. KEDA
asks Prometheus itself.
"""

from __future__ import annotations

from trtspec.kubernetes.kinds.scaling import (
    Advanced,
    AutoscalerConfig,
    AutoscalerSpec,
    Behavior,
    HorizontalPodAutoscaler,
    Metric,
    MetricName,
    MetricTarget,
    PodsMetric,
    Policy,
    Query,
    Rules,
    ScaledObject,
    ScaledObjectSpec,
    Trigger,
    Workload,
)
from trtspec.kubernetes.rendering.labels import job, meta
from trtspec.kubernetes.values import Scaling, Values

PLACES, KV_CACHE = "trtspec:requests_per_place:ratio", "trtspec:kv_cache_usage:ratio"
"""Of each server: completions at work and waiting for each place, and the share of the KV cache in use."""

# A server loads for minutes, so many come at once, and one leaves when it has long not been missed.
_BEHAVIOR = Behavior(
    scale_up=Rules(0, [Policy("Percent", 100, 60)]), scale_down=Rules(600, [Policy("Pods", 1, 120)])
)


def horizontal(values: Values, scaling: Scaling, workload: Workload) -> HorizontalPodAutoscaler:
    """Returns the autoscaler of Kubernetes itself."""
    return HorizontalPodAutoscaler(
        meta(values),
        AutoscalerSpec(
            scale_target_ref=workload,
            min_replicas=values.replicas,
            max_replicas=scaling.max_replicas,
            metrics=[_metric(PLACES, scaling.places), _metric(KV_CACHE, scaling.kv_cache)],
            behavior=_BEHAVIOR,
        ),
    )


def scaled_object(values: Values, scaling: Scaling, workload: Workload, prometheus: str) -> ScaledObject:
    """Returns KEDA's; `prometheus` is the URL of the Prometheus that it asks."""
    return ScaledObject(
        meta(values),
        ScaledObjectSpec(
            scale_target_ref=workload,
            min_replica_count=values.replicas,
            max_replica_count=scaling.max_replicas,
            advanced=Advanced(AutoscalerConfig(_BEHAVIOR)),
            triggers=[
                _trigger(values, prometheus, PLACES, scaling.places),
                _trigger(values, prometheus, KV_CACHE, scaling.kv_cache),
            ],
        ),
    )


def _metric(name: str, average: str) -> Metric:
    return Metric("Pods", PodsMetric(MetricName(name), MetricTarget("AverageValue", average)))


def _trigger(values: Values, prometheus: str, name: str, average: str) -> Trigger:
    query = f'sum({name}{{namespace="{values.namespace}", job="{job(values)}"}})'
    return Trigger("prometheus", "AverageValue", Query(prometheus, query, average))
