"""`trtspec kubernetes deploy`, `status` and `stop` against an API server."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
from base64 import b64decode, b64encode
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from tests.fakes.kubernetes import kserve, scripts
from tests.fakes.kubernetes.emulator import NAMESPACE, Emulator, Refused
from tests.support.command_line import trtspec
from tests.unit.cluster.kubernetes.builds import RECIPES, STORE, stored

TEXT = (RECIPES / "llama-3.1-8b-h100.yaml").read_text()
SECTION = "kubernetes: {{name: llama, image: 'reg/trtspec:1', replicas: {replicas}, store: '{store}'}}\n"


BLOCK = "kubernetes:\n  name: llama\n  image: reg/trtspec:1\n  replicas: {replicas}\n  store: '{store}'\n"


class Cli:
    """Calls `trtspec` in a folder with a recipe."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def recipe(self, replicas: int = 2, more: str = "", section: str = SECTION) -> None:
        text = TEXT + section.format(replicas=replicas, store=STORE) + more
        (self._folder / "recipe.yaml").write_text(text)

    def __call__(self, *words: str, status: int = 0) -> CompletedProcess[str]:
        done = trtspec(*words, folder=self._folder)
        assert done.returncode == status, done.stdout + done.stderr
        return done

    def deploy(self, *options: str, status: int = 0) -> str:
        return self("kubernetes", "deploy", "recipe.yaml", *options, status=status).stderr


@pytest.fixture
def cli(kubeconfig: Path, emulator: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    # What a store has is a test of its own.
    monkeypatch.setattr(
        "trtspec.cluster.commands.kubernetes.find_build", lambda store, recipe: stored(recipe)
    )
    monkeypatch.setattr("trtspec.cluster.commands.kubernetes.Store", lambda url: url)
    cli = Cli(tmp_path)
    cli.recipe()
    return cli


def test_a_deployment_becomes_ready_shows_its_status_and_stops_without_remains(
    cli: Cli, emulator: Emulator
) -> None:
    done = cli("kubernetes", "deploy", "recipe.yaml")
    stages = "0 of 2 ready (2 in init container pull)", "0 of 2 ready (2 loading)", "2 of 2 ready (2 ready)"
    assert "\n".join(stages) in done.stderr
    assert "speculative_llm is ready; trtspec kubernetes stop llama --context lab" in done.stderr
    assert f"http://llama.{NAMESPACE}.svc:9000/v1" in done.stdout
    assert emulator.names("deployments") == ["llama"]
    assert len(emulator.pods()) == 2

    (row,) = json.loads(cli("kubernetes", "status", "--json").stdout)
    assert (row["name"], row["workload"], row["state"], row["ready"]) == (
        "llama",
        "deployment/llama",
        "ready",
        "2 of 2",
    )
    assert row["image"] == "reg/trtspec:1"
    assert emulator.manifest("deployments", "llama")["spec"]["template"]["metadata"]["annotations"][
        "trtspec/digest"
    ].startswith(row["build"])

    assert "llama: stopped" in cli("kubernetes", "stop", "--namespace", NAMESPACE).stderr
    assert emulator.stored == {}
    assert emulator.pods() == []
    assert "nothing of trtspec" in cli("kubernetes", "status", "--context", "lab").stderr


def test_an_old_recipe_is_removed_only_when_no_pod_needs_it(cli: Cli, emulator: Emulator) -> None:
    cli.deploy()
    (old,) = recipes(emulator)
    seen: list[set[str]] = []
    emulator.at_time = lambda now: seen.append(set(emulator.names("configmaps")))
    cli.recipe(more="# another text\n")
    cli.deploy()
    # Pods of before the update have it until the last of them is gone.
    assert all(old in each for each in seen)
    assert old not in recipes(emulator)
    assert len(recipes(emulator)) == 1


def recipes(emulator: Emulator) -> list[str]:
    return [name for name in emulator.names("configmaps") if name.startswith("llama-recipe-")]


def test_a_deployment_may_lack_its_monitor_and_not_its_autoscaler(cli: Cli, emulator: Emulator) -> None:
    assert "podmonitor/llama is left out: this cluster does not have the Prometheus Operator" in cli.deploy()
    assert "podmonitors" not in {key[1] for key in emulator.stored}
    emulator.groups.add("monitoring.coreos.com")
    assert "is left out" not in cli.deploy()
    assert emulator.names("podmonitors") == ["llama"]
    scaling = "{max_replicas: 4, by: keda, prometheus: 'http://prometheus:9090'}"
    cli.recipe(more=f"  autoscaling: {scaling}\n", section=BLOCK)
    said = cli.deploy("--namespace", NAMESPACE, status=1)
    assert "scaledobject/llama: this cluster does not have KEDA" in said
    assert "leave it out of the recipe's kubernetes" in said


def test_the_form_of_kserve(cli: Cli, emulator: Emulator) -> None:
    cli.recipe(more="  form: kserve\n", section=BLOCK)
    assert "this cluster does not have KServe" in cli.deploy(status=1)
    emulator.groups.add("serving.kserve.io")

    def work(now: float) -> None:
        kserve.reconcile(emulator, "llama")
        kserve.tell(emulator, "llama")

    emulator.at_time = work
    done = cli("kubernetes", "deploy", "recipe.yaml")
    assert "0 of 2 ready" in done.stderr
    assert done.stdout == "kubectl get inferenceservice llama -n serving\n"
    assert len(emulator.pods()) == 2
    (row,) = json.loads(cli("kubernetes", "status", "--json").stdout)
    assert (row["state"], row["ready"]) == ("ready", "2 of 2")
    assert row["build"]


def test_an_autoscaler_that_is_gone_sets_no_replicas(cli: Cli, emulator: Emulator) -> None:
    cli.recipe(more="  autoscaling: {max_replicas: 4}\n", section=BLOCK)
    cli.deploy()
    assert emulator.names("horizontalpodautoscalers") == ["llama"]
    assert "replicas" not in emulator.manifest("deployments", "llama")["spec"]
    cli.recipe()
    cli.deploy()
    assert emulator.names("horizontalpodautoscalers") == []
    assert emulator.manifest("deployments", "llama")["spec"]["replicas"] == 2


def test_an_autoscaler_that_is_new_takes_the_replicas_as_they_are(cli: Cli, emulator: Emulator) -> None:
    cli.recipe(replicas=4)
    cli.deploy()
    cli.recipe(more="  autoscaling: {max_replicas: 6}\n", section=BLOCK)
    for _ in range(2):
        cli.deploy()
        assert emulator.manifest("deployments", "llama")["spec"]["replicas"] == 4
    cli.recipe(replicas=3)
    cli.deploy()
    assert emulator.manifest("deployments", "llama")["spec"]["replicas"] == 3


def test_volume_claims_are_left_with_what_they_hold(cli: Cli, emulator: Emulator) -> None:
    cli.recipe(section=BLOCK, more="  cache: claim\n")
    cli.deploy()
    said = cli("kubernetes", "stop", "llama").stderr
    assert "persistentvolumeclaim/llama-engines is kept with its data; kubectl delete" in said
    assert set(emulator.stored) == {(NAMESPACE, "persistentvolumeclaims", "llama-engines")}
    cli.deploy()


def test_a_volume_claim_grows_with_the_builds_and_does_not_shrink(cli: Cli, emulator: Emulator) -> None:
    """The size of a claim follows from the build, and the next one may be smaller."""
    for asked, size in (("900Gi", "900Gi"), ("1Ti", "1Ti"), ("1000Gi", "1Ti"), (None, "1Ti")):
        section = f"{{kind: claim, size: {asked}}}" if asked else "claim"
        cli.recipe(section=BLOCK, more=f"  cache: {section}\n")
        cli.deploy()
        claim = emulator.manifest("persistentvolumeclaims", "llama-engines")
        assert claim["spec"]["resources"]["requests"] == {"storage": size}


def test_an_object_of_somebody_else_is_left_alone(cli: Cli, emulator: Emulator) -> None:
    metadata = {"name": "llama"}
    service = {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {"ports": [{"port": 80}]}}
    emulator.apply((NAMESPACE, "services", "llama"), service, {"fieldManager": "helm"})
    said = cli.deploy(status=1)
    assert "service/llama: is already in namespace serving, and does not belong to the release llama" in said
    assert "kubernetes.name in the recipe" in said
    assert emulator.names("deployments") == []


def test_a_field_that_somebody_has_set(cli: Cli, emulator: Emulator) -> None:
    cli.deploy()
    emulator.merge((NAMESPACE, "deployments", "llama"), {"spec": {"replicas": 5}}, "kubectl-scale", "")
    said = cli.deploy(status=1)
    assert 'conflict with "kubectl-scale" using apps/v1: .spec.replicas' in said
    assert "--force takes these fields over" in said
    assert emulator.manifest("deployments", "llama")["spec"]["replicas"] == 5
    cli.deploy("--force")
    assert emulator.manifest("deployments", "llama")["spec"]["replicas"] == 2


def refuse(code: int, reason: str, message: str, kind: str = "Deployment") -> Any:
    def check(manifest: dict[str, Any]) -> None:
        if manifest["kind"] == kind:
            raise Refused(code, reason, message)

    return check


@pytest.mark.parametrize(
    ("code", "reason", "message", "said"),
    [
        (
            403,
            "Forbidden",
            'services "llama" is forbidden: exceeded quota: few, requested: services=1, used: services=5,'
            " limited: services=5",
            "quota few refuses services=1: services=5 of services=5 is in use",
        ),
        (
            400,
            "BadRequest",
            'admission webhook "policy.example.com" denied the request: no team label',
            "admission webhook policy.example.com denies it: no team label",
        ),
        (
            500,
            "InternalError",
            'Internal error occurred: failed calling webhook "policy.example.com": failed to call webhook:'
            ' Post "https://policy.policy.svc:443/": no endpoints available',
            "admission webhook policy.example.com does not answer: failed to call webhook: Post",
        ),
        (418, "Teapot", "short and stout", "short and stout"),
    ],
)
def test_an_object_that_is_refused(
    cli: Cli, emulator: Emulator, code: int, reason: str, message: str, said: str
) -> None:
    emulator.at_apply = refuse(code, reason, message, kind="Service")
    assert f"service/llama: {said}" in cli.deploy(status=1).replace("release/llama", "service/llama")
    # Nothing is half done: what was applied before is taken back.
    assert emulator.stored == {}


def test_a_release_that_helm_is_changing_names_what_to_do(cli: Cli, emulator: Emulator) -> None:
    cli.deploy()
    secret = emulator.stored[NAMESPACE, "secrets", "sh.helm.release.v1.llama.v1"].manifest()
    release = json.loads(gzip.decompress(b64decode(b64decode(secret["data"]["release"]))))
    release["info"]["status"] = "pending-upgrade"
    release["version"], secret["metadata"]["name"] = 2, "sh.helm.release.v1.llama.v2"
    secret["metadata"]["labels"] |= {"status": "pending-upgrade", "version": "2"}
    written = b64encode(gzip.compress(json.dumps(release).encode()))
    secret["data"]["release"] = b64encode(written).decode()
    emulator.put((NAMESPACE, "secrets", ""), secret, is_new=True)
    before = dict(emulator.stored)
    said = cli.deploy(status=1)
    assert "release/llama: another operation (install/upgrade/rollback) is in progress" in said
    assert "hint: wait until it ends, and try again" in said
    assert emulator.stored == before


def test_no_right_no_namespace_no_credentials(cli: Cli, emulator: Emulator, kubeconfig: Path) -> None:
    emulator.forbidden = {("patch", "deployments")}
    said = cli.deploy(status=1)
    assert "deployment/llama: jane may not patch deployments.apps in namespace serving" in said
    assert "kubectl auth can-i patch deployments.apps -n serving" in said
    emulator.forbidden = set()
    said = cli.deploy("--namespace", "nowhere", status=1)
    assert "there is no namespace nowhere" in said
    assert "kubectl create namespace nowhere" in said
    kubeconfig.write_text(kubeconfig.read_text().replace("token: secret", "token: old"))
    assert "the cluster does not accept your credentials" in cli.deploy(status=1)
    assert emulator.stored == {}


def test_no_cluster_and_no_context(cli: Cli, kubeconfig: Path) -> None:
    said = cli.deploy("--context", "prod", status=1)
    assert "error: prod: there is no such context in the kubeconfig\nhint: there are lab" in said
    text = kubeconfig.read_text()
    kubeconfig.write_text(text.replace(text.partition("127.0.0.1:")[2].partition("'")[0], "9"))
    said = cli.deploy(status=1)
    assert "error: lab: no cluster: 127.0.0.1:9 refuses connections" in said
    assert "what was applied" not in said


def test_a_pod_that_crashes_with_the_end_of_its_log(cli: Cli, emulator: Emulator) -> None:
    emulator.script = lambda template: scripts.crashing("loading\nerror: no GPU is to be seen\n")
    said = cli.deploy(status=1).splitlines()
    assert sum(line.startswith("warning: pod/llama-") and line.endswith("it may pass") for line in said) == 1
    stops = "trtspec kubernetes stop llama --context lab --namespace serving"
    assert said[-5:-2] == [
        f"warning: what was applied stays; {stops} deletes it",
        "loading",
        "error: no GPU is to be seen",
    ]
    assert said[-2].startswith("error: pod/llama-")
    assert said[-2].endswith(": container server ended with 1, 3 times so far")
    done = cli("kubernetes", "status", status=1)
    assert "in trouble" in done.stdout
    assert "container server ended with 1" in done.stderr


def test_an_update_that_does_not_come_up_goes_back(cli: Cli, emulator: Emulator) -> None:
    cli.deploy()
    (old,) = recipes(emulator)
    emulator.script = lambda template: scripts.crashing("error: no GPU is to be seen\n")
    cli.recipe(more="# another text\n")
    said = cli.deploy(status=1)
    assert "warning: rolling the release back to revision 1" in said
    assert ": container server ended with 1, 3 times so far" in said
    assert "what was applied stays" not in said
    spec = emulator.manifest("deployments", "llama")["spec"]["template"]["spec"]
    assert old in [each["configMap"]["name"] for each in spec["volumes"] if "configMap" in each]


def test_which_one_is_to_be_stopped(cli: Cli) -> None:
    assert "nothing is deployed in namespace serving of lab" in cli("kubernetes", "stop", status=1).stderr
    cli.deploy()
    said = cli("kubernetes", "stop", "other", status=1).stderr
    assert "other: is not deployed in namespace serving of lab\nhint: deployed are llama" in said


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (("recipe.yaml", "--kubernetes", "--store", "s3://a"), "deploy recipe.yaml --store s3://a"),
        (("status", "--kubernetes", "--namespace", "a"), "status --namespace a"),
        (("stop", "llama", "--kubernetes"), "stop llama"),
    ],
)
def test_the_old_option_names_the_new_command(cli: Cli, old: tuple[str, ...], new: str) -> None:
    said = cli("deploy", *old, status=2).stderr
    assert said == f"error: --kubernetes is a command now: trtspec kubernetes {new}\n"


def test_engines_come_from_a_store_alone(cli: Cli) -> None:
    assert "a cluster serves a build from a store" in cli.deploy("--plain", status=2)
    assert "a cluster serves a build from a store" in cli.deploy("--output", "out", status=2)


def test_ctrl_c_leaves_what_was_applied(kubeconfig: Path, emulator: Emulator, tmp_path: Path) -> None:
    """In a process of its own, which a signal reaches while it waits."""
    Cli(tmp_path).recipe()
    emulator.script = lambda template: scripts.unschedulable("0/1 nodes are available.")
    code = (
        "from tests.unit.cluster.kubernetes.builds import stored\n"
        "from trtspec.cluster.commands import kubernetes\n"
        "kubernetes.find_build, kubernetes.Store = lambda store, recipe: stored(recipe), str\n"
        "from trtspec.cli.app import main\n"
        "main()\n"
    )
    words = "kubernetes", "deploy", "recipe.yaml"
    process = subprocess.Popen(
        [sys.executable, "-c", code, *words],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(RECIPES.parent)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr
    for line in process.stderr:
        if "without a node" in line:
            break
    process.send_signal(signal.SIGINT)
    _, talk = process.communicate(timeout=240)
    assert process.returncode == 130
    assert "interrupted: the cluster keeps starting what was applied; trtspec kubernetes status" in talk
    assert "Traceback" not in talk
    assert emulator.names("deployments") == ["llama"]


@pytest.mark.parametrize(("rules", "is_told"), [("true", False), ("false", True)])
def test_an_autoscaler_without_the_rules_that_it_goes_by_is_told(cli: Cli, rules: str, is_told: bool) -> None:
    more = f"  autoscaling: {{max_replicas: 4}}\n  monitoring: {{rules: {rules}}}\n"
    cli.recipe(section=BLOCK, more=more)
    said = cli.deploy("--dry-run")
    assert ("autoscaling reads the series of these rules" in said) == is_told
