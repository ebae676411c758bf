"""What is rendered of the jobs of every recipe, before the schemas of Kubernetes and the policies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.policies import complaints
from tests.unit.cluster.kubernetes.builds import EVERY, RECIPES
from tests.unit.cluster.kubernetes.jobs import KEY, job_of
from tests.unit.cluster.kubernetes.schemas import check
from trtspec.cluster.kubernetes.jobs import WORK, KubernetesJobs
from trtspec.recipe.gpus import GPUS
from trtspec.recipe.kubernetes import BuildJobSection

LLAMA = RECIPES / "llama-3.1-8b-h100.yaml"
EVERY_KEY = """\
kubernetes:
  name: llama
  image: registry.example.org/trtspec:0.1.0-26.06
  store: s3://inside/engines
  secrets: {store: reader, image_pull: [registry]}
  node_selector: {pool: gpus}
  tolerations: [dedicated]
  runtime_class: nvidia
  priority_class: low
  service_account: builder
  labels: {team: search}
  annotations: {example.org/note: any text}
  egress_ports: [443, 9000]
  build:
    queue: engines
    volume: {kind: claim, name: work}
    cpu: "8"
    memory: 200Gi
    disk: 10Gi
    limit_hours: 6
    secret: writer
    priority_class: high
"""

every_recipe = pytest.mark.parametrize("recipe", EVERY, ids=lambda path: path.stem)


def rendered(recipe: Path, stage: str = "build", gpus: int | None = None) -> dict[str, Any]:
    """The objects of a job by their kinds, as they are printed."""
    hardware = yaml.safe_load(recipe.read_text())["hardware"]
    own = 0 if hardware["gpu"] == "none" else hardware.get("count", 1)
    job = job_of(recipe, stage, gpus=own if gpus is None else gpus)
    script = KubernetesJobs(pytest.fail, "0.1.0", shares_files=False).script(job)
    return {each["kind"]: each for each in yaml.safe_load_all(script)}


def pod(objects: dict[str, Any]) -> dict[str, Any]:
    return dict(objects["Job"]["spec"]["template"]["spec"])


@every_recipe
@pytest.mark.parametrize("stage", ["build", "convert", "pair"])
def test_an_api_server_takes_the_jobs_of(recipe: Path, stage: str) -> None:
    objects = rendered(recipe, stage, None if stage == "build" else 0)
    assert list(objects) == ["NetworkPolicy", "Job"]
    for thing in objects.values():
        check(thing)
    assert complaints(list(objects.values())) == []
    assert objects["Job"]["metadata"]["name"] == f"trtspec-{stage}-{KEY[:16]}"
    template = objects["Job"]["spec"]["template"]
    assert template["metadata"]["annotations"]["trtspec/recipe"] == recipe.read_text()
    chosen = objects["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"]
    assert chosen.items() <= template["metadata"]["labels"].items()
    # By name and instance a deployment of the same recipe finds what is its own, and takes it away.
    for each in (template, objects["NetworkPolicy"], objects["Job"]):
        assert each["metadata"]["labels"]["app.kubernetes.io/name"] == "trtspec-build"


@every_recipe
def test_what_needs_a_gpu_goes_where_the_engine_loads(recipe: Path) -> None:
    hardware = yaml.safe_load(recipe.read_text())["hardware"]
    made, (container,) = pod(rendered(recipe)), pod(rendered(recipe))["containers"]
    if hardware["gpu"] == "none":
        assert "affinity" not in made
        assert "nvidia.com/gpu" not in container["resources"]["limits"]
        return
    gpu = GPUS[hardware["gpu"]]
    (term,) = made["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]
    assert term["matchExpressions"][0]["values"] == [gpu.label.replace(" ", "-")]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == hardware.get("count", 1)
    assert made["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists"}]


def test_what_needs_no_gpu_goes_anywhere() -> None:
    made = pod(rendered(LLAMA, "convert", 0))
    assert "affinity" not in made
    assert "tolerations" not in made
    assert "nvidia.com/gpu" not in made["containers"][0]["resources"]["limits"]


def test_a_job_needs_no_labels_of_gpu_feature_discovery(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(LLAMA.read_text() + "kubernetes: {gpu_labels: false}\n")
    spec = pod(rendered(recipe))
    assert "affinity" not in spec
    assert spec["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == 1


def test_every_key_arrives(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(LLAMA.read_text() + EVERY_KEY)
    assert set(yaml.safe_load(EVERY_KEY)["kubernetes"]["build"]) == set(BuildJobSection.model_fields)
    objects = rendered(recipe)
    for thing in objects.values():
        check(thing)
        assert thing["metadata"]["labels"]["team"] == "search"
        assert thing["metadata"]["labels"]["app.kubernetes.io/instance"] == "llama"
    job, made, (container,) = objects["Job"], pod(objects), pod(objects)["containers"]
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "engines"
    assert job["spec"]["suspend"] is True
    assert job["spec"]["activeDeadlineSeconds"] == 6 * 3600
    assert job["spec"]["template"]["metadata"]["annotations"]["example.org/note"] == "any text"
    assert container["image"] == "registry.example.org/trtspec:0.1.0-26.06"
    assert container["args"][:2] == ["trtspec", "build"]
    assert container["args"][container["args"].index("--store") + 1] == "s3://inside/engines"
    assert container["args"][container["args"].index("--output") + 1] == f"{WORK}/builds/{KEY[:16]}"
    assert container["args"][-2:] == ["--key", KEY]
    assert container["envFrom"] == [{"secretRef": {"name": "writer"}}]
    assert container["resources"]["requests"] == {
        "cpu": "8",
        "memory": "200Gi",
        "ephemeral-storage": "10Gi",
        "nvidia.com/gpu": 1,
    }
    assert made["volumes"][0] == {"name": "work", "persistentVolumeClaim": {"claimName": "work"}}
    assert made["serviceAccountName"] == "builder"
    assert made["priorityClassName"] == "high"
    assert made["runtimeClassName"] == "nvidia"
    assert made["nodeSelector"] == {"pool": "gpus"}
    assert made["imagePullSecrets"] == [{"name": "registry"}]
    ports = [rule["ports"] for rule in objects["NetworkPolicy"]["spec"]["egress"]]
    assert [port["port"] for rule in ports for port in rule] == [53, 53, 443, 9000]


def test_a_disruption_is_no_failure_and_what_trtspec_says_is_final() -> None:
    spec = rendered(LLAMA)["Job"]["spec"]
    ignored, final = spec["podFailurePolicy"]["rules"]
    assert ignored == {
        "action": "Ignore",
        "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
    }
    assert final["onExitCodes"] == {"containerName": "build", "operator": "In", "values": [1, 2, 137]}
    assert spec["template"]["spec"]["restartPolicy"] == "Never"


def test_memory_and_disk_follow_from_the_checkpoint() -> None:
    requests = pod(rendered(LLAMA))["containers"][0]["resources"]["requests"]
    assert requests["memory"] == f"{8 + 2 + 3 * 16}Gi"
    assert requests["ephemeral-storage"] == f"{1 + 4 * 16}Gi"


def test_without_walls(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(LLAMA.read_text() + "kubernetes: {network_policy: false}\n")
    assert list(rendered(recipe)) == ["Job"]
