"""The Helm chart by itself, before real Helm: what it takes, refuses and makes of values of users."""

from __future__ import annotations

import json
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from tests.support import helm
from tests.support.policies import complaints
from tests.unit.cluster.kubernetes import launches
from tests.unit.cluster.kubernetes.rendered import CHART
from tests.unit.cluster.kubernetes.schemas import check
from trtspec.base.errors import UnavailableError
from trtspec.cli.app import app
from trtspec.cli.monitoring import shipped
from trtspec.cluster.kubernetes.objects import MONITORS
from trtspec.cluster.kubernetes.refusals import ApiRefusal, refusal
from trtspec.cluster.kubernetes.values import Values, chart_values

NAMESPACE = "serving"
OPERATOR = ",".join(f"{each.api_version}/{each.kind}" for each in MONITORS)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_lint() -> None:
    assert "0 chart(s) failed" in helm.run("helm", "lint", CHART, "--strict")


def by_helm(name: str, *options: str | Path) -> list[dict[str, Any]]:
    return helm.objects(helm.run("helm", "template", name, CHART, "--namespace", NAMESPACE, *options))


def of(objects: Iterable[dict[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
    return {(thing["kind"], thing["metadata"]["name"]): thing for thing in objects}


def file_of(found: Values) -> Path:
    file = Path("values.json")
    file.write_text(json.dumps(chart_values(found)), encoding="utf-8")
    return file


def test_the_example_that_values_yaml_is() -> None:
    made = by_helm("llama", "--api-versions", OPERATOR)
    for each in made:
        check(each)
    assert complaints(made) == []


def test_the_version_is_that_of_the_package() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == version("trtspec")


def test_the_schema_has_every_value() -> None:
    """So has values.yaml, where people look."""
    schema = json.loads((CHART / "values.schema.json").read_text())["properties"]
    example = yaml.safe_load((CHART / "values.yaml").read_text())
    assert schema.keys() - {"global"} == example.keys()
    assert chart_values(launches.values("vllm")).keys() <= example.keys()


def test_the_chart_omits_monitors_and_rules_where_the_cluster_lacks_the_operator() -> None:
    """Helm asks the cluster which kinds it has; `helm template` is told."""
    without, there = (of(by_helm("llama", *words)) for words in ((), ("--api-versions", OPERATOR)))
    missing = {("PodMonitor", "llama"), ("PrometheusRule", "llama")}
    assert there.keys() - without.keys() == missing
    assert ("ConfigMap", "llama-dashboard") in without


def test_alerts_and_dashboard_are_those_that_the_command_prints() -> None:
    found = of(by_helm("llama", "--api-versions", OPERATOR))
    groups = [
        group
        for text in (shipped("alerts.yaml"), shipped("scaling.yaml"))
        for group in yaml.safe_load(text)["groups"]
    ]
    assert found["PrometheusRule", "llama"]["spec"]["groups"] == groups
    (text,) = found["ConfigMap", "llama-dashboard"]["data"].values()
    own = {"uid": "llama", "title": "trtspec: llama"}
    assert json.loads(text) == {**json.loads(shipped("dashboard.json")), **own}


EXTRAS = """\
extraEnv: [{name: HTTPS_PROXY, value: "http://proxy:3128"}]
extraArgs: [--timeout, "900"]
extraVolumes: [{name: certificates, configMap: {name: company-ca}}]
extraVolumeMounts: [{name: certificates, mountPath: /etc/ssl/company, readOnly: true}]
podAnnotations: {example.com/scrape: "true"}
affinity: {podAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: zone}]}}
gpuLabels: {example.com/gpu: h100}
"""


@pytest.mark.parametrize("form", ["{}", "kserve: true", "group: {size: 2, leader: [lead], worker: [work]}"])
def test_the_chart_applies_extra_variables_volumes_annotations_and_affinity(form: str) -> None:
    Path("ours.yaml").write_text(EXTRAS)
    Path("form.yaml").write_text(form)
    found = of(by_helm("llama", "--values", "ours.yaml", "--values", "form.yaml"))
    whole = json.dumps(list(found.values()))
    for each in ("HTTPS_PROXY", "company-ca", "/etc/ssl/company", '"example.com/scrape": "true"'):
        assert each in whole
    (spec,) = (
        each["spec"] if name == "ServingRuntime" else pod_of(each["spec"])
        for (name, _), each in found.items()
        if name in ("Deployment", "LeaderWorkerSet", "ServingRuntime")
    )
    assert spec["containers"][0]["args"][-2:] == ["--timeout", "900"]
    affinity = spec["affinity"]
    assert affinity.keys() == {"nodeAffinity", "podAffinity", "podAntiAffinity"}
    assert '"key": "example.com/gpu", "operator": "In", "values": ["h100"]' in json.dumps(affinity)
    assert "nvidia.com/gpu.product" not in whole


def pod_of(spec: dict[str, Any]) -> dict[str, Any]:
    template = spec.get("template") or spec["leaderWorkerTemplate"]["leaderTemplate"]
    return dict(template["spec"])


def run(*words: object) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, result.exception
    return result.stdout


def test_the_commands(pair_recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `--helm-values` prints has Helm make what `--dry-run` prints."""
    monkeypatch.setenv("PATH", helm.path())
    run("build", pair_recipe, "--store", "store")
    deploy = ("kubernetes", "deploy", pair_recipe, "--store", "store", "--namespace", NAMESPACE)
    Path("values.yaml").write_text(run(*deploy, "--helm-values"))
    made = by_helm("pair", "--values", "values.yaml", "--api-versions", OPERATOR)
    assert made == helm.objects(run(*deploy, "--dry-run"))


def test_no_helm(pair_recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run("build", pair_recipe, "--store", "store")
    monkeypatch.setenv("PATH", "/nonexistent")
    deploy = ("kubernetes", "deploy", pair_recipe, "--store", "store", "--dry-run")
    error = CliRunner().invoke(app, [str(word) for word in deploy]).exception
    assert isinstance(error, UnavailableError)
    assert (error.subject, error.problem) == ("helm", "is not on PATH")
    assert "install Helm 4" in str(error.repair)


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
        ("analysis.prometheus=http://p", "at '/analysis': missing properties 'acceptance'"),
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
    error = refusal(ApiRefusal(404, "", "404 page not found"), "poddisruptionbudget/llama", NAMESPACE)
    assert oldest == f">={str(error.repair).split()[1]}.0-0"


def test_a_field_that_cannot_change_is_told_with_the_command_that_makes_room() -> None:
    error = refusal(
        ApiRefusal(422, "Invalid", "spec.selector: field is immutable"), "deployment/a", NAMESPACE
    )
    assert error.repair == "trtspec kubernetes stop makes room for it"


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
