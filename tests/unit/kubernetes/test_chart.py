"""The Helm chart: real Helm must make of its values, object by object, what the renderer makes of them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from charts.writer.chart import CHART, samples_of_values, write, written
from charts.writer.example import EXAMPLE
from tests import helm
from tests.policies import complaints
from tests.unit.kubernetes import launches
from tests.unit.kubernetes.builds import EVERY, RECIPES, values
from tests.unit.kubernetes.realized import realized
from tests.unit.kubernetes.schemas import check
from tests.unit.kubernetes.value_sets import VALUE_SETS
from trtspec.cli.app import app
from trtspec.kubernetes.helm import chart_values
from trtspec.kubernetes.kinds.base import document
from trtspec.kubernetes.manifests import dump, manifests
from trtspec.kubernetes.refusals import Answer, refusal
from trtspec.kubernetes.values import Values
from trtspec.recipe.kubernetes import Claim

BY_HAND = {"Chart.yaml", "README.md", ".helmignore", "templates/NOTES.txt", "templates/validation.yaml"}
NAMESPACE = "serving"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_chart_is_what_the_renderer_makes() -> None:
    """UPDATE_GOLDEN=1 writes it anew, and so does `make chart`."""
    files = written()
    if os.environ.get("UPDATE_GOLDEN"):
        write()
    there = {str(path.relative_to(CHART)) for path in CHART.rglob("*") if path.is_file()}
    assert there == files.keys() | BY_HAND
    differ = [path for path in files if (CHART / path).read_text(encoding="utf-8") != files[path]]
    assert differ == [], "make chart"


def test_lint() -> None:
    assert "0 chart(s) failed" in helm.run("helm", "lint", CHART, "--strict")


def by_helm(name: str, *options: str | Path) -> list[dict[str, Any]]:
    return helm.objects(helm.run("helm", "template", name, CHART, "--namespace", NAMESPACE, *options))


def of(objects: Iterable[dict[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
    return {(thing["kind"], thing["metadata"]["name"]): thing for thing in objects}


def rendered(found: Values) -> dict[tuple[str, str], dict[str, Any]]:
    """What the renderer makes of values, for Helm, which says itself that it manages what it applies."""
    ours = found.model_copy(update={"managed_by": "Helm", "namespace": NAMESPACE})
    return of(document(thing) for thing in manifests(ours))


def file_of(found: Values) -> Path:
    file = Path("values.yaml")
    file.write_text(dump(chart_values(found)), encoding="utf-8")
    return file


def test_defaults() -> None:
    example = EXAMPLE.model_copy(update={"version": version("trtspec")})
    made = by_helm("llama")
    assert of(made) == rendered(example)
    assert complaints(made) == []


@pytest.mark.parametrize("recipe", EVERY, ids=lambda path: path.stem)
def test_every_recipe(recipe: Path) -> None:
    found = values(recipe, namespace=NAMESPACE)
    made = by_helm(found.name, "--values", file_of(found))
    assert of(made) == rendered(found)
    assert complaints(made) == []


@pytest.mark.parametrize("section", VALUE_SETS.values(), ids=VALUE_SETS)
def test_value_sets(section: str) -> None:
    found = values(RECIPES / "llama-3.3-70b-2xh100.yaml", section, NAMESPACE)
    made = by_helm(found.name, "--values", file_of(found))
    assert "0 chart(s) failed" in helm.run("helm", "lint", CHART, "--strict", "--values", file_of(found))
    assert of(made) == rendered(found)
    for thing in made:
        check(thing)


@pytest.mark.parametrize("section", [*launches.SECTIONS.values(), launches.KEYS])
def test_a_server_of_others(section: str) -> None:
    """Of files too, where the arguments name some."""
    found = launches.values(
        "vllm" if section == launches.KEYS else "tensorrt_llm_pytorch", section, NAMESPACE
    )
    made = by_helm(found.name, "--values", file_of(found))
    assert "0 chart(s) failed" in helm.run("helm", "lint", CHART, "--strict", "--values", file_of(found))
    assert of(made) == rendered(found)


@pytest.mark.sweep
def test_every_sample() -> None:
    """Everything that can be chosen in values, on and off with everything else."""
    samples = samples_of_values()
    for number, marked in enumerate(samples.values):
        found = realized(marked)
        if isinstance(found.volume, Claim) and not found.volume.name and not found.volume.size:
            continue  # which the chart refuses
        scaling = found.scaling and found.scaling.model_copy(update={"max_replicas": 10**9})
        release = {"name": "llama", "version": version("trtspec"), "scaling": scaling}
        found = found.model_copy(update=release)
        made = by_helm("llama", "--skip-schema-validation", "--values", file_of(found))
        assert of(made) == rendered(found), samples.options[number]


def run(*words: object) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, result.exception
    return result.stdout


def test_the_commands(pair_recipe: Path) -> None:
    """What `--helm-values` prints has Helm make what `--dry-run` prints."""
    run("build", pair_recipe, "--store", "store")
    deploy = ("deploy", pair_recipe, "--kubernetes", "--store", "store", "--namespace", NAMESPACE)
    Path("values.yaml").write_text(run(*deploy, "--helm-values"))
    printed = run(*deploy, "--dry-run").replace("managed-by: trtspec", "managed-by: Helm")
    assert of(by_helm("pair", "--values", "values.yaml")) == of(helm.objects(printed))


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ("replica=2", "additional properties 'replica' not allowed"),
        ("replicas=many", "at '/replicas'"),
        ("times.graceSeconds=-1", "at '/times/graceSeconds': minimum: got -1, want 0"),
        ("volume.kind=nfs", "at '/volume"),
        ("engines.storeSecret=a secret", "at '/engines/storeSecret'"),
        ("scaling.maxReplicas=3", "at '/scaling': missing properties 'places', 'kvCache'"),
        ("volume.kind=claim", "a claim that is there has a name, and one that is made a size"),
        ("engines=null", "either engines or a server is served"),
        ("server.metricsPath=/metrics", "at '/server': missing properties"),
        ("maxSurge=0", "an update needs maxSurge or maxUnavailable"),
        (
            "replicas=3,scaling.maxReplicas=2,scaling.places=0.8,scaling.kvCache=0.85",
            "scaling.maxReplicas is less than replicas",
        ),
    ],
)
def test_values_that_are_refused(change: str, complaint: str) -> None:
    assert complaint in helm.run("helm", "template", "llama", CHART, "--set", change, fails=True)


def test_a_name_that_is_too_long() -> None:
    assert "40 letters" in helm.run("helm", "template", "l" * 41, CHART, fails=True)


def test_the_oldest_cluster_is_that_of_deploy() -> None:
    oldest = yaml.safe_load((CHART / "Chart.yaml").read_text())["kubeVersion"]
    error = refusal(Answer(404, "", "404 page not found"), "poddisruptionbudget/llama", NAMESPACE)
    assert oldest == f">={str(error.repair).split()[1]}.0-0"


@pytest.mark.parametrize("name", ["llama-3.1", "405b"])
def test_a_name_that_no_service_may_have(name: str) -> None:
    """Helm takes dots, and digits first; RFC 1035, which Services keep to, does not."""
    assert "a letter first" in helm.run("helm", "template", name, CHART, fails=True)


def test_notes_of_a_server_of_others() -> None:
    file = file_of(launches.values("sglang"))
    notes = helm.run("helm", "install", "pair", CHART, "--dry-run=client", "--values", file).partition(
        "NOTES:"
    )[2]
    assert "each pod loads the models" in notes
    assert "8000" not in notes


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("replicas=2", ["get deployment/llama\n", "port-forward service/llama 8000 9000"]),
        (
            "kserve=true",
            ["get deployment/llama-predictor\n", "port-forward deployment/llama-predictor 8000 9000"],
        ),
    ],
)
def test_notes_name_what_there_is(change: str, told: list[str]) -> None:
    """The Service of KServe has 80 for a container's first port (its service_reconciler.go), and the rest."""
    options = ("--dry-run=client", "--namespace", NAMESPACE, "--set", change)
    notes = helm.run("helm", "install", "llama", CHART, *options).partition("NOTES:")[2]
    for words in told:
        assert words in notes


def test_values_that_are_changed_by_hand() -> None:
    changes = {
        "replicas": "3",
        "nodeSelector.pool": "gpu",
        "image": "registry.example.com/trtspec@sha256:" + "0" * 64,
        "engines.storeSecret": "s3-reader",
        "times.graceSeconds": "120",
        "gpu": "null",
        "gateway.name": "public",
    }
    found = of(by_helm("llama", *(word for item in changes.items() for word in ("--set", "=".join(item)))))
    spec = found["Deployment", "llama"]["spec"]
    pod = spec["template"]["spec"]
    (server,), (puller,) = pod["containers"], pod["initContainers"]
    assert spec["replicas"] == 3
    assert pod["nodeSelector"] == {"pool": "gpu"}
    assert server["image"] == puller["image"] == changes["image"]
    assert puller["envFrom"] == [{"secretRef": {"name": "s3-reader"}}]
    assert server["args"][server["args"].index("--grace") + 1] == "120"
    assert pod["terminationGracePeriodSeconds"] > 120
    assert server["resources"]["limits"].keys() == {"memory"}
    assert "nodeAffinity" not in pod["affinity"]
    assert "hostnames" not in found["HTTPRoute", "llama"]["spec"]
