"""What the chart makes of every recipe, before the schemas of Kubernetes itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import ValidationError
from typer.testing import CliRunner, Result

from tests.support import helm
from tests.unit.cluster.kubernetes import launches
from tests.unit.cluster.kubernetes.builds import EVERY, RECIPES, values
from tests.unit.cluster.kubernetes.rendered import rendered
from tests.unit.cluster.kubernetes.schemas import check
from trtspec.base.errors import RecipeError, StoreError
from trtspec.cli.app import app
from trtspec.cluster.kubernetes.values import Values
from trtspec.recipe.gpus import GPUS
from trtspec.recipe.kubernetes import Kubernetes

LLAMA, LARGE = RECIPES / "llama-3.1-8b-h100.yaml", RECIPES / "llama-3.1-405b-8xh200.yaml"
ELSEWHERE = {"build", "store", "grace_seconds", "egress_ports"}
"""Keys that change the values of keys of objects, and not which keys there are."""

every_recipe = pytest.mark.parametrize("recipe", EVERY, ids=lambda path: path.stem)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def kinds(made: Values) -> dict[str, Any]:
    """The objects by their kinds; of ConfigMaps the dashboard's."""
    return {each["kind"]: each for each in rendered(made)}


SECTIONS = {
    "keda": """\
  namespace: llm
  replicas: 2
  autoscaling: {by: keda, max_replicas: 4, prometheus: "http://prometheus:9090"}
  cache: claim
  gateway: {name: public, namespace: gateways, hostnames: [llm.example.org], endpoint_picker: picker}
  secrets: {store: s3, api_keys: keys, image_pull: [registry]}
  monitoring: {labels: {release: prometheus}}
  image: registry.example.org/trtspec:0.1.0-1.2.1
""",
    "kserve": """\
  form: kserve
  gpu_product: H100-SXM
  autoscaling: {max_replicas: 4}
  cache: {kind: host_path, path: /data/engines}
  gateway: {name: public}
  gpu_labels: {example.org/gpu: h100}
  node_selector: {pool: gpus}
  tolerations: [dedicated]
  runtime_class: nvidia
  priority_class: high
  service_account: reader
  labels: {team: search}
  annotations: {example.org/note: any text}
  resources: {cpu: "16", memory: 512Gi, shared_memory: 8Gi, disk: 1Ti}
""",
    "groups": """\
  hosts: {gpus_per_host: 4, leader: [serve, --spanning, "2"], worker: [sshd, -D]}
  autoscaling: {max_replicas: 2}
""",
    "bare": """\
  name: alone
  max_surge: 0
  network_policy: false
  monitoring: {pod_monitor: false, rules: false, dashboard: false}
  autoscaling: {max_replicas: 2}
  cache: {kind: claim, name: there}
""",
}
"""Sections `kubernetes:` that together have every key."""


@every_recipe
def test_an_api_server_takes_every_object_of(recipe: Path) -> None:
    for thing in rendered(values(recipe)):
        check(thing)


@pytest.mark.parametrize("section", [*launches.SECTIONS.values(), launches.KEYS])
def test_an_api_server_takes_every_object_of_a_server_of_others(section: str) -> None:
    for thing in rendered(launches.values("vllm", section)):
        check(thing)


@pytest.mark.parametrize("section", list(SECTIONS))
def test_an_api_server_takes_every_object_with(section: str) -> None:
    recipe = LARGE if section == "groups" else LLAMA
    for thing in rendered(values(recipe, SECTIONS[section])):
        check(thing)
        assert thing["metadata"].get("namespace") == ("llm" if section == "keda" else "default")
        part = thing.get("spec", thing)
        last = list(part)[-1]
        part[f"{last}x"] = part.pop(last)
        with pytest.raises(ValidationError):
            check(thing)


def test_the_sections_have_every_key() -> None:
    written = set().union(*(yaml.safe_load(text) for text in SECTIONS.values()))
    assert written == set(Kubernetes.model_fields) - ELSEWHERE


@every_recipe
def test_pods_go_where_their_engines_load(recipe: Path) -> None:
    pod = kinds(values(recipe))["Deployment"]["spec"]["template"]["spec"]
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
def built(pair_recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a store with the build of the tests' pair."""
    monkeypatch.setenv("PATH", helm.path())
    store = tmp_path / "store"
    assert run("build", pair_recipe, "--store", store).exit_code == 0
    return str(store)


def test_the_dry_run_prints_what_a_store_has(pair_recipe: Path, built: str) -> None:
    result = run("kubernetes", "deploy", pair_recipe, "--store", built, "--namespace", "llm", "--dry-run")
    assert result.exit_code == 0, result.exception
    printed = list(yaml.safe_load_all(result.stdout))
    assert {each["metadata"]["namespace"] for each in printed} == {"llm"}
    assert {"recipe.yaml": pair_recipe.read_text()} in [each.get("data") for each in printed]
    (deployment,) = (each for each in printed if each["kind"] == "Deployment")
    (pull,) = deployment["spec"]["template"]["spec"]["initContainers"]
    url, digest = pull["args"][3:5]
    assert run("store", "pull", url, digest, "--output", "pulled").exit_code == 0
    assert run("deploy", pair_recipe, "--output", "pulled", "--dry-run").exit_code == 0


def test_a_store_without_this_build(pair_recipe: Path, built: str) -> None:
    pair_recipe.write_text(pair_recipe.read_text() + "kubernetes: {replicas: 3}\n")
    assert run("kubernetes", "deploy", pair_recipe, "--store", built, "--dry-run").exit_code == 0
    pair_recipe.write_text(pair_recipe.read_text() + "speculation: {max_draft_len: 2}\n")
    error = run("kubernetes", "deploy", pair_recipe, "--store", built).exception
    assert isinstance(error, StoreError)
    assert "has no build of pair from the recipe as it is now, but it has builds of other recipes" in str(
        error
    )


def test_no_store_and_a_store_with_a_secret(pair_recipe: Path) -> None:
    assert isinstance(run("kubernetes", "deploy", pair_recipe).exception, RecipeError)
    url = "ftp://me:hidden@host/engines"
    error = run("kubernetes", "deploy", pair_recipe, "--store", url, "--dry-run").exception
    assert isinstance(error, StoreError)
    assert "hidden" not in str(error)
    pair_recipe.write_text(pair_recipe.read_text() + f"kubernetes: {{store: '{url}'}}\n")
    error = run("kubernetes", "deploy", pair_recipe, "--store", "s3://engines", "--dry-run").exception
    assert "ftp://me:***@host/engines: its URL contains a secret" in str(error)
