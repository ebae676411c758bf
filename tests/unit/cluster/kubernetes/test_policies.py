"""The policies, on what is rendered of every recipe, and on deployments that each break one of them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.policies import POLICIES, complaints
from tests.support.servers_of_others import SERVERS
from tests.unit.cluster.kubernetes import launches
from tests.unit.cluster.kubernetes.builds import EVERY, RECIPES, values
from tests.unit.cluster.kubernetes.rendered import rendered
from tests.unit.cluster.kubernetes.value_sets import VALUE_SETS

Objects = list[dict[str, Any]]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def objects_of(recipe: Path, section: str = "") -> Objects:
    return rendered(values(recipe, section, "serving"))


@pytest.mark.parametrize("recipe", EVERY, ids=lambda path: path.stem)
def test_every_recipe(recipe: Path) -> None:
    assert complaints(objects_of(recipe)) == []


@pytest.mark.parametrize("name", VALUE_SETS)
def test_value_sets(name: str) -> None:
    found = complaints(objects_of(RECIPES / "llama-3.3-70b-2xh100.yaml", VALUE_SETS[name]))
    expected = [each for each in found if each.startswith("walled")] if name == "nothing beside it" else []
    assert found == expected


@pytest.mark.parametrize("name", launches.SECTIONS)
@pytest.mark.parametrize("backend", SERVERS)
def test_deployments_of_every_other_server_follow_the_policies(backend: str, name: str) -> None:
    """All of them, though no vendor's image asks for that."""
    made = launches.values(backend, launches.SECTIONS[name], "serving")
    found = complaints(rendered(made))
    assert [each for each in found if not each.startswith("walled")] == []
    assert bool(found) == (name == "nothing beside it")


def pod(objects: Objects) -> dict[str, Any]:
    (found,) = (thing for thing in objects if thing["kind"] == "Deployment")
    return dict(found["spec"]["template"]["spec"])


def server(objects: Objects) -> dict[str, Any]:
    return dict(pod(objects)["containers"][0])


def puller(objects: Objects) -> dict[str, Any]:
    return dict(pod(objects)["initContainers"][0])


def without(kind: str) -> Callable[[Objects], None]:
    def change(objects: Objects) -> None:
        objects[:] = [thing for thing in objects if thing["kind"] != kind]

    return change


def one(objects: Objects, kind: str) -> Any:
    return next(thing for thing in objects if thing["kind"] == kind)["spec"]


SECRET = {"kind": "Secret", "metadata": {"name": "keys"}, "stringData": {"keys": "sk-1"}}
FAULTS: list[tuple[str, str, Callable[[Objects], Any]]] = [
    ("no_root", "root", lambda found: pod(found)["securityContext"].pop("runAsNonRoot")),
    ("no_root", "user 0", lambda found: server(found)["securityContext"].update(runAsUser=0)),
    ("read_only_root", "pull", lambda found: puller(found)["securityContext"].pop("readOnlyRootFilesystem")),
    ("no_capabilities", "pull", lambda found: puller(found)["securityContext"].pop("capabilities")),
    (
        "no_capabilities",
        "server",
        lambda found: server(found)["securityContext"]["capabilities"].update(add=["SYS_ADMIN"]),
    ),
    ("seccomp", "no seccomp", lambda found: pod(found)["securityContext"].pop("seccompProfile")),
    (
        "seccomp",
        "server",
        lambda found: server(found)["securityContext"].update(seccompProfile={"type": "Unconfined"}),
    ),
    ("no_escalation", "server", lambda found: server(found)["securityContext"].update(privileged=True)),
    ("no_escalation", "pull", lambda found: puller(found)["securityContext"].pop("allowPrivilegeEscalation")),
    (
        "no_token",
        "token",
        lambda found: one(found, "Deployment")["template"]["spec"].pop("automountServiceAccountToken"),
    ),
    (
        "own_namespaces",
        "hostIPC",
        lambda found: one(found, "Deployment")["template"]["spec"].update(hostIPC=True),
    ),
    ("secrets_by_reference", "written out", lambda found: found.append(copy.deepcopy(SECRET))),
    (
        "secrets_by_reference",
        "HF_TOKEN",
        lambda found: puller(found)["env"].append({"name": "HF_TOKEN", "value": "hf_1"}),
    ),
    (
        "secrets_by_reference",
        "password",
        lambda found: puller(found)["args"].append("ftp://me:hidden@host/e"),
    ),
    ("fixed_images", "latest", lambda found: _image(found, "registry:5000/trtspec:latest")),
    ("fixed_images", "without a tag", lambda found: _image(found, "registry:5000/trtspec")),
    ("bounded", "any memory", lambda found: puller(found)["resources"]["limits"].pop("memory")),
    ("bounded", "how much cpu", lambda found: server(found)["resources"]["requests"].pop("cpu")),
    (
        "bounded",
        "nvidia.com/gpu",
        lambda found: server(found)["resources"]["requests"].update({"nvidia.com/gpu": 9}),
    ),
    ("walled", "Ingress", without("NetworkPolicy")),
    ("walled", "Egress", lambda found: one(found, "NetworkPolicy")["policyTypes"].remove("Egress")),
    (
        "walled",
        "Ingress",
        lambda found: one(found, "NetworkPolicy").update(podSelector={"matchLabels": {"a": "b"}}),
    ),
    ("budgeted", "PodDisruptionBudget", without("PodDisruptionBudget")),
    (
        "whole",
        "ConfigMap",
        lambda found: found.remove(next(each for each in found if each["kind"] == "ConfigMap")),
    ),
    (
        "whole",
        "does not have",
        lambda found: server(found)["volumeMounts"].append({"name": "more", "mountPath": "/m"}),
    ),
    ("whole", "nothing mounts", lambda found: pod(found)["volumes"].append({"name": "more", "emptyDir": {}})),
    ("whole", "chooses no pod", lambda found: one(found, "Service")["selector"].update(a="b")),
    (
        "whole",
        "scales llama",
        lambda found: one(found, "HorizontalPodAutoscaler")["scaleTargetRef"].update(name="llama"),
    ),
    (
        "watched",
        "livenessProbe",
        lambda found: one(found, "Deployment")["template"]["spec"]["containers"][0].pop("livenessProbe"),
    ),
]


def _image(objects: Objects, image: str) -> None:
    one(objects, "Deployment")["template"]["spec"]["containers"][0]["image"] = image


def test_every_policy_has_its_fault() -> None:
    assert {name for name, _, _ in FAULTS} == {policy.__name__ for policy in POLICIES}


@pytest.mark.parametrize(
    ("policy", "says", "fault"), FAULTS, ids=[f"{name}-{says}" for name, says, _ in FAULTS]
)
def test_faults(policy: str, says: str, fault: Callable[[Objects], Any]) -> None:
    objects = copy.deepcopy(
        objects_of(RECIPES / "llama-3.3-70b-2xh100.yaml", "  autoscaling: {max_replicas: 4}\n")
    )
    fault(objects)
    found = complaints(objects)
    assert found
    assert {each.partition(":")[0] for each in found} == {policy}
    assert says in " ".join(found)
