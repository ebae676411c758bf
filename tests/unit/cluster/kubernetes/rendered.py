"""The objects of a deployment as real Helm makes them of the chart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support import helm
from trtspec.cluster.kubernetes.release import template
from trtspec.cluster.kubernetes.values import Values

CHART = Path(__file__).parents[4] / "trtspec/cluster/kubernetes/chart"
# By the values: many tests look at the same.
_PRINTED: dict[str, str] = {}


def rendered(found: Values) -> list[dict[str, Any]]:
    """What `trtspec kubernetes deploy --dry-run` prints of values."""
    key = found.model_dump_json()
    if key not in _PRINTED:
        _PRINTED[key] = _printed(found)
    return helm.objects(_PRINTED[key])


def _printed(found: Values) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", helm.path())
        patch.setenv("KUBECONFIG", "/nonexistent")
        return template(found, None)


def of_kind(found: Values, kind: str, name: str | None = None) -> dict[str, Any]:
    """The object of a kind, of that name if there are several."""
    (made,) = (
        each for each in rendered(found) if each["kind"] == kind and name in (None, each["metadata"]["name"])
    )
    return made
