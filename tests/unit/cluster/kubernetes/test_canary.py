"""`trtspec rollout canary` against an API server whose pods tell a coordinator's own counters."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.command_line import trtspec
from tests.fakes.kubernetes import scripts
from tests.fakes.kubernetes.emulator import NAMESPACE, Emulator
from tests.unit.cluster.kubernetes.builds import RECIPES, STORE, stored
from tests.unit.deployment.rollout.metrics import text_of, told
from trtspec.cluster.kubernetes.of_engines import StoredBuild
from trtspec.recipe.schema import Recipe
from trtspec.serving.stats import Stats

TEXT = (RECIPES / "llama-3.1-8b-h100.yaml").read_text()
OLD, NEW = "reg/trtspec:1", "reg/trtspec:2"


class Cli:
    """Calls `trtspec` in a folder with a recipe, whose image says which build the pods are of."""

    def __init__(self, folder: Path, emulator: Emulator) -> None:
        self.folder, self._emulator = folder, emulator
        self.stats: dict[str, Stats] = {}
        self.options: tuple[str, ...] = ()

    def recipe(self, image: str, replicas: int = 4, more: str = "") -> None:
        section = f"kubernetes:\n  name: llama\n  image: {image}\n  replicas: {replicas}\n  store: {STORE}\n"
        (self.folder / "recipe.yaml").write_text(TEXT + section + more)

    def run(self, *words: str, status: int = 0) -> str:
        done = trtspec(*words, folder=self.folder)
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout + done.stderr

    def __call__(self, verb: str, *options: str, status: int = 0) -> str:
        asking = self.options if verb in ("next", "status") else ()
        return self.run("rollout", "canary", verb, "recipe.yaml", *asking, *options, status=status)

    def status(self, status: int = 0) -> dict[str, Any]:
        said: dict[str, Any] = json.loads(self("status", "--json", status=status))
        return said

    def images(self) -> dict[str, int]:
        """How many pods there are of each image."""
        found: dict[str, int] = {}
        for pod in self._emulator.pods():
            image = pod.spec["containers"][0]["image"]
            found[image] = found.get(image, 0) + 1
        return found

    def serve(self, image: str, requests: int, seconds: float, failures: int = 0, accepted: int = 3) -> None:
        """Completions of so many outputs of 4 tokens each, by every pod of an image."""
        for pod in self._emulator.pods():
            if pod.spec["containers"][0]["image"] != image:
                continue
            stats = self.stats.setdefault(pod.name, Stats())
            stats.failures["internal"] += failures
            for number in range(requests):
                stats.ended["stop"] += 1
                stats.generation_tokens += 4 * 11
                value = seconds * (0.9 + 0.2 * (number % 11) / 10)
                stats.time_to_first_token.observe(value)
                for _ in range(10):
                    stats.inter_token_latency.observe(value)
                    stats.by_origin["engine"].record(4, accepted)

    def tell(self, pod: dict[str, Any]) -> str:
        stats = self.stats.setdefault(pod["metadata"]["name"], Stats())
        return text_of(stats, self._emulator.now, "speculative_llm")


def build_of(store: object, recipe: Recipe) -> StoredBuild:
    """Another build for another image."""
    found = stored(recipe)
    key = ("2" if recipe.kubernetes.image == NEW else "1") * 64
    return replace(found, entry=replace(found.entry, key=key))


@pytest.fixture
def cli(kubeconfig: Path, emulator: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.setattr("trtspec.cluster.commands.kubernetes.find_build", build_of)
    monkeypatch.setattr("trtspec.cluster.commands.kubernetes.Store", lambda url: url)
    cli = Cli(tmp_path, emulator)
    emulator.metrics = cli.tell
    cli.recipe(OLD)
    cli.run("deploy", "recipe.yaml", "--kubernetes")
    cli.recipe(NEW)
    return cli


def test_every_step_with_the_evidence_for_it(cli: Cli, emulator: Emulator) -> None:
    assert cli.status()["step"] == "off"
    # Of four pods none can have 5 %.
    assert cli.status()["steps"] == ["off", "25 %", "50 %", "all"]
    assert "off -> 25 %" in cli("next")
    assert cli.images() == {OLD: 3, NEW: 1}
    refused = cli("next", status=1)
    assert "no step to 50 % yet: requests: 0 new, 0 old; about 100 more requests will decide" in refused
    for step, images in (("50 %", {OLD: 2, NEW: 2}), ("all", {NEW: 4})):
        cli.serve(OLD, 130, 0.02)
        cli.serve(NEW, 300, 0.015)
        said = cli.status()
        assert (said["verdict"], said["reached"]) == ("holds", True)
        assert {each["name"]: each["found"] for each in said["checks"]}["time per token"].startswith("0.75x")
        assert f"-> {step}" in cli("next")
        assert cli.images() == images
    assert emulator.names("deployments") == ["llama"]
    assert "all requests already" in cli("next")
    assert "[all]" in cli("status")
    # What serves now is what deploy would apply, and nothing of the canary is left but the way back.
    before = emulator.manifest("deployments", "llama")["spec"]
    assert "llama-canary" in emulator.names("configmaps")
    cli.run("deploy", "recipe.yaml", "--kubernetes")
    assert emulator.manifest("deployments", "llama")["spec"] == before
    assert "llama-canary" not in emulator.names("configmaps")


def test_a_way_back_behind_the_last_step(cli: Cli, emulator: Emulator) -> None:
    old = emulator.manifest("deployments", "llama")["spec"]["template"]
    for _ in range(3):
        cli("next", "--force")
    assert cli.images() == {NEW: 4}
    assert "all -> off" in cli("back")
    assert cli.images() == {OLD: 4}
    assert emulator.manifest("deployments", "llama")["spec"]["template"] == old
    mounted = {each["configMap"]["name"] for each in old["spec"]["volumes"] if "configMap" in each}
    recipes = [name for name in emulator.names("configmaps") if "-recipe-" in name]
    assert recipes == [name for name in sorted(mounted) if "-recipe-" in name]
    assert "the old build has all requests already" in cli("back")


@pytest.mark.parametrize(
    ("kind", "found", "bound"),
    [
        ("slow", "time per token is 2.00x", "at most 1.05x old"),
        ("failing", "errors is ", "at most 1% above old"),
        ("wrong drafts", "acceptance is ", "at least 50%"),
    ],
)
def test_a_broken_bound_stops_it_and_it_is_taken_away(
    cli: Cli, emulator: Emulator, kind: str, found: str, bound: str
) -> None:
    cli("next")
    cli.serve(OLD, 130, 0.02)
    cli.serve(
        NEW,
        200,
        0.04 if kind == "slow" else 0.02,
        failures=20 if kind == "failing" else 0,
        accepted=0 if kind == "wrong drafts" else 3,
    )
    said = cli("status", status=1)
    assert "broken" in said
    assert "trtspec rollout canary off recipe.yaml" in said
    refused = cli("next", status=1)
    assert f"no step to 50 %: {found}" in refused
    assert f"must be {bound}" in refused
    assert "25 % -> off" in cli("off")
    assert cli.images() == {OLD: 4}
    assert emulator.names("deployments") == ["llama"]
    assert [name for name in emulator.names("configmaps") if name.endswith("-canary")] == []
    assert len([name for name in emulator.names("configmaps") if "-recipe-" in name]) == 1


def test_back_is_a_step_at_a_time(cli: Cli) -> None:
    cli("next")
    cli("next", "--force")
    assert "50 % -> 25 %" in cli("back")
    assert cli.images() == {OLD: 3, NEW: 1}
    assert "25 % -> off" in cli("back")
    assert cli.images() == {OLD: 4}


def test_pods_that_do_not_come_up_leave_the_old_ones(cli: Cli, emulator: Emulator) -> None:
    def script(template: dict[str, Any]) -> scripts.Script:
        is_new = template["spec"]["containers"][0]["image"] == NEW
        return scripts.crashing("error: no GPU\n") if is_new else scripts.ready()

    emulator.script = script
    said = cli("next", status=1)
    assert "container server ended with 1, 3 times so far" in said
    assert "error: no GPU" in said
    assert "off -> 25 % is not reached; trtspec rollout canary back recipe.yaml goes back" in said
    assert cli.images()[OLD] == 4
    assert cli.status(status=1)["reached"] is False
    assert "a canary runs beside it" in cli.run("deploy", "recipe.yaml", "--kubernetes", status=1)
    cli("off")
    assert cli.images() == {OLD: 4}


def test_an_interrupted_move_goes_on(cli: Cli, emulator: Emulator) -> None:
    cli("next")

    def interrupt(now: float) -> None:
        emulator.at_time = lambda now: None
        raise KeyboardInterrupt

    emulator.at_time = interrupt
    said = cli("next", "--force", status=130)
    assert "interrupted: 25 % -> 50 % is not reached" in said
    assert cli.status()["reached"] is False
    cli("next")
    assert cli.images() == {OLD: 2, NEW: 2}
    assert cli.status()["reached"] is True


def _interrupted_step(cli: Cli, emulator: Emulator, weights: Callable[[], dict[str, int]]) -> None:
    """A step that is interrupted before its pod is there, and its end: the pod first, then requests."""

    def interrupt(now: float) -> None:
        emulator.at_time = lambda now: None
        raise KeyboardInterrupt

    emulator.at_time = interrupt
    cli("next", status=130)
    assert weights()["llama-canary"] == 0
    seen: list[int] = []

    def look(now: float) -> None:
        pods = emulator.manifest("deployments", "llama-canary").get("status", {}).get("readyReplicas", 0)
        if not pods:
            seen.append(weights().get("llama-canary", 0))

    emulator.at_time = look
    cli("next")
    emulator.at_time = lambda now: None
    assert set(seen) == {0}
    assert weights() == {"llama-stable": 950, "llama-canary": 50}


@pytest.mark.sweep
def test_a_gateway_has_weights(cli: Cli, emulator: Emulator) -> None:
    emulator.groups.add("gateway.networking.k8s.io")
    gateway = "  gateway: {name: public}\n"
    cli.recipe(OLD, more=gateway)
    cli.run("deploy", "recipe.yaml", "--kubernetes")
    plain = emulator.manifest("httproutes", "llama")["spec"]
    cli.recipe(NEW, more=gateway)
    assert cli.status()["steps"] == ["off", "5 %", "25 %", "50 %", "all"]

    def weights() -> dict[str, int]:
        (rule,) = emulator.manifest("httproutes", "llama")["spec"]["rules"]
        return {each["name"]: each.get("weight", 1) for each in rule["backendRefs"]}

    cli("next")
    assert weights() == {"llama-stable": 950, "llama-canary": 50}
    chosen = {
        track: emulator.manifest("services", f"llama-{track}")["spec"] for track in ("stable", "canary")
    }
    assert [chosen[track]["selector"]["trtspec/track"] for track in chosen] == ["stable", "canary"]
    cli("next", "--force")
    assert weights() == {"llama-stable": 750, "llama-canary": 250}
    cli("back")
    assert weights() == {"llama-stable": 950, "llama-canary": 50}
    cli("off")
    assert emulator.manifest("httproutes", "llama")["spec"] == plain
    assert emulator.names("services") == ["llama"]
    _interrupted_step(cli, emulator, weights)
    cli("off")
    for _ in range(4):
        cli("next", "--force")
    assert weights() == {"llama": 1}
    assert emulator.names("services") == ["llama"]


def test_who_may_not_ask_pods_asks_prometheus(cli: Cli, emulator: Emulator) -> None:
    emulator.forbidden = {("get", "pods/proxy")}
    cli("next")
    said = cli("status", status=1)
    assert "jane may not get pods/proxy in namespace serving" in said
    assert "--prometheus URL asks a Prometheus instead" in said

    def answer() -> str:
        rows = []
        for pod in emulator.pods():
            for line in cli.tell(pod.manifest(emulator.now)).splitlines():
                name, _, rest = line.partition("{")
                labels, _, value = rest.rpartition("} ")
                metric = dict(part.split('="') for part in labels.rstrip('"').split('",'))
                row = {"__name__": name, **metric, "pod": pod.name, "namespace": NAMESPACE}
                rows.append({"metric": row, "value": [0, value]})
        return json.dumps({"status": "success", "data": {"resultType": "vector", "result": rows}})

    with told(answer) as url:
        cli.options = ("--prometheus", f"http://{url}" if "//" not in url else url)
        cli.serve(OLD, 130, 0.02)
        cli.serve(NEW, 300, 0.02)
        assert cli.status()["verdict"] == "holds"
        assert "25 % -> 50 %" in cli("next")


def test_pods_that_nobody_reaches_are_no_evidence(cli: Cli, emulator: Emulator) -> None:
    cli("next")
    for pod in emulator.pods():
        if pod.spec["containers"][0]["image"] == NEW:
            pod.metrics_port = None
    cli.serve(OLD, 130, 0.02)
    said = cli("status", status=1)
    assert "error trying to reach service" in said
    assert "--prometheus URL asks a Prometheus instead" in said
    assert "25 % -> off" in cli("back")


def test_two_who_move_it_at_once(cli: Cli, emulator: Emulator) -> None:
    cli("next")
    asked = emulator.at_apply

    def another_first(manifest: dict[str, Any]) -> None:
        if manifest["metadata"]["name"] == "llama-canary" and manifest["kind"] == "ConfigMap":
            emulator.at_apply = asked
            emulator.stored[NAMESPACE, "configmaps", "llama-canary"].version += 1

    emulator.at_apply = another_first
    assert "configmap/llama-canary: somebody else has changed it meanwhile" in cli(
        "next", "--force", status=1
    )
    assert cli.images() == {OLD: 3, NEW: 1}


def test_a_deployment_of_no_release_is_left_alone(cli: Cli, emulator: Emulator) -> None:
    for key in [key for key in emulator.stored if key[1] == "secrets"]:
        del emulator.stored[key]
    said = cli("next", status=1)
    assert "deployment/llama: was not made by a release of Helm, which a canary needs" in said
    assert cli.images() == {OLD: 4}
    assert "llama-canary" not in emulator.names("configmaps")


def test_what_cannot_be_tried(cli: Cli, emulator: Emulator) -> None:
    cli.recipe(OLD)
    assert "llama: serves this build already, " in cli("next", status=1)
    cli.run("deploy", "stop", "llama", "--kubernetes")
    cli.recipe(NEW)
    assert "deployment/llama: is not in namespace serving" in cli("next", status=1)
    assert "the old build has all requests already" in cli("off")
