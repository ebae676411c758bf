"""What Prometheus and Grafana find of a deployment: its metrics, alerts and dashboard."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import yaml

from trtspec.kubernetes.kinds.core import ConfigMap
from trtspec.kubernetes.kinds.monitoring import (
    Endpoint,
    PodMonitor,
    PodMonitorSpec,
    PrometheusRule,
    Relabeling,
    RulesSpec,
)
from trtspec.kubernetes.rendering.labels import job, meta, selector
from trtspec.kubernetes.rendering.parts import METRICS, OPENAI
from trtspec.kubernetes.values import Values
from trtspec.monitoring import files

_SIDECAR = {"grafana_dashboard": "1"}
"""The label by which the sidecar of Grafana's Helm chart finds dashboards."""


def pod_monitor(values: Values) -> PodMonitor:
    """Returns what has Prometheus ask each server; the alert on one that is down knows it by its job."""
    port, path = (OPENAI, values.server.metrics_path) if values.server else (METRICS, "/metrics")
    endpoint = Endpoint(port, path, "15s", [Relabeling("job", job(values))])
    return PodMonitor(
        meta(values, labels=values.monitoring.labels), PodMonitorSpec(selector(values), [endpoint])
    )


def rules(values: Values) -> PrometheusRule:
    """Returns the alerts, and the series that autoscalers go by."""
    return PrometheusRule(meta(values, labels=values.monitoring.labels), RulesSpec(_groups()))


@cache
def _groups() -> list[dict[str, Any]]:
    texts = files.alerts(), files.scaling()
    return [group for text in texts for group in yaml.safe_load(text)["groups"]]


def dashboard(values: Values) -> ConfigMap:
    """Returns the dashboard, under a name of its own: Grafana has one for each deployment."""
    content = {**json.loads(files.dashboard()), "uid": values.name, "title": f"trtspec: {values.name}"}
    labels = {**values.monitoring.labels, **_SIDECAR}
    data = {f"trtspec-{values.name}.json": json.dumps(content, indent=1, ensure_ascii=False)}
    return ConfigMap(meta(values, "-dashboard", labels=labels), data)
