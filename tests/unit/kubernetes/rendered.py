"""The objects of a deployment as real Helm makes them of the chart."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from charts.writer.chart import CHART
from tests import helm
from trtspec.kubernetes.helm import chart_values
from trtspec.kubernetes.manifests import dump
from trtspec.kubernetes.values import Values


def rendered(found: Values) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "values.yaml"
        file.write_text(dump(chart_values(found)), encoding="utf-8")
        namespace = found.namespace or "default"
        return helm.objects(
            helm.run("helm", "template", found.name, CHART, "--namespace", namespace, "--values", file)
        )
