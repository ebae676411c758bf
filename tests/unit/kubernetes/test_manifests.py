"""What is rendered of every recipe, before the schemas of Kubernetes itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from typer.testing import CliRunner, Result

from tests.unit.kubernetes.builds import EVERY, values
from trtspec.cli.app import app
from trtspec.errors import RecipeError, StoreError
from trtspec.kubernetes.kinds.base import document
from trtspec.kubernetes.manifests import manifests, to_yaml
from trtspec.recipe.gpus import GPUS

every_recipe = pytest.mark.parametrize("recipe", EVERY, ids=lambda path: path.stem)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def kinds(text: str) -> dict[str, Any]:
    return {each["kind"]: each for each in yaml.safe_load_all(text)}


@every_recipe
def test_kubernetes_takes_every_object(recipe: Path) -> None:
    made = manifests(values(recipe))
    for thing in made:
        kubernetes_validate.validate(document(thing), "1.37", strict=True)
    assert list(yaml.safe_load_all(to_yaml(made))) == [document(thing) for thing in made]


@every_recipe
def test_pods_go_where_their_engines_load(recipe: Path) -> None:
    pod = kinds(to_yaml(manifests(values(recipe))))["Deployment"]["spec"]["template"]["spec"]
    hardware = yaml.safe_load(recipe.read_text())["hardware"]
    container = pod["containers"][0]["resources"]
    if hardware["gpu"] == "none":
        assert "nodeAffinity" not in pod["affinity"]
        assert "nvidia.com/gpu" not in container["limits"]
        return
    gpu = GPUS[hardware["gpu"]]
    (term,) = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]
    assert {each["key"]: each["values"] for each in term["matchExpressions"]} == {
        "nvidia.com/gpu.product": [gpu.label.replace(" ", "-")],
        "nvidia.com/gpu.compute.major": [str(gpu.sm // 10)],
    }
    assert container["limits"]["nvidia.com/gpu"] == hardware.get("count", 1)
    assert pod["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists"}]


def run(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture
def built(pair_recipe: Path, tmp_path: Path) -> str:
    """The URL of a store with the build of the tests' pair."""
    store = tmp_path / "store"
    assert run("build", pair_recipe, "--store", store).exit_code == 0
    return str(store)


def test_the_dry_run_prints_what_a_store_has(pair_recipe: Path, built: str) -> None:
    result = run("deploy", pair_recipe, "--kubernetes", "--store", built, "--namespace", "llm", "--dry-run")
    assert result.exit_code == 0, result.exception
    found = kinds(result.stdout)
    assert {each["metadata"]["namespace"] for each in found.values()} == {"llm"}
    assert found["ConfigMap"]["data"] == {"recipe.yaml": pair_recipe.read_text()}
    (pull,) = found["Deployment"]["spec"]["template"]["spec"]["initContainers"]
    url, digest = pull["args"][3:5]
    assert run("store", "pull", url, digest, "--output", "pulled").exit_code == 0
    assert run("deploy", pair_recipe, "--output", "pulled", "--dry-run").exit_code == 0


def test_a_store_without_this_build(pair_recipe: Path, built: str) -> None:
    pair_recipe.write_text(pair_recipe.read_text() + "kubernetes: {replicas: 3}\n")
    assert run("deploy", pair_recipe, "--kubernetes", "--store", built, "--dry-run").exit_code == 0
    pair_recipe.write_text(pair_recipe.read_text() + "speculation: {max_draft_len: 2}\n")
    error = run("deploy", pair_recipe, "--kubernetes", "--store", built, "--dry-run").exception
    assert isinstance(error, StoreError)
    assert "has no build of pair as its recipe is now, but of other recipes" in str(error)


def test_no_store_and_a_store_with_a_secret(pair_recipe: Path) -> None:
    assert isinstance(run("deploy", pair_recipe, "--kubernetes", "--dry-run").exception, RecipeError)
    url = "ftp://me:hidden@host/engines"
    error = run("deploy", pair_recipe, "--kubernetes", "--store", url, "--dry-run").exception
    assert isinstance(error, StoreError)
    assert "hidden" not in str(error)
