"""`trtspec monitoring`: files for the systems that watch servers."""

from __future__ import annotations

from importlib.resources import files

from trtspec.cli.terminal.output import out

HELP = "A dashboard for Grafana, alerts for Prometheus."
EXAMPLES = (
    "trtspec monitoring dashboard > trtspec-dashboard.json",
    "trtspec monitoring alerts > trtspec-alerts.yaml",
    "trtspec monitoring scaling > trtspec-scaling.yaml",
)
# The Helm chart has them, which can read no file but its own.
_CHART = "cluster/kubernetes/chart/files"


def dashboard() -> None:
    """Print the dashboard; Grafana imports it."""
    out.data(shipped("dashboard.json"))


def alerts() -> None:
    """Print the alert rules; `rule_files` of Prometheus names the file."""
    out.data(shipped("alerts.yaml"))


def scaling() -> None:
    """Print the recording rules that an autoscaler needs."""
    out.data(shipped("scaling.yaml"))


COMMANDS = (dashboard, alerts, scaling)


def shipped(name: str) -> str:
    """Returns the text of a file that is shipped with the package."""
    return (files("trtspec") / _CHART / name).read_text(encoding="utf-8")
