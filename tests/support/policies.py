"""What each deployment on a cluster must keep to, as conftest would say it: objects in, complaints out.

After Kubernetes' Pod Security Standards, level "restricted", and the hardening guide of the NSA and CISA.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

Object = Mapping[str, Any]
Policy = Callable[[Sequence[Object]], Iterator[str]]

_TEMPLATES: dict[str, tuple[tuple[str, ...], ...]] = {
    "Deployment": (("spec", "template"),),
    "Job": (("spec", "template"),),
    "LeaderWorkerSet": (
        ("spec", "leaderWorkerTemplate", "leaderTemplate"),
        ("spec", "leaderWorkerTemplate", "workerTemplate"),
    ),
    "Rollout": (("spec", "template"),),
}
"""Where a kind keeps its pods' templates."""
_SECRET = re.compile(r"(^|_)(KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)$")
_PASSWORD_IN_URL = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s:@]*:[^/\s@]+@")


def pods(objects: Sequence[Object]) -> Iterator[tuple[str, Object, Object]]:
    """Yields a name for people, the labels and the specification of each kind of pod that objects start."""
    runtimes = {
        each["metadata"]["name"]: each["spec"] for each in objects if each["kind"] == "ServingRuntime"
    }
    for thing in objects:
        called = f"{thing['kind']} {thing['metadata']['name']}"
        if thing["kind"] == "InferenceService":
            # KServe makes a pod of what both say of it.
            predictor = thing["spec"]["predictor"]
            yield called, predictor["labels"], {**runtimes[predictor["model"]["runtime"]], **predictor}
        for path in _TEMPLATES.get(thing["kind"], ()):
            found: Any = thing
            for key in path:
                found = (found or {}).get(key)
            if found:
                yield called, found.get("metadata", {}).get("labels", {}), found["spec"]


def containers(objects: Sequence[Object]) -> Iterator[tuple[str, Object, Object]]:
    """Yields a name for people, the pod's specification and the container's; init containers too."""
    for called, _, spec in pods(objects):
        for container in (*spec.get("initContainers", ()), *spec["containers"]):
            yield f"{called}: {container['name']}", spec, container


def _security(spec: Object, container: Object, key: str) -> Any:
    """A key of the security context; the container's own counts before its pod's."""
    own = container.get("securityContext", {})
    return own[key] if key in own else spec.get("securityContext", {}).get(key)


def no_root(objects: Sequence[Object]) -> Iterator[str]:
    for called, spec, container in containers(objects):
        if _security(spec, container, "runAsNonRoot") is not True:
            yield f"{called} may run as root"
        if _security(spec, container, "runAsUser") == 0:
            yield f"{called} runs as user 0"


def read_only_root(objects: Sequence[Object]) -> Iterator[str]:
    for called, _, container in containers(objects):
        if container.get("securityContext", {}).get("readOnlyRootFilesystem") is not True:
            yield f"{called} may write to its image's files"


def no_capabilities(objects: Sequence[Object]) -> Iterator[str]:
    for called, _, container in containers(objects):
        found = container.get("securityContext", {}).get("capabilities", {})
        if found.get("drop") != ["ALL"] or found.get("add"):
            yield f"{called} keeps capabilities"


def seccomp(objects: Sequence[Object]) -> Iterator[str]:
    for called, spec, container in containers(objects):
        if (_security(spec, container, "seccompProfile") or {}).get("type") != "RuntimeDefault":
            yield f"{called} has no seccomp profile"


def no_escalation(objects: Sequence[Object]) -> Iterator[str]:
    for called, _, container in containers(objects):
        found = container.get("securityContext", {})
        if found.get("allowPrivilegeEscalation") is not False or found.get("privileged"):
            yield f"{called} may gain privileges"


def no_token(objects: Sequence[Object]) -> Iterator[str]:
    for called, _, spec in pods(objects):
        if spec.get("automountServiceAccountToken") is not False:
            yield f"{called} has a token of the cluster's API"


def own_namespaces(objects: Sequence[Object]) -> Iterator[str]:
    for called, _, spec in pods(objects):
        for key in ("hostNetwork", "hostPID", "hostIPC"):
            if spec.get(key):
                yield f"{called} has {key}"


def secrets_by_reference(objects: Sequence[Object]) -> Iterator[str]:
    for thing in objects:
        if thing["kind"] == "Secret":
            yield f"Secret {thing['metadata']['name']} is written out"
        yield from (f"{thing['kind']}: {text[:60]!r} has a password" for text in _texts(thing))
    for called, _, container in containers(objects):
        for variable in container.get("env", ()):
            if _SECRET.search(variable["name"]) and "secretKeyRef" not in variable.get("valueFrom", {}):
                yield f"{called} has {variable['name']} written out"


def _texts(part: Any) -> Iterator[str]:
    """Each text in an object that is a URL with a password."""
    if isinstance(part, str):
        if _PASSWORD_IN_URL.search(part):
            yield part
    elif isinstance(part, Mapping):
        for inner in part.values():
            yield from _texts(inner)
    elif isinstance(part, list):
        for inner in part:
            yield from _texts(inner)


def fixed_images(objects: Sequence[Object]) -> Iterator[str]:
    for called, _, container in containers(objects):
        image = container.get("image", "")
        tag = image.rpartition("/")[2].partition("@")[0].partition(":")[2]
        if "@sha256:" not in image and tag in ("", "latest"):
            yield f"{called} has the image {image!r} without a tag, or the latest"


def bounded(objects: Sequence[Object]) -> Iterator[str]:
    for called, _, container in containers(objects):
        resources = container.get("resources", {})
        requests, limits = resources.get("requests", {}), resources.get("limits", {})
        for lacks in {"cpu", "memory"} - {*requests}:
            yield f"{called} does not say how much {lacks} it needs"
        for lacks in {"memory"} - {*limits}:
            yield f"{called} may take any {lacks}"
        for name in {*requests, *limits}:
            # Kubernetes gives out devices whole: what is requested and what is allowed must be the same.
            if "/" in name and requests.get(name, limits.get(name)) != limits.get(name):
                yield f"{called} requests another number of {name} than its limit"


def walled(objects: Sequence[Object]) -> Iterator[str]:
    """Each pod is behind a NetworkPolicy for what comes in and what goes out."""
    for called, labels, _ in pods(objects):
        ways = {
            way
            for policy in objects
            if policy["kind"] == "NetworkPolicy" and _chosen(policy["spec"]["podSelector"], labels)
            for way in policy["spec"].get("policyTypes", ())
        }
        for lacks in sorted({"Ingress", "Egress"} - ways):
            yield f"{called} has no NetworkPolicy for {lacks}"


def budgeted(objects: Sequence[Object]) -> Iterator[str]:
    for called, labels, _ in pods([thing for thing in objects if thing["kind"] != "Job"]):
        if not any(
            thing["kind"] == "PodDisruptionBudget" and _chosen(thing["spec"]["selector"], labels)
            for thing in objects
        ):
            yield f"{called} has no PodDisruptionBudget"


def _chosen(selector: Object, labels: Mapping[str, str]) -> bool:
    """Whether a selector, of labels alone, chooses a pod; an empty one chooses nothing that is meant."""
    wanted = selector.get("matchLabels", {})
    return bool(wanted) and wanted.items() <= labels.items()


def whole(objects: Sequence[Object]) -> Iterator[str]:
    """What names another thing of the deployment finds it: volumes, ConfigMaps, the pods of Services."""
    there = {(thing["kind"], thing["metadata"]["name"]) for thing in objects}
    there |= {("Deployment", f"{name}-predictor") for kind, name in there if kind == "InferenceService"}
    for called, _, spec in pods(objects):
        volumes = {volume["name"]: volume for volume in spec.get("volumes", ())}
        mounted = set()
        for container in (*spec.get("initContainers", ()), *spec["containers"]):
            for mount in container.get("volumeMounts", ()):
                mounted.add(mount["name"])
                if mount["name"] not in volumes:
                    yield f"{called} mounts {mount['name']}, which it does not have"
        for name in volumes.keys() - mounted:
            yield f"{called} has the volume {name}, which nothing mounts"
        for volume in volumes.values():
            wanted = volume.get("configMap", {"optional": True})
            if not wanted.get("optional") and ("ConfigMap", wanted["name"]) not in there:
                yield f"{called} has a volume of the ConfigMap {wanted['name']}, which is not there"
    for thing in objects:
        called, spec = f"{thing['kind']} {thing['metadata']['name']}", thing.get("spec", {})
        if thing["kind"] in ("Service", "PodDisruptionBudget", "PodMonitor"):
            found = spec.get("selector") or {}
            selector = {"matchLabels": found} if thing["kind"] == "Service" else found
            if not any(_chosen(selector, labels) for _, labels, _ in pods(objects)):
                yield f"{called} chooses no pod"
        target = spec.get("scaleTargetRef")
        if target and (target.get("kind", "Deployment"), target["name"]) not in there:
            yield f"{called} scales {target['name']}, which is not there"


def watched(objects: Sequence[Object]) -> Iterator[str]:
    """Servers have the three probes; a container with no port has nobody to answer them."""
    for called, _, spec in pods([thing for thing in objects if thing["kind"] != "Job"]):
        for container in spec["containers"]:
            for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                if container.get("ports") and probe not in container:
                    yield f"{called}: {container['name']} has no {probe}"


POLICIES: tuple[Policy, ...] = (
    no_root,
    read_only_root,
    no_capabilities,
    seccomp,
    no_escalation,
    no_token,
    own_namespaces,
    secrets_by_reference,
    fixed_images,
    bounded,
    walled,
    budgeted,
    whole,
    watched,
)


def complaints(objects: Sequence[Object]) -> list[str]:
    """What is wrong with objects, by every policy."""
    return [f"{policy.__name__}: {found}" for policy in POLICIES for found in policy(objects)]
