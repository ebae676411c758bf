"""kubectl's kustomize takes what is printed, and changes what the example says and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support import helm
from tests.unit.cluster.kubernetes.builds import RECIPES, ROOT, values
from tests.unit.cluster.kubernetes.rendered import rendered
from tests.unit.cluster.kubernetes.value_sets import VALUE_SETS
from trtspec.cluster.kubernetes.objects import to_yaml

RECIPE = RECIPES / "llama-3.1-8b-h100.yaml"
EXAMPLE = ROOT / "charts/kustomize/kustomization.yaml"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def kustomized(kustomization: str, section: str = "") -> dict[str, dict[str, Any]]:
    Path("manifests.yaml").write_text(to_yaml(rendered(values(RECIPE, section))))
    Path("kustomization.yaml").write_text(kustomization)
    return {_of(thing): thing for thing in helm.objects(helm.run("kubectl", "kustomize", "."))}


def _of(thing: dict[str, Any]) -> str:
    return f"{thing['kind']} {thing['metadata']['name']}"


@pytest.mark.parametrize("name", ["spread", "labels that look like something else"])
def test_alone_it_changes_nothing(name: str) -> None:
    section = VALUE_SETS[name]
    found = kustomized("resources: [manifests.yaml]", section)
    assert found == {_of(thing): thing for thing in rendered(values(RECIPE, section))}


def test_the_example() -> None:
    plain = kustomized("resources: [manifests.yaml]")
    found = kustomized(EXAMPLE.read_text())
    assert found.keys() == plain.keys()
    deployment = found["Deployment llama-3-1-8b-h100"]["spec"]
    assert deployment["replicas"] == 3
    assert deployment["template"]["spec"]["nodeSelector"] == {"pool": "gpu"}
    assert deployment["selector"] == plain["Deployment llama-3-1-8b-h100"]["spec"]["selector"]
    for thing in found.values():
        assert thing["metadata"]["namespace"] == "inference"
        assert thing["metadata"]["labels"]["team"] == "search"


def test_names_change_together() -> None:
    """A prefix reaches what pods name: ConfigMaps, claims and ServiceAccounts."""
    found = kustomized("namePrefix: blue-\nresources: [manifests.yaml]")
    spec = found["Deployment blue-llama-3-1-8b-h100"]["spec"]["template"]["spec"]
    (recipe,) = (each["configMap"] for each in spec["volumes"] if each["name"] == "recipe")
    assert f"ConfigMap {recipe['name']}" in found
