"""Deploys, finds and stops releases of the chart in a namespace; one that fails is rolled back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus

from trtspec.base.errors import ClusterError
from trtspec.base.progress import Advance
from trtspec.cli.terminal.output import out
from trtspec.cluster.kubernetes import pods
from trtspec.cluster.kubernetes.cluster import SCALER, Cluster, Manifest
from trtspec.cluster.kubernetes.helm import Helm
from trtspec.cluster.kubernetes.objects import (
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
)
from trtspec.cluster.kubernetes.pods import Pod
from trtspec.cluster.kubernetes.refusals import RefusedByCluster
from trtspec.cluster.kubernetes.troubles import Trouble, trouble_of
from trtspec.cluster.kubernetes.values import Values
from trtspec.cluster.kubernetes.workloads import WORKLOADS, PodWait, ReplicaCounts, look_at
from trtspec.recipe.kubernetes import Claim

_END_S = 60.0
_LOOK_S = 1.0


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
        time.sleep(_LOOK_S)
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
