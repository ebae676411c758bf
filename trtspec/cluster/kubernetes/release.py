"""Deploys, waits for, finds and stops releases of the chart in a namespace; one that fails is rolled back.

The installed Helm renders the chart, and creates, reads and deletes releases. It does not wait here: it knows
when a Deployment is ready, but not why its pods are not.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from http import HTTPStatus
from importlib.resources import as_file, files
from typing import Any, Protocol

from trtspec.base.causes import find_cause
from trtspec.base.errors import ClusterError, UnavailableError
from trtspec.base.progress import Advance
from trtspec.cli.terminal.output import out
from trtspec.cluster.kubernetes import pods
from trtspec.cluster.kubernetes.cluster import MANAGER, SCALER, Cluster, Manifest, UnreachableError
from trtspec.cluster.kubernetes.objects import (
    CONFIG_MAP,
    DEPLOYMENT,
    HTTP_ROUTE,
    INFERENCE_POOL,
    INFERENCE_SERVICE,
    INSTANCE,
    LEADER_WORKER_SET,
    MONITORS,
    OURS,
    POD,
    SCALED_OBJECT,
    VOLUME_CLAIM,
    Ref,
    Resource,
    of_instance,
    ref_of,
)
from trtspec.cluster.kubernetes.pods import Pod
from trtspec.cluster.kubernetes.refusals import RefusedByCluster, helms_words
from trtspec.cluster.kubernetes.troubles import Trouble, denied, trouble_of, unready
from trtspec.cluster.kubernetes.values import Values, chart_values
from trtspec.cluster.tool import run_tool
from trtspec.deployment.server import CAUSES
from trtspec.recipe.kubernetes import Claim

_HELM = "helm"
_INSTALL = "install Helm 4 or newer: helm.sh/docs/intro/install; deploy --helm-values needs none"
_HISTORY = ("--history-max", "20")
_FORCE = "--force-conflicts"
_HOLDER = re.compile(r'conflicts? with "([^"]+)"')
_ABSENT = "release: not found"


def template(values: Values, context: str | None) -> str:
    """Returns the objects of a deployment as YAML, including those of operators that a cluster may lack.

    No cluster is asked. If the values name no namespace, it is that of the kubeconfig's context.
    """
    kinds = ",".join(f"{each.api_version}/{each.kind}" for each in MONITORS)
    where = (
        *(("--kube-context", context) if context else ()),
        *(("--namespace", values.namespace) if values.namespace else ()),
    )
    words = ("template", values.name, *where, "--api-versions", kinds)
    return _with_chart(words, chart_values(values), values.namespace or "")


class Helm:
    """Releases of the chart in a cluster's namespace. Methods raise `ClusterError` if Helm or the cluster
    refuses."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster, self._namespace = cluster, cluster.namespace
        context = ("--kube-context", cluster.context) if cluster.has_context else ()
        self._where = (*context, "--namespace", cluster.namespace)

    def upgrade(self, values: Values, *, force: bool) -> None:
        """Updates the release to the values, or creates it; returns when the API server has its objects.

        With `force` it takes over objects and fields of others.
        """
        taken = ("--take-ownership", _FORCE) if force else ()
        words = ("upgrade", values.name, *self._where, *_HISTORY, "--hide-notes", "--install", *taken)
        try:
            _with_chart(words, chart_values(values), self._namespace)
        except ClusterError as error:
            # The replicas are ours: the handover to an autoscaler sets them in our name.
            holders = set(_HOLDER.findall(error.problem))
            if not holders or not holders <= {MANAGER, SCALER}:
                raise
            _with_chart((*words, _FORCE), chart_values(values), self._namespace)

    def revision(self, name: str) -> int | None:
        """Returns the number of the release's revision that serves; None if there is none."""
        try:
            history = json.loads(self._ask("history", name, "--output", "json"))
        except ClusterError as error:
            if _ABSENT in error.problem:
                return None
            raise
        deployed = [each["revision"] for each in history if each["status"] == "deployed"]
        return max(deployed, default=None)

    def releases(self) -> list[str]:
        """Returns the names of the releases of the chart, in whatever state."""
        found = json.loads(self._ask("list", "--output", "json"))
        return sorted(each["name"] for each in found if each["chart"].startswith("trtspec-"))

    def rollback(self, name: str, revision: int, *, force: bool) -> None:
        """Rolls a release back to a revision; with `force` it takes over fields of others."""
        self._ask("rollback", name, str(revision), *_HISTORY, *([_FORCE] if force else []))

    def uninstall(self, name: str) -> None:
        """Deletes the objects of a release but not its volume claims; a missing release is no failure."""
        self._ask("uninstall", name, "--ignore-not-found")
        self.sweep(name)

    def sweep(self, name: str, *, but: Collection[str] = ()) -> None:
        """Deletes the ConfigMaps that earlier revisions of a release have left for their pods."""
        own = re.compile(rf"{re.escape(name)}-(recipe|launch)-[0-9a-f]{{8}}")
        for each in self._cluster.labelled(CONFIG_MAP, OURS):
            found = each["metadata"]["name"]
            if own.fullmatch(found) and found not in but:
                self._cluster.delete(Ref(CONFIG_MAP, found))

    def _ask(self, *words: str) -> str:
        return _run((*words, *self._where), "", self._namespace)


def _with_chart(words: tuple[str, ...], values: Mapping[str, Any], namespace: str) -> str:
    with as_file(files("trtspec.cluster.kubernetes") / "chart") as chart:
        return _run((*words[:2], str(chart), *words[2:], "--values", "-"), json.dumps(values), namespace)


def _run(words: tuple[str, ...], stdin: str, namespace: str) -> str:
    done = run_tool(_HELM, *words, stdin=stdin, repair=_INSTALL)
    if done.returncode == 0:
        return done.stdout
    if "unknown flag" in done.stderr:
        raise UnavailableError(_HELM, "is older than Helm 4", _INSTALL)
    raise helms_words(done.stderr, words[1], namespace)


DIGEST = "trtspec/digest"
"""The annotation of a template with the digest of the build that its pods serve."""

WORKLOADS: tuple[Resource, ...] = (DEPLOYMENT, LEADER_WORKER_SET, INFERENCE_SERVICE)
"""The kinds that have pods; trtspec waits for these."""

LOOK_S = 2.0
LOG_LINES = 12
_READ_LINES = 400  # a cause is reported before its consequences
_ABSENCE_S = 60.0
_ASKED = 3
"""Events are requested for at most this many pods; a problem of a hundred pods is one of the first as
well."""


@dataclass(frozen=True, slots=True)
class ReplicaCounts:
    """The counts of a workload's replicas."""

    ref: Ref
    wanted: int
    """The desired number of replicas."""
    updated: int
    """The number of replicas that are of the newest template."""
    ready: int
    """The number of replicas that serve."""
    total: int
    """The number of all replicas, including those of older templates."""
    is_seen: bool
    """True if the controller has seen the newest manifest."""
    denied: str = ""
    """The reason why the controller cannot make pods."""
    image: str = ""
    build: str = ""
    """The digest of the build that the newest template serves."""

    @property
    def is_done(self) -> bool:
        """True if all replicas are of the newest template and ready, and no other is left."""
        counts = self.updated, self.ready, self.total
        return self.is_seen and all(number == self.wanted for number in counts)


def look_at(cluster: Cluster, manifest: Manifest) -> ReplicaCounts:
    """Returns the workload of an object; an InferenceService has the counts of KServe's Deployment."""
    ref = ref_of(manifest)
    if ref.resource != INFERENCE_SERVICE:
        return parse_workload(manifest)
    return parse_workload(manifest, cluster.find(Ref(DEPLOYMENT, f"{ref.name}-predictor")))


def parse_workload(manifest: Mapping[str, Any], predictor: Mapping[str, Any] | None = None) -> ReplicaCounts:
    """Returns the workload from the API server's object; `predictor` is the Deployment that KServe made."""
    ref, metadata, spec = ref_of(manifest), manifest["metadata"], manifest["spec"]
    status = manifest.get("status") or {}
    conditions = {each["type"]: each for each in status.get("conditions") or ()}
    if ref.resource == INFERENCE_SERVICE:
        is_ready = (conditions.get("Ready") or {}).get("status") == "True"
        return _of_kserve(ref, spec.get("predictor") or {}, predictor, is_ready=is_ready)
    wanted = spec.get("replicas", 1)
    failure = conditions.get("ReplicaFailure") or {}
    # Other controllers than Kubernetes' own need not report what they have seen.
    unseen = 0 if ref.resource == DEPLOYMENT else metadata.get("generation", 0)
    return ReplicaCounts(
        ref,
        wanted,
        status.get("updatedReplicas") or 0,
        status.get("readyReplicas") or 0,
        status.get("replicas") or 0,
        status.get("observedGeneration", unseen) == metadata.get("generation", 0),
        (failure.get("message") or failure.get("reason") or "") if failure.get("status") == "True" else "",
        **_image_and_build(spec),
    )


def _of_kserve(
    ref: Ref, wanted: Mapping[str, Any], predictor: Mapping[str, Any] | None, *, is_ready: bool
) -> ReplicaCounts:
    """Returns an InferenceService with the counts of its Deployment.

    The service's own status counts the generations of that Deployment, and may be older than an update.
    """
    if predictor is None:
        return ReplicaCounts(ref, wanted.get("minReplicas", 1), 0, 0, 0, is_seen=False)
    made = parse_workload(predictor)
    is_newest = made.build == ((wanted.get("annotations") or {}).get(DIGEST) or "")
    return replace(made, ref=ref, ready=made.ready if is_ready else 0, is_seen=made.is_seen and is_newest)


def _image_and_build(spec: Mapping[str, Any]) -> dict[str, str]:
    """Returns the image and the build of a workload's template."""
    template = spec.get("template") or (spec.get("leaderWorkerTemplate") or {}).get("workerTemplate") or {}
    containers = (template.get("spec") or {}).get("containers") or [{}]
    annotations = (template.get("metadata") or {}).get("annotations") or {}
    return {"image": containers[0].get("image") or "", "build": annotations.get(DIGEST) or ""}


class PodListener(Protocol):
    """Is notified of the progress of the pods."""

    def stands(self, ready: int, wanted: int, words: str) -> None:
        """Called after every check."""
        ...

    def troubled(self, trouble: Trouble) -> None:
        """Called once for each problem that may pass."""
        ...


class _NotUpError(ClusterError):
    """Raised for pods that do not start. The end of `log` is shown, and it may have a known cause."""

    def __init__(self, trouble: Trouble, log: Sequence[str]) -> None:
        problem, repair = trouble.problem, trouble.repair
        if cause := find_cause(CAUSES, "\n".join(log)):
            problem, repair = f"{problem}: {cause[0]}", cause[1]
        super().__init__(trouble.subject, problem, repair)
        self.lines = tuple(log[-LOG_LINES:])


class PodWait:
    """Waits until all replicas of workloads are ready and none of an older template is left.

    `labels` select their pods. A problem that cannot pass ends the wait at once; others may last as long as
    each can, or `seconds` without progress.
    """

    def __init__(
        self,
        cluster: Cluster,
        refs: Sequence[Ref],
        labels: Mapping[str, str],
        seconds: float,
        listener: PodListener,
    ) -> None:
        self._cluster, self._refs, self._labels, self._listener = cluster, refs, labels, listener
        self._seconds, self._best, self._ends = seconds, -1, 0.0
        self._since: dict[tuple[str, str], float] = {}
        self._reported: set[str] = set()
        self._absent_since: float | None = None

    def run(self) -> None:
        """Raises `ClusterError` with the reason if they do not start."""
        while True:
            try:
                if self._look():
                    return
                self._absent_since = None
            except (UnreachableError, RefusedByCluster) as error:
                self._bear(error)
            time.sleep(LOOK_S)

    def _look(self) -> bool:
        now = time.monotonic()
        cluster = self._cluster
        found = [look_at(cluster, one) for ref in self._refs if (one := cluster.find(ref))]
        if len(found) < len(self._refs):
            gone = set(self._refs) - {each.ref for each in found}
            raise ClusterError(str(min(gone, key=str)), "was deleted while trtspec waited for it")
        all_pods = [pods.parse(each) for each in self._cluster.labelled(POD, self._labels)]
        new = pods.newest(all_pods)
        ready, wanted = sum(each.ready for each in found), sum(each.wanted for each in found)
        if (good := ready + sum(each.updated for each in found)) > self._best:
            self._best, self._ends = good, now + self._seconds
        self._listener.stands(min(ready, wanted), wanted, pods.summary(new))
        if all(each.is_done for each in found):
            return True
        troubles = self._troubles(found, new)
        for trouble in troubles:
            self._judge(trouble, now)
        # A problem that has passed is forgotten; if it comes back, it has its whole time again.
        lasting = {_key(trouble) for trouble in troubles}
        self._since = {key: since for key, since in self._since.items() if key in lasting}
        if now >= self._ends:
            self._give_up(troubles, new)
        return False

    def _troubles(self, found: list[ReplicaCounts], new: list[Pod]) -> list[Trouble]:
        namespace = self._cluster.namespace
        troubles = [denied(str(each.ref), each.denied, namespace) for each in found if each.denied]
        for number, pod in enumerate(sorted((pod for pod in new if not pod.is_ready), key=_worst_first)):
            events = self._cluster.events("Pod", pod.name) if number < _ASKED else []
            if trouble := trouble_of(pod, events, namespace):
                troubles.append(trouble)
        return troubles

    def _judge(self, trouble: Trouble, now: float) -> None:
        since = self._since.setdefault(_key(trouble), now)
        if now - since >= trouble.passes_within_s:
            raise _NotUpError(trouble, self._log(trouble))
        # The same problem of many pods is reported once.
        if trouble.kind not in self._reported:
            self._reported.add(trouble.kind)
            self._listener.troubled(trouble)

    def _give_up(self, troubles: list[Trouble], new: list[Pod]) -> None:
        waiting = [pod for pod in new if not pod.is_ready]
        if not troubles and waiting:
            pod = min(waiting, key=_worst_first)
            troubles = [unready(pod, self._cluster.events("Pod", pod.name))]
        if not troubles:
            troubles = [Trouble("absent", ", ".join(map(str, self._refs)), pods.summary(new), None)]
        first = troubles[0]
        problem = f"{first.problem}, after {self._seconds:.0f} s"
        raise _NotUpError(replace(first, problem=problem), self._log(first))

    def _bear(self, error: UnreachableError | RefusedByCluster) -> None:
        """Tolerates an API server that is away or busy for a while, for example during its update."""
        passes = isinstance(error, UnreachableError) or error.answer.is_passing
        now = time.monotonic()
        if self._absent_since is None:
            self._absent_since = now
        if not passes or now - self._absent_since >= _ABSENCE_S:
            raise error
        if error.problem not in self._reported:
            self._reported.add(error.problem)
            self._listener.troubled(
                Trouble("absence", error.subject, error.problem, error.repair, _ABSENCE_S)
            )

    def _log(self, trouble: Trouble) -> tuple[str, ...]:
        """Returns the end of the log that tells more, or why it cannot be read."""
        if trouble.log is None:
            return ()
        pod, (container, previous) = trouble.subject.partition("/")[2], trouble.log
        try:
            return self._cluster.log(pod, container, _READ_LINES, previous=previous)
        except (UnreachableError, RefusedByCluster) as error:
            return (f"(the log of {container} cannot be read: {error.problem})",)


def _key(trouble: Trouble) -> tuple[str, str]:
    return trouble.subject, trouble.kind


def _worst_first(pod: Pod) -> tuple[int, str]:
    return -sum(each.restarts for each in pod.containers), pod.name


_END_S = 60.0
_END_LOOK_S = 1.0


class ClusterTalk:
    """Prints how a deployment is applied and starts.

    `has_applied` is true once the cluster has it, and `has_gone_back` once it was rolled back.
    """

    def __init__(self) -> None:
        self.has_applied = self.has_gone_back = False

    def left_out(self, ref: Ref) -> None:
        out.warning(f"{ref} is left out: this cluster does not have {ref.resource.owner}")

    @contextmanager
    def applying(self) -> Iterator[None]:
        with out.progress("applying, by helm"):
            yield
        self.has_applied = True

    def going_back(self, revision: int) -> None:
        out.warning(f"rolling the release back to revision {revision}, which served before")
        self.has_gone_back = True

    @contextmanager
    def waiting(self) -> Iterator[PodTalk]:
        with out.progress("waiting for pods") as advance:
            yield PodTalk(advance)


class PodTalk:
    """Prints how pods start: in place on a terminal; elsewhere, or without progress, one line for each
    change."""

    def __init__(self, advance: Advance | None = None) -> None:
        self._advance, self._said = advance, ""

    def stands(self, ready: int, wanted: int, words: str) -> None:
        said = f"{ready} of {wanted} ready ({words})"
        if said != self._said and not (self._advance and out.draws):
            out.status(said)
        self._said = said
        if self._advance:
            self._advance(0, said)

    def troubled(self, trouble: Trouble) -> None:
        out.warning(f"{trouble.subject}: {trouble.problem}; it may pass")
        if trouble.repair:
            out.hint(trouble.repair)


def workload_of(values: Values) -> Ref:
    """Returns the workload of a deployment."""
    if values.kserve:
        return Ref(INFERENCE_SERVICE, values.name)
    return Ref(LEADER_WORKER_SET if values.group else DEPLOYMENT, values.name)


def deploy(cluster: Cluster, values: Values, talk: ClusterTalk, progress_s: float, *, force: bool) -> None:
    """Returns when all pods serve.

    Raises `ClusterError` if the cluster refuses the deployment or its pods do not start. In that case a
    release that served before is rolled back, and a new one stays for inspection. `progress_s` is the time
    without progress after which waiting ends.
    """
    helm, workload = Helm(cluster), workload_of(values)
    _check_kinds(cluster, values)
    found, before = cluster.find(workload), helm.revision(values.name)
    was_ready = found is not None and look_at(cluster, found).is_done
    monitoring = values.monitoring
    for resource, is_wanted in zip(MONITORS, (monitoring.pod_monitor, monitoring.rules), strict=True):
        if is_wanted and _unknown(cluster, resource, values.name):
            talk.left_out(Ref(resource, values.name))
    with talk.applying():
        if values.scaling:
            _hand_over(cluster, workload)
        try:
            helm.upgrade(_no_smaller(cluster, values), force=force)
        except ClusterError as error:
            if isinstance(error, RefusedByCluster) and error.answer.is_of_other_helm:
                raise
            # What was applied before is undone; an error of Helm here would hide the cause.
            with suppress(ClusterError):
                if before is None:
                    helm.uninstall(values.name)
                else:
                    helm.rollback(values.name, before, force=force)
            raise
    try:
        with talk.waiting() as listener:
            PodWait(cluster, [workload], of_instance(values.name), progress_s, listener).run()
    except ClusterError:
        if before is not None and was_ready:
            talk.going_back(before)
            helm.rollback(values.name, before, force=force)
        raise
    helm.sweep(values.name, but=[values.config_map])


def _check_kinds(cluster: Cluster, values: Values) -> None:
    """Raises `RefusedByCluster` for a kind of object that the values need and the cluster does not know."""
    gateway, scaling = values.gateway, values.scaling
    needed = {
        workload_of(values).resource: True,
        SCALED_OBJECT: scaling is not None and scaling.prometheus is not None,
        HTTP_ROUTE: gateway is not None,
        INFERENCE_POOL: gateway is not None and gateway.endpoint_picker is not None,
    }
    for resource, is_needed in needed.items():
        if is_needed and resource.owner and (error := _unknown(cluster, resource, values.name)):
            raise error


def _unknown(cluster: Cluster, resource: Resource, name: str) -> RefusedByCluster | None:
    """Returns the cluster's refusal if it does not know a kind of object; else None."""
    try:
        cluster.find(Ref(resource, name))
    except RefusedByCluster as error:
        # A caller who may not read such objects may still be allowed to create them.
        return error if error.answer.lacks_kind else None
    return None


def _hand_over(cluster: Cluster, workload: Ref) -> None:
    """Keeps the number of running replicas when an autoscaler is to set it from now on.

    A field is removed when its only manager no longer applies it, and the API's default is one replica. So
    another manager takes the field first (Kubernetes' documentation, Server-Side Apply, "Transferring
    ownership").
    """
    replicas = ((cluster.find(workload) or {}).get("spec") or {}).get("replicas")
    if replicas is None:
        return
    owned: Manifest = {"apiVersion": workload.resource.api_version, "kind": workload.resource.kind}
    owned |= {"metadata": {"name": workload.name}, "spec": {"replicas": replicas}}
    try:
        cluster.apply(owned, manager=SCALER)
    except RefusedByCluster as error:
        # The autoscaler has set another number since, and owns the field.
        if error.answer.status != HTTPStatus.CONFLICT:
            raise


def _no_smaller(cluster: Cluster, values: Values) -> Values:
    """Returns the values with a volume claim no smaller than it is already: a claim cannot shrink."""
    from kubernetes.utils.quantity import parse_quantity

    volume = values.volume
    if not isinstance(volume, Claim) or volume.name or not volume.size:
        return values
    found = cluster.find(Ref(VOLUME_CLAIM, f"{values.name}-{'engines' if values.engines else 'models'}"))
    if found is None:
        return values
    sizes = [volume.size, found["spec"]["resources"]["requests"]["storage"]]
    larger = volume.model_copy(update={"size": max(sizes, key=parse_quantity)})
    return values.model_copy(update={"volume": larger})


@dataclass(frozen=True, slots=True)
class DeployedWorkload:
    """A workload that trtspec deployed."""

    name: str
    workload: ReplicaCounts
    stages: str
    trouble: str
    """What is wrong with the workload or with a pod that is not ready; empty if nothing is."""

    @property
    def condition(self) -> str:
        """The condition in words: ready, updating, starting, stopped, or in trouble."""
        if self.workload.is_done:
            return "ready" if self.workload.wanted else "stopped"
        if self.trouble:
            return "in trouble"
        return "updating" if self.workload.ready else "starting"

    def as_json(self) -> dict[str, str]:
        workload = self.workload
        return {
            "name": self.name,
            "workload": str(workload.ref),
            "state": self.condition,
            "ready": f"{workload.ready} of {workload.wanted}",
            "build": workload.build[:12],
            "image": workload.image,
            "pods": self.stages,
            "trouble": self.trouble,
        }


def find_deployed(cluster: Cluster) -> list[DeployedWorkload]:
    """Returns trtspec's workloads in the cluster's namespace, by their names."""
    found = []
    for resource in WORKLOADS:
        for manifest in _labelled(cluster, resource):
            instance = manifest["metadata"]["labels"].get(INSTANCE, "")
            labels = (manifest["spec"].get("selector") or {}).get("matchLabels") or of_instance(instance)
            own_pods = pods.newest([pods.parse(each) for each in cluster.labelled(POD, labels)])
            workload = look_at(cluster, manifest)
            trouble = workload.denied or _trouble(cluster, own_pods)
            found.append(DeployedWorkload(instance, workload, pods.summary(own_pods), trouble))
    return sorted(found, key=lambda each: (each.name, str(each.workload.ref)))


def find_names(cluster: Cluster) -> list[str]:
    """Returns the names of the deployments in the cluster's namespace."""
    return Helm(cluster).releases()


def stop(cluster: Cluster, name: str, tell: Callable[[str], None]) -> Sequence[Ref]:
    """Stops a deployment, and waits until its pods have ended.

    Returns its volume claims, which are kept. Raises `ClusterError` if pods stay longer than their own grace
    period.
    """
    labels = of_instance(name)
    before = cluster.labelled(POD, labels)
    grace = max((each["spec"].get("terminationGracePeriodSeconds") or 30 for each in before), default=0)
    Helm(cluster).uninstall(name)
    ends = time.monotonic() + grace + _END_S
    while left := cluster.labelled(POD, labels):
        if time.monotonic() >= ends:
            stuck = left[0]["metadata"]["name"]
            repair = f"its node may be gone: kubectl describe pod {stuck} -n {cluster.namespace}"
            problem = f"has not ended {grace + _END_S:.0f} s after its deletion"
            raise ClusterError(f"pod/{stuck}", problem, repair)
        tell(f"waiting for {len(left)} pods to end")
        time.sleep(_END_LOOK_S)
    return [Ref(VOLUME_CLAIM, each["metadata"]["name"]) for each in cluster.labelled(VOLUME_CLAIM, labels)]


def _labelled(cluster: Cluster, resource: Resource) -> list[Manifest]:
    """Returns trtspec's workloads of one kind, without those that a controller has made from another.

    A kind that is not installed, or that the caller may not see, has none.
    """
    try:
        found = cluster.labelled(resource, OURS)
    except RefusedByCluster as error:
        if error.answer.lacks_kind or (resource.owner and error.answer.is_forbidden):
            return []
        raise
    return [each for each in found if not each["metadata"].get("ownerReferences")]


def _trouble(cluster: Cluster, own_pods: list[Pod]) -> str:
    for pod in own_pods:
        if not pod.is_ready:
            try:
                events = cluster.events("Pod", pod.name)
            except RefusedByCluster:
                events = []
            if found := trouble_of(pod, events, cluster.namespace):
                return f"{found.subject}: {found.problem}"
    return ""
