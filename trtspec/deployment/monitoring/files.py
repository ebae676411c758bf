"""The files for other systems that watch servers; each is shipped with the package."""

from __future__ import annotations

from importlib.resources import files

# The Helm chart has them, which can read no file but its own.
_CHART = "cluster/kubernetes/chart/files"


def dashboard() -> str:
    """Returns the dashboard, in Grafana's JSON."""
    return _text("dashboard.json")


def alerts() -> str:
    """Returns the alert rules, in Prometheus's YAML."""
    return _text("alerts.yaml")


def scaling() -> str:
    """Returns the recording rules that an autoscaler goes by, in Prometheus's YAML."""
    return _text("scaling.yaml")


def _text(name: str) -> str:
    return (files("trtspec") / _CHART / name).read_text(encoding="utf-8")
