"""Waiting for pods that come up, and for those that do not, each with its reason."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.fakes.kubernetes import kserve, scripts
from tests.fakes.kubernetes.emulator import NAMESPACE, Emulator
from tests.fakes.kubernetes.scripts import Script
from trtspec.base.errors import ClusterError
from trtspec.cluster.kubernetes.cluster import Cluster
from trtspec.cluster.kubernetes.objects import DEPLOYMENT, INFERENCE_SERVICE, Ref
from trtspec.cluster.kubernetes.release import PodWait
from trtspec.cluster.kubernetes.troubles import Trouble

LABELS = {"app.kubernetes.io/instance": "llama", "app.kubernetes.io/managed-by": "trtspec"}


def config_map(name: str, **data: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "labels": LABELS},
        "data": data,
    }


def claim(name: str) -> dict[str, Any]:
    spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    metadata = {"name": name, "labels": LABELS}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec}


def inference_service(digest: str) -> dict[str, Any]:
    predictor = {
        "annotations": {"trtspec/digest": digest},
        "labels": LABELS,
        "minReplicas": 2,
        "model": {"modelFormat": {"name": "trtspec"}},
    }
    return {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": {"name": "llama", "labels": LABELS},
        "spec": {"predictor": predictor},
    }


def deployment(image: str = "trtspec:1", replicas: int = 2, name: str = "llama") -> dict[str, Any]:
    pod = {
        "initContainers": [{"name": "pull", "image": image}],
        "containers": [{"name": "server", "image": image}],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "labels": LABELS},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": LABELS},
            "strategy": {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            "template": {"metadata": {"labels": LABELS}, "spec": pod},
        },
    }


LLAMA = Ref(DEPLOYMENT, "llama")


@dataclass
class Heard:
    """What a listener was told."""

    words: list[str] = field(default_factory=list)
    troubles: list[Trouble] = field(default_factory=list)

    def stands(self, ready: int, wanted: int, words: str) -> None:
        said = f"{ready}/{wanted}: {words}"
        if self.words[-1:] != [said]:
            self.words.append(said)

    def troubled(self, trouble: Trouble) -> None:
        self.troubles.append(trouble)


def waited(cluster: Cluster, seconds: float = 600) -> Heard:
    heard = Heard()
    PodWait(cluster, [LLAMA], LABELS, seconds, heard).run()
    return heard


def failed(cluster: Cluster, seconds: float = 600) -> ClusterError:
    with pytest.raises(ClusterError) as error:
        PodWait(cluster, [LLAMA], LABELS, seconds, Heard()).run()
    return error.value


def test_pods_that_come_up(cluster: Cluster, emulator: Emulator) -> None:
    cluster.apply(deployment())
    heard = waited(cluster)
    assert heard.troubles == []
    assert heard.words == [
        "0/2: 2 in init container pull",
        "0/2: 2 loading",
        "2/2: 2 ready",
    ]
    assert emulator.now == 6


def test_an_update_is_over_when_no_old_pod_is_left(cluster: Cluster, emulator: Emulator) -> None:
    cluster.apply(deployment())
    waited(cluster)
    cluster.apply(deployment("trtspec:2"))
    heard = waited(cluster)
    assert [pod.spec["containers"][0]["image"] for pod in emulator.pods()] == ["trtspec:2"] * 2
    # One more than two at a time, since one may be too many.
    assert heard.words[0] == "2/2: 1 in init container pull"


CASES: dict[str, tuple[Script, float, str, str, tuple[str, ...]]] = {
    "the image is not there": (
        scripts.no_image("rpc error: code = NotFound desc = reg/trtspec:1: not found"),
        0,
        "its image cannot be pulled: rpc error: code = NotFound desc = reg/trtspec:1: not found",
        "kubernetes.image in the recipe",
        (),
    ),
    "the image's name is none": (
        scripts.no_image("couldn't parse image name", first="InvalidImageName"),
        0,
        "its image cannot be pulled: couldn't parse image name",
        "kubernetes.image in the recipe",
        (),
    ),
    "the registry does not answer": (
        scripts.no_image("dial tcp 10.0.0.1:443: i/o timeout"),
        120,
        "its image cannot be pulled: Back-off pulling image",
        "kubernetes.image in the recipe",
        (),
    ),
    "the registry of an image whose digest looks like a refusal does not answer": (
        scripts.no_image(f"reg/trtspec@sha256:{'7401' * 16}: dial tcp 10.0.0.1:443: i/o timeout"),
        120,
        "its image cannot be pulled: Back-off pulling image",
        "kubernetes.image in the recipe",
        (),
    ),
    "the registry lets nobody in": (
        scripts.no_image("unexpected status from HEAD request to https://reg/v2/: 403 Forbidden"),
        0,
        "its image cannot be pulled: unexpected status from HEAD request to https://reg/v2/: 403 Forbidden",
        "kubernetes.image in the recipe",
        (),
    ),
    "it crashes": (
        scripts.crashing("loading\nerror: no GPU is to be seen\n"),
        # Two restarts, after 12 s each, and a third end.
        26,
        "container server ended with 1, 3 times so far",
        "kubectl logs pod/",
        ("loading", "error: no GPU is to be seen"),
    ),
    "its memory is too small": (
        scripts.crashing("loading\n", 137, "OOMKilled"),
        26,
        "container server took more memory than its limit, 3 times so far",
        "kubernetes.resources.memory",
        ("loading",),
    ),
    "the engines cannot be pulled": (
        scripts.init_crashing("error: s3://engines: no entry abc\n"),
        14,
        "init container pull ended with 1, 2 times so far",
        "kubectl logs pod/",
        ("error: s3://engines: no entry abc",),
    ),
    "no node fits": (
        scripts.unschedulable("0/3 nodes are available: 3 Insufficient nvidia.com/gpu."),
        180,
        "no node takes it: 0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
        "kubectl get nodes -L nvidia.com/gpu.product",
        (),
    ),
    "no node will come": (
        scripts.unschedulable(
            "0/3 nodes are available.",
            ("NotTriggerScaleUp", "pod didn't trigger scale-up: 1 max size"),
        ),
        0,
        "no node takes it: 0/3 nodes are available.; pod didn't trigger scale-up: 1 max size",
        "kubectl get nodes",
        (),
    ),
    "a node is on its way for ever": (
        scripts.unschedulable("0/3 nodes are available.", ("TriggeredScaleUp", "pod triggered scale-up")),
        600,
        "no node takes it: 0/3 nodes are available., after 600 s",
        "kubectl get nodes",
        (),
    ),
    "a volume is not there": (
        scripts.unschedulable('persistentvolumeclaim "cache" not found'),
        180,
        'no node takes it: persistentvolumeclaim "cache" not found',
        "kubectl get pvc",
        (),
    ),
    "a secret is not there": (
        scripts.not_made("CreateContainerConfigError", 'secret "store-keys" not found'),
        30,
        'container server cannot be created: secret "store-keys" not found',
        "kubectl create secret generic store-keys -n serving",
        (),
    ),
    "it is never ready": (
        scripts.probe_failing("Readiness probe failed: statuscode: 503", log="loading\n"),
        600,
        "is not ready: Readiness probe failed: statuscode: 503, after 600 s",
        "--timeout waits longer",
        ("loading",),
    ),
    "it was evicted": (
        scripts.evicted("The node was low on resource: ephemeral-storage."),
        120,
        "Evicted: The node was low on resource: ephemeral-storage.",
        "kubectl describe pod",
        (),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_pod_that_does_not_come_up(cluster: Cluster, emulator: Emulator, case: str) -> None:
    script, seconds, problem, repair, lines = CASES[case]
    emulator.script = lambda template: script
    cluster.apply(deployment())
    error = failed(cluster)
    assert error.subject.startswith("pod/llama-")
    assert error.problem.startswith(problem)
    assert repair in str(error.repair)
    assert error.lines == lines
    assert emulator.now == pytest.approx(seconds, abs=1)


def test_a_pod_that_was_evicted_and_replaced_is_no_trouble(cluster: Cluster, emulator: Emulator) -> None:
    lives = iter((scripts.evicted("The node was low on resource: memory."),))
    emulator.script = lambda template: next(lives, scripts.ready(200))
    cluster.apply(deployment())
    assert waited(cluster).troubles == []
    assert [pod.moment(emulator.now).status["phase"] for pod in emulator.pods()].count("Failed") == 1


def test_a_probe_that_restarts_it_is_the_reason(cluster: Cluster, emulator: Emulator) -> None:
    words = "Startup probe failed: Get http://10.0.0.7:8000/v2/health/ready: connection refused"
    emulator.script = lambda template: scripts.probe_failing(words, restarts_after=60, log="loading\n")
    cluster.apply(deployment())
    heard = Heard()
    with pytest.raises(ClusterError) as error:
        PodWait(cluster, [LLAMA], LABELS, 300, heard).run()
    assert [trouble.kind for trouble in heard.troubles] == ["probe of server"]
    assert "Container server failed startup probe, will be restarted: " + words in error.value.problem


def test_waiting_tells_each_passing_trouble_once_and_goes_on(cluster: Cluster, emulator: Emulator) -> None:
    lacking, crashing, up = (
        scripts.unschedulable("0/1 nodes are available."),
        scripts.crashing("not yet\n"),
        scripts.ready(200),
    )

    def script(spec: dict[str, object], age: float) -> scripts.Moment:
        return lacking(spec, age) if age < 100 else crashing(spec, age - 100) if age < 115 else up(spec, age)

    emulator.script = lambda template: script
    cluster.apply(deployment())
    heard = waited(cluster)
    assert [trouble.kind for trouble in heard.troubles] == ["unscheduled", "end of server"]
    assert [math.isinf(trouble.passes_within_s) for trouble in heard.troubles] == [False, True]
    assert emulator.now == pytest.approx(200, abs=1)


@pytest.mark.parametrize(
    ("words", "problem", "repair"),
    [
        (
            'pods "llama-1" is forbidden: exceeded quota: gpus, requested: requests.nvidia.com/gpu=1,'
            " used: requests.nvidia.com/gpu=4, limited: requests.nvidia.com/gpu=4",
            "quota gpus refuses requests.nvidia.com/gpu=1: requests.nvidia.com/gpu=4 of"
            " requests.nvidia.com/gpu=4 is in use",
            "kubectl describe quota gpus -n serving",
        ),
        (
            'admission webhook "validate.kyverno.svc-fail" denied the request: images must be signed',
            "admission webhook validate.kyverno.svc-fail denies it: images must be signed",
            "change what it names in the recipe",
        ),
        (
            'pods "llama-1" is forbidden: violates PodSecurity "restricted:latest": restricted volume types',
            "the namespace's pod security (restricted:latest) does not allow it: restricted volume types",
            "put the cache on a volume claim",
        ),
    ],
)
def test_pods_that_are_not_let_in(
    cluster: Cluster, emulator: Emulator, words: str, problem: str, repair: str
) -> None:
    emulator.at_pods = lambda template, number: words if number else None
    cluster.apply(deployment())
    error = failed(cluster)
    assert (error.subject, error.problem) == ("deployment/llama", f"its pods are rejected: {problem}")
    assert repair in str(error.repair)
    assert emulator.now == pytest.approx(60, abs=1)


def test_an_api_server_that_is_away_for_a_while(cluster: Cluster, emulator: Emulator) -> None:
    cluster.apply(deployment())
    emulator.is_busy, emulator.at_time = True, lambda now: setattr(emulator, "is_busy", now < 50)
    heard = waited(cluster)
    assert [trouble.problem for trouble in heard.troubles] == [
        "the cluster is busy (HTTP 503): etcdserver: leader changed"
    ]
    assert emulator.now >= 50


def test_an_api_server_that_stays_away(cluster: Cluster, emulator: Emulator) -> None:
    cluster.apply(deployment())
    emulator.is_busy = True
    assert "the cluster is busy" in failed(cluster).problem
    assert emulator.now == pytest.approx(60, abs=2)


def test_who_may_not_see_events_or_logs_is_told_what_there_is(cluster: Cluster, emulator: Emulator) -> None:
    emulator.script = lambda template: scripts.crashing("secret\n")
    emulator.forbidden = {("list", "events"), ("get", "pods/log")}
    cluster.apply(deployment())
    error = failed(cluster)
    assert error.problem == "container server ended with 1, 3 times so far"
    assert error.lines == (
        "(the log of server cannot be read: jane may not get pods/log in namespace serving)",
    )


def test_a_workload_that_somebody_deletes(cluster: Cluster, emulator: Emulator) -> None:
    cluster.apply(deployment())
    emulator.at_time = lambda now: emulator.stored.clear() if now > 2 else None
    assert "was deleted while trtspec waited for it" in failed(cluster).problem


def test_kserve_is_judged_by_its_deployment(cluster: Cluster, emulator: Emulator) -> None:
    emulator.groups.add("serving.kserve.io")
    service = [Ref(INFERENCE_SERVICE, "llama")]
    cluster.apply(inference_service("one"))
    emulator.at_time = lambda now: kserve.reconcile(emulator, "llama") if now < 10 else None
    with pytest.raises(ClusterError):
        PodWait(cluster, service, LABELS, 30, Heard()).run()
    assert emulator.manifest("deployments", "llama-predictor")["status"]["readyReplicas"] == 2

    # An autoscaler has changed the Deployment, whose generation is then not that of the service.
    for replicas in (1, 2):
        emulator.merge(
            (NAMESPACE, "deployments", "llama-predictor"), {"spec": {"replicas": replicas}}, "", ""
        )
    emulator.at_time = lambda now: kserve.tell(emulator, "llama")
    PodWait(cluster, service, LABELS, 30, Heard()).run()
    told = emulator.manifest("inferenceservices", "llama")
    assert told["metadata"]["generation"] < told["status"]["observedGeneration"]

    # The status is still that of before the update, until KServe takes it up.
    cluster.apply(inference_service("two"))
    taken_up = emulator.now + 20

    def work(now: float) -> None:
        if now >= taken_up:
            kserve.reconcile(emulator, "llama")
            kserve.tell(emulator, "llama")

    emulator.at_time = work
    PodWait(cluster, service, LABELS, 60, Heard()).run()
    assert emulator.now > taken_up
    template = emulator.manifest("deployments", "llama-predictor")["spec"]["template"]
    assert template["metadata"]["annotations"] == {"trtspec/digest": "two"}
