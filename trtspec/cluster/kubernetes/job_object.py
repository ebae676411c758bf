"""Makes the Kubernetes Job of a build: a pod that calls trtspec once, and a policy of what it may reach;
pure.

An annotation of the pod holds the recipe, and the pod reads it as a file. So a job is one object, and nothing
remains after its deletion.
"""

from __future__ import annotations

from typing import Any

from trtspec.base.units import GIB
from trtspec.cluster.jobs.job import SHARED_MEMORY, ClusterJob
from trtspec.cluster.kubernetes.cluster import Manifest
from trtspec.cluster.kubernetes.deriving import default_image, gib, gpu_choice, gpu_labels, name_of
from trtspec.cluster.kubernetes.resources import COMPONENT, INSTANCE, NAME
from trtspec.deployment.pod import RECIPE, TEMPORARY
from trtspec.deployment.pod import SHARED_MEMORY as SHARED_MEMORY_FOLDER
from trtspec.recipe.kubernetes import EmptyDir, HostPath, OwnClaim
from trtspec.recipe.schema import Recipe

CONTAINER = "build"
WORK = "/scratch"
"""The volume in which models, checkpoints and engines are made."""

BUILDS = {NAME: "trtspec-build", COMPONENT: "build"}
"""The labels of all jobs of builds, and of their pods."""

QUEUE = "kueue.x-k8s.io/queue-name"
TITLE = "trtspec/title"
_TEXT = "trtspec/recipe"
_GPU = "nvidia.com/gpu"
_DIGITS = 16
_RETRIES = 3
_KEPT_S = 86_400  # a second call tells the next day how a job ended
_END_S = 60  # to give back what it holds in the store
_HOUR_S = 3_600
# The disk holds the model, the checkpoint and the engine; the model may have twice the checkpoint's bytes.
_LOGS, _TIMES_ON_DISK = GIB, 4
# Exit statuses of trtspec that a retry does not change, and SIGKILL: without a disruption its cause is
# memory.
_FINAL = [1, 2, 137]
# NVIDIA's Triton image defines this user.
_NOBODY = {
    "runAsNonRoot": True,
    **dict.fromkeys(("runAsUser", "runAsGroup", "fsGroup"), 1000),
    "fsGroupChangePolicy": "OnRootMismatch",
    "seccompProfile": {"type": "RuntimeDefault"},
}
_NOTHING = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}


def job_object(job: ClusterJob, version: str) -> Manifest:
    """Returns the Job; `version` is that of trtspec."""
    recipe = job.recipe
    build = recipe.kubernetes.build
    queue = {QUEUE: build.queue} if build.queue else {}
    rules: list[Manifest] = [
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        {
            "action": "FailJob",
            "onExitCodes": {"containerName": CONTAINER, "operator": "In", "values": _FINAL},
        },
    ]
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": job.name,
            "labels": {**_labels(recipe, version), **queue},
            "annotations": {TITLE: job.title},
        },
        "spec": {
            "backoffLimit": _RETRIES,
            "activeDeadlineSeconds": build.limit_hours * _HOUR_S,
            "ttlSecondsAfterFinished": _KEPT_S,
            "podFailurePolicy": {"rules": rules},
            "template": _pod(job, version),
            **({"suspend": True} if build.queue else {}),
        },
    }


def network_policy(recipe: Recipe, version: str) -> Manifest:
    """Returns a policy that lets the pods of a recipe's jobs reach DNS, the store and the Hub.

    Nobody may connect to these pods.
    """
    egress = [{"ports": [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}]}]
    if ports := recipe.kubernetes.egress_ports:
        egress.append({"ports": [{"port": port, "protocol": "TCP"} for port in ports]})
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": f"{_instance(recipe)}-build", "labels": _labels(recipe, version)},
        "spec": {
            "podSelector": {"matchLabels": _chosen_by(recipe)},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [],
            "egress": egress,
        },
    }


def _pod(job: ClusterJob, version: str) -> Manifest:
    options, recipe = job.recipe.kubernetes, job.recipe
    gpu = gpu_choice(recipe) if job.gpus else None
    tolerated = [*([_GPU] if gpu else []), *options.tolerations]
    spec = {
        "serviceAccountName": options.service_account or "default",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": _END_S,
        "securityContext": _NOBODY,
        "containers": [_container(job, version)],
        "volumes": _volumes(recipe),
        "imagePullSecrets": [{"name": name} for name in options.secrets.image_pull],
        "affinity": _affinity(recipe) if gpu else None,
        "nodeSelector": options.node_selector if gpu else None,
        "tolerations": [{"key": key, "operator": "Exists"} for key in tolerated],
        "runtimeClassName": options.runtime_class if gpu else None,
        "priorityClassName": options.build.priority_class or options.priority_class,
        "restartPolicy": "Never",
    }
    texts = {**options.annotations, _TEXT: job.file.read_text(encoding="utf-8")}
    return {
        "metadata": {"labels": _labels(recipe, version), "annotations": texts},
        "spec": {key: value for key, value in spec.items() if value or value is False},
    }


def _affinity(recipe: Recipe) -> Manifest | None:
    labels = gpu_labels(recipe)
    if not labels:
        return None
    wanted = [{"key": key, "operator": "In", "values": [value]} for key, value in labels.items()]
    terms = {"nodeSelectorTerms": [{"matchExpressions": wanted}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}


def _container(job: ClusterJob, version: str) -> Manifest:
    options = job.recipe.kubernetes
    secret = options.build.secret or options.secrets.store
    environment = {"HOME": str(TEMPORARY), "HF_HOME": f"{WORK}/huggingface", "TRTSPEC_CACHE": f"{WORK}/cache"}
    call = job.call(str(RECIPE), f"{WORK}/builds/{job.key[:_DIGITS]}", options.store or job.store)
    return {
        "name": CONTAINER,
        "image": options.image or default_image(job.recipe, version),
        "imagePullPolicy": "IfNotPresent",
        "args": ["trtspec", *call],
        "env": [{"name": name, "value": value} for name, value in environment.items()],
        **({"envFrom": [{"secretRef": {"name": secret}}]} if secret else {}),
        "resources": _resources(job),
        "securityContext": _NOTHING,
        "volumeMounts": [
            {"name": "work", "mountPath": WORK},
            {"name": "recipe", "mountPath": str(RECIPE.parent), "readOnly": True},
            {"name": "temporary", "mountPath": str(TEMPORARY)},
            {"name": "shared-memory", "mountPath": str(SHARED_MEMORY_FOLDER)},
        ],
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def _resources(job: ClusterJob) -> Manifest:
    build = job.recipe.kubernetes.build
    gpus = {_GPU: job.gpus} if job.gpus else {}
    memory = build.memory or gib(job.memory)
    own = _TIMES_ON_DISK * job.size if isinstance(build.volume, EmptyDir) else 0
    disk = build.disk or gib(_LOGS + own)
    return {
        "requests": {"cpu": build.cpu, "memory": memory, "ephemeral-storage": disk, **gpus},
        "limits": {"memory": memory, **gpus},
    }


def _volumes(recipe: Recipe) -> list[Manifest]:
    text = {"path": RECIPE.name, "fieldRef": {"fieldPath": f"metadata.annotations['{_TEXT}']"}}
    return [
        {"name": "work", **_work(recipe)},
        {"name": "recipe", "downwardAPI": {"items": [text]}},
        {"name": "temporary", "emptyDir": {}},
        {"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": gib(SHARED_MEMORY)}},
    ]


def _work(recipe: Recipe) -> dict[str, Any]:
    volume = recipe.kubernetes.build.volume
    if isinstance(volume, HostPath):
        return {"hostPath": {"path": volume.path, "type": "Directory"}}
    if isinstance(volume, OwnClaim):
        return {"persistentVolumeClaim": {"claimName": volume.name}}
    return {"emptyDir": {}}


def _instance(recipe: Recipe) -> str:
    return recipe.kubernetes.name or name_of(recipe.name)


def _chosen_by(recipe: Recipe) -> dict[str, str]:
    return {**BUILDS, INSTANCE: _instance(recipe)}


def _labels(recipe: Recipe, version: str) -> dict[str, str]:
    own = {"app.kubernetes.io/version": version, "app.kubernetes.io/managed-by": "trtspec"}
    return {**recipe.kubernetes.labels, **_chosen_by(recipe), **own}
