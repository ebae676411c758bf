"""`trtspec monitoring`: files for the systems that watch servers."""

from __future__ import annotations

from trtspec.cli.terminal.output import out
from trtspec.deployment.monitoring import files

HELP = "A dashboard for Grafana, alerts for Prometheus."
EXAMPLES = (
    "trtspec monitoring dashboard > trtspec-dashboard.json",
    "trtspec monitoring alerts > trtspec-alerts.yaml",
    "trtspec monitoring scaling > trtspec-scaling.yaml",
)


def dashboard() -> None:
    """Print the dashboard; Grafana imports it."""
    out.data(files.dashboard())


def alerts() -> None:
    """Print the alert rules; `rule_files` of Prometheus names the file."""
    out.data(files.alerts())


def scaling() -> None:
    """Print the recording rules that an autoscaler needs."""
    out.data(files.scaling())


COMMANDS = (dashboard, alerts, scaling)
