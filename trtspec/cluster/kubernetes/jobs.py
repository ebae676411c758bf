"""Schedules builds on Kubernetes: each job is a Job of the same name."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path, PurePosixPath

from trtspec.base.errors import ClusterError, JobError, RecipeError, UnavailableError
from trtspec.base.findings import Finding
from trtspec.cluster.jobs.job import ClusterJob, JobState, Phase
from trtspec.cluster.kubernetes import job_states, pods
from trtspec.cluster.kubernetes.cluster import Cluster, Manifest, UnreachableError
from trtspec.cluster.kubernetes.job_object import BUILDS, CONTAINER, WORK, job_object, network_policy
from trtspec.cluster.kubernetes.job_states import JobObject
from trtspec.cluster.kubernetes.pods import Pod
from trtspec.cluster.kubernetes.refusals import RefusedByCluster
from trtspec.cluster.kubernetes.resources import JOB, POD, Ref
from trtspec.cluster.kubernetes.troubles import Event
from trtspec.cluster.kubernetes.yaml_text import to_yaml
from trtspec.pipeline.store.address import StoreAddress
from trtspec.recipe.kubernetes import EmptyDir
from trtspec.recipe.loader import LoadedRecipe

OWNER = "batch.kubernetes.io/controller-uid"
"""Kubernetes' label of a pod's job; a job that was created again has another value."""

_GONE_S, _LOOK_S = 120.0, 1.0
_LOST = JobState(Phase.LOST, "is no longer in the cluster")


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
        here = self._pods() if found else {}
        return {name: name for name, job in found.items() if not self._look(job, here).phase.is_over}

    def submit(self, job: ClusterJob, after: Sequence[str]) -> str:
        with _explained():
            if self._is_free(job.name):
                for thing in self._objects(job):
                    self._cluster.apply(thing, force=True)
        return job.name

    def states(self, jobs: Mapping[str, ClusterJob]) -> Mapping[str, JobState]:
        if not jobs:
            return {}
        found, here = self._jobs(), self._pods()
        return {name: self._state(job, found.get(name), here) for name, job in jobs.items()}

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
            found = job_states.parse(manifest)
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
            found = map(job_states.parse, self._cluster.labelled(JOB, BUILDS))
            return {job.name: job for job in found}

    def _pods(self) -> dict[str, list[Pod]]:
        """Returns the pods by their jobs."""
        found = dict[str, list[Pod]]()
        with _explained():
            for pod in map(pods.parse, self._cluster.labelled(POD, BUILDS)):
                found.setdefault(pod.labels.get(OWNER, ""), []).append(pod)
        return found

    def _state(self, job: ClusterJob, found: JobObject | None, here: Mapping[str, list[Pod]]) -> JobState:
        if found is None:
            return _LOST
        with _explained():
            self._logs.bring(here.get(found.uid, []), job.log)
        return self._look(found, here)

    def _look(self, job: JobObject, here: Mapping[str, list[Pod]]) -> JobState:
        """Returns the state of a job; `here` has the pods of all jobs."""
        own = here.get(job.uid, [])
        with _explained():
            return job_states.state_of(job, own, self._events(job, own), self._cluster.namespace)

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
