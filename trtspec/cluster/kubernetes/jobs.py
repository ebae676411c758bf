"""Schedules builds on Kubernetes: each job is a Job of the same name, made, read and followed here."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

from trtspec.base.errors import ClusterError, JobError, RecipeError, UnavailableError
from trtspec.base.findings import Finding
from trtspec.base.units import GIB
from trtspec.cluster.jobs import SHARED_MEMORY, ClusterJob, JobState, Phase
from trtspec.cluster.kubernetes import pods
from trtspec.cluster.kubernetes.cluster import Cluster, Manifest, UnreachableError
from trtspec.cluster.kubernetes.objects import COMPONENT, INSTANCE, JOB, NAME, POD, Ref, to_yaml
from trtspec.cluster.kubernetes.pods import Pod
from trtspec.cluster.kubernetes.recipe_values import (
    RECIPE,
    SHARED_FOLDER,
    TEMPORARY,
    gib,
    gpu_choice,
    gpu_labels,
    name_of,
)
from trtspec.cluster.kubernetes.refusals import RefusedByCluster, one_line
from trtspec.cluster.kubernetes.troubles import Event, denied, trouble_of
from trtspec.deployment.build import default_image
from trtspec.pipeline.store.files import StoreAddress
from trtspec.recipe.kubernetes import EmptyDir, HostPath, OwnClaim
from trtspec.recipe.loader import LoadedRecipe
from trtspec.recipe.schema import Recipe

OWNER = "batch.kubernetes.io/controller-uid"
"""Kubernetes' label of a pod's job; a job that was created again has another value."""

_GONE_S, _LOOK_S = 120.0, 1.0
_LOST = JobState(Phase.LOST, "is no longer in the cluster")

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
_TTL_S = 86_400  # a second call tells the next day how a job ended
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

_AGAIN = "the same command continues where it stopped"
_MEMORY = "kubernetes.build.memory in the recipe raises it"
_TIME = "raise kubernetes.build.limit_hours in the recipe; the same command continues"
_DENIED = "FailedCreate"


class KubernetesJobs:
    """The scheduler of one namespace.

    It connects to the cluster at the first request. `version` is trtspec's version. With `shares_files` all
    pods share one volume.
    """

    name = "Kubernetes"
    keeps_order = False

    def __init__(self, connect: Callable[[], Cluster], version: str, *, shares_files: bool) -> None:
        self._connect, self._version, self.shares_files = connect, version, shares_files

    def script(self, job: ClusterJob) -> str:
        return to_yaml(self._objects(job))

    def find(self, names: Collection[str]) -> Mapping[str, str]:
        found = {name: job for name, job in self._jobs().items() if name in names}
        all_pods = self._pods() if found else {}
        return {name: name for name, job in found.items() if not self._look(job, all_pods).phase.is_over}

    def submit(self, job: ClusterJob, after: Sequence[str]) -> str:
        with _explained():
            if self._is_free(job.name):
                for thing in self._objects(job):
                    self._cluster.apply(thing, force=True)
        return job.name

    def states(self, jobs: Mapping[str, ClusterJob]) -> Mapping[str, JobState]:
        if not jobs:
            return {}
        found, all_pods = self._jobs(), self._pods()
        return {name: self._state(job, found.get(name), all_pods) for name, job in jobs.items()}

    def cancel(self, ids: Collection[str]) -> None:
        with _explained():
            for name in ids:
                self._cluster.delete(Ref(JOB, name))

    def how_to_cancel(self, ids: Collection[str]) -> str:
        where = ("--context", self._cluster.context, "--namespace", self._cluster.namespace)
        return shlex.join(("kubectl", *where, "delete", "job", *ids))

    @cached_property
    def _cluster(self) -> Cluster:
        return self._connect()

    @cached_property
    def _logs(self) -> Logs:
        return Logs(self._cluster)

    def _objects(self, job: ClusterJob) -> list[Manifest]:
        walls = [network_policy(job.recipe, self._version)] if job.recipe.kubernetes.network_policy else []
        return [*walls, job_object(job, self._version)]

    def _is_free(self, name: str) -> bool:
        """Deletes a job of that name that has ended or cannot start; returns False if it waits or runs."""
        of, begin = Ref(JOB, name), time.monotonic()
        while manifest := self._cluster.find(of):
            found = parse_job(manifest)
            if not self._look(found, self._pods()).phase.is_over:
                return False
            if not found.is_ending:
                self._cluster.delete(of)
            if time.monotonic() - begin > _GONE_S:
                repair = f"kubectl describe job {name} shows what blocks its deletion"
                raise JobError(str(of), "is being deleted, but the deletion does not finish", repair)
            time.sleep(_LOOK_S)
        return True

    def _jobs(self) -> dict[str, JobObject]:
        with _explained():
            found = map(parse_job, self._cluster.labelled(JOB, BUILDS))
            return {job.name: job for job in found}

    def _pods(self) -> dict[str, list[Pod]]:
        """Returns the pods by their jobs."""
        found = dict[str, list[Pod]]()
        with _explained():
            for pod in map(pods.parse, self._cluster.labelled(POD, BUILDS)):
                found.setdefault(pod.labels.get(OWNER, ""), []).append(pod)
        return found

    def _state(self, job: ClusterJob, found: JobObject | None, all_pods: Mapping[str, list[Pod]]) -> JobState:
        if found is None:
            return _LOST
        with _explained():
            self._logs.bring(all_pods.get(found.uid, []), job.log)
        return self._look(found, all_pods)

    def _look(self, job: JobObject, all_pods: Mapping[str, list[Pod]]) -> JobState:
        """Returns the state of a job; `all_pods` has the pods of all jobs."""
        own = all_pods.get(job.uid, [])
        with _explained():
            return state_of(job, own, self._events(job, own), self._cluster.namespace)

    def _events(self, job: JobObject, own: Sequence[Pod]) -> list[Event]:
        """Returns the events of pods that do not run yet, or of a job that has no pods."""
        if job.is_over or any(pod.phase != "Pending" for pod in own):
            return []
        subjects = [("Pod", pod.name) for pod in own] or [("Job", job.name)]
        return [event for subject in subjects for event in self._cluster.events(*subject)]


@contextmanager
def _explained() -> Iterator[None]:
    """Raises UnavailableError if the cluster does not answer, and JobError if it refuses."""
    try:
        yield
    except UnreachableError as error:
        raise UnavailableError(error.subject, error.problem, error.repair) from error
    except RefusedByCluster as error:
        kind = UnavailableError if error.answer.is_passing else JobError
        raise kind(error.subject, error.problem, error.repair) from error
    except ClusterError as error:
        raise JobError(error.subject, error.problem, error.repair) from error


class Logs:
    """Copies pods' logs to files, and remembers how far each was read. A file starts empty, since the cluster
    has the whole log."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._read: dict[str, str] = {}
        self._begun: set[Path] = set()

    def bring(self, pods: Sequence[Pod], file: Path) -> None:
        """Appends to a file what the pods of one job have logged since the last call, the older pod first."""
        for pod in sorted(pods, key=lambda pod: (pod.created, pod.name)):
            if any(each.is_running or each.exit_code is not None for each in pod.containers):
                self._append(pod, file)

    def _append(self, pod: Pod, file: Path) -> None:
        last = self._read.get(pod.name)
        try:
            lines = self._cluster.log_since(pod.name, CONTAINER, last)
        except RefusedByCluster:
            return  # A new or deleted pod has no log; the next call asks again.
        if not lines:
            return
        if file not in self._begun:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(b"")
            self._begun.add(file)
        with file.open("a", encoding="utf-8") as stream:
            if last is None:
                stream.write(f"pod {pod.name}{f' on {pod.node}' if pod.node else ''}:\n")
            stream.writelines(f"{line.text}\n" for line in lines)
        self._read[pod.name] = lines[-1].time


def check_visible(loaded: LoadedRecipe, store: str) -> None:
    """Raises RecipeError for models, texts and a store that pods would not see, or a store with a secret.

    Pods see the Hub, the store by its URL, and files below WORK on a volume that outlives them.
    """
    findings = [*_unseen(loaded), *_store(loaded, store)]
    if findings:
        raise RecipeError(loaded.path, findings)


def _unseen(loaded: LoadedRecipe) -> Iterator[Finding]:
    for role, location in loaded.locations.items():
        model = loaded.recipe.models[role]
        if isinstance(location, Path) and not _is_mounted(loaded, model.model):
            yield _finding(loaded, f"{role}.model", location, "a model of the Hub")
        calibration = loaded.recipe.calibration(model)
        text = calibration.dataset if calibration else ""
        if text and (loaded.path.parent / text).exists() and not _is_mounted(loaded, text):
            key = f"{role}.quantization.calibration.dataset"
            yield _finding(loaded, key, Path(text), "a dataset of the Hub")
        lora = model.build.get("lora_dir")
        if lora and not _is_mounted(loaded, str(lora)):
            yield _finding(loaded, f"{role}.build.lora_dir", Path(str(lora)), "none")


def _store(loaded: LoadedRecipe, store: str) -> Iterator[Finding]:
    url = loaded.recipe.kubernetes.store
    if url is None and "://" not in store:
        problem = f"is missing: {store} is a folder of this machine, which pods do not see"
        yield loaded.problem(
            "kubernetes.store", problem, "write the URL by which pods reach the store, or use S3"
        )
    if url is not None and StoreAddress(url).has_secret:
        problem = f"{StoreAddress(url)} contains a secret, which everybody who reads a Job would see"
        repair = "put it into a Secret, and name that in kubernetes.build.secret or kubernetes.secrets.store"
        yield loaded.problem("kubernetes.store", problem, repair)


def _is_mounted(loaded: LoadedRecipe, name: str) -> bool:
    lasts = not isinstance(loaded.recipe.kubernetes.build.volume, EmptyDir)
    return lasts and PurePosixPath(WORK) in PurePosixPath(name).parents


def _finding(loaded: LoadedRecipe, key: str, path: Path, other: str) -> Finding:
    problem = f"{path} is on this machine, and pods do not see it"
    repair = f"name {other}, or a path below {WORK} on a host_path or claim of kubernetes.build.volume"
    return loaded.problem(key, problem, repair)


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
            "ttlSecondsAfterFinished": _TTL_S,
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
            {"name": "shared-memory", "mountPath": str(SHARED_FOLDER)},
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


@dataclass(frozen=True, slots=True)
class JobObject:
    """A job as the API server describes it."""

    name: str
    uid: str
    queue: str
    is_suspended: bool
    is_ending: bool
    failed: int
    """The number of pods that have failed."""
    ended: str
    """The condition at its end: `Complete` or `Failed`; empty until then."""
    reason: str
    """The reason of that condition."""
    message: str
    """The message of that condition."""

    @property
    def is_over(self) -> bool:
        return bool(self.ended) or self.is_ending


def parse_job(manifest: Mapping[str, Any]) -> JobObject:
    """Returns the job from the API server's object."""
    metadata, status = manifest["metadata"], manifest.get("status") or {}
    conditions = {each["type"]: each for each in status.get("conditions") or () if each["status"] == "True"}
    ended = next((each for each in ("Complete", "Failed") if each in conditions), "")
    found = conditions.get(ended, {})
    return JobObject(
        name=metadata["name"],
        uid=metadata.get("uid") or "",
        queue=(metadata.get("labels") or {}).get(QUEUE, ""),
        is_suspended=bool(manifest["spec"].get("suspend")),
        is_ending=bool(metadata.get("deletionTimestamp")),
        failed=status.get("failed") or 0,
        ended=ended,
        reason=found.get("reason") or "",
        message=found.get("message") or "",
    )


def state_of(job: JobObject, pods: Sequence[Pod], events: Sequence[Event], namespace: str) -> JobState:
    """Returns the state of a job from its `pods` and their `events`, or the job's if it has no pods."""
    newest = max(pods, key=lambda pod: (pod.created, pod.name), default=None)
    if job.ended == "Complete":
        return JobState(Phase.DONE, node=_node(newest), restarts=job.failed)
    if job.ended == "Failed":
        reason, repair = _why(job, newest)
        # The last failed pod ended the job; the others were restarts.
        return JobState(Phase.FAILED, reason, repair, _node(newest), max(job.failed - 1, 0))
    if job.is_ending:
        return JobState(Phase.CANCELLED, "was deleted in the cluster")
    if job.is_suspended:
        return JobState(Phase.WAITS, f"waits in the queue {job.queue}" if job.queue else "is suspended")
    if newest is None or newest.has_ended:
        refused = [event.message for event in events if event.reason == _DENIED and newest is None]
        reason = denied(job.name, refused[-1], namespace).problem if refused else "waits for a pod"
        return JobState(Phase.WAITS, reason, restarts=job.failed)
    if newest.phase == "Running":
        return JobState(Phase.RUNS, node=_node(newest), restarts=job.failed)
    return _pending(job, newest, events, namespace)


def _pending(job: JobObject, pod: Pod, events: Sequence[Event], namespace: str) -> JobState:
    trouble = trouble_of(pod, events, namespace)
    if trouble is None:
        return JobState(Phase.WAITS, f"its pod is {pod.stage}", node=_node(pod), restarts=job.failed)
    # A lasting problem would keep the pod waiting until the job's limit.
    phase = Phase.WAITS if trouble.passes_within_s else Phase.FAILED
    return JobState(phase, trouble.problem, trouble.repair, _node(pod), job.failed)


def _why(job: JobObject, pod: Pod | None) -> tuple[str, str | None]:
    """Returns why a job has failed, and the repair."""
    if job.reason == "DeadlineExceeded":
        return "took longer than its limit", _TIME
    if pod is None:
        return one_line(job.message) or "has failed", _AGAIN
    if pod.reason == "Evicted":
        return f"was evicted from its node: {one_line(pod.message)}", _AGAIN
    container = next((each for each in pod.containers if each.name == CONTAINER), None)
    if container is None or container.exit_code is None:
        said = pod.message or pod.reason or job.message
        return f"its pod has failed: {one_line(said)}" if said else "its pod has failed", _AGAIN
    if container.ended_by == "OOMKilled":
        return "took more memory than its limit", _MEMORY
    if container.exit_code > 128:
        return f"was killed by signal {container.exit_code - 128}", _AGAIN
    return f"ended with status {container.exit_code}", None


def _node(pod: Pod | None) -> str | None:
    return pod.node or None if pod else None
