"""Builds as Jobs of a cluster: their objects, their states, and their logs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.fakes.kubernetes.emulator import Emulator, Refused
from tests.fakes.kubernetes.scripts import (
    Script,
    disrupted,
    evicted,
    failing,
    finishing,
    no_image,
    unschedulable,
)
from tests.support.policies import complaints
from tests.unit.cluster.kubernetes.builds import EVERY, RECIPES
from tests.unit.cluster.kubernetes.jobs import KEY, Heard, job_of, pods, run, scripted, while_waiting
from tests.unit.cluster.kubernetes.schemas import check
from trtspec.base.errors import JobError
from trtspec.cluster.jobs import ClusterJob, JobState, JobStatus, Phase, cancel
from trtspec.cluster.kubernetes.cluster import Cluster
from trtspec.cluster.kubernetes.jobs import WORK, KubernetesJobs
from trtspec.recipe.gpus import GPUS
from trtspec.recipe.kubernetes import BuildJobSection


def test_each_waits_for_those_before_it(emulator: Emulator, scheduler: KubernetesJobs, recipe: Path) -> None:
    scripted(emulator, finishing("converted\n"), finishing("built\n"), finishing("pushed\n"))
    convert = job_of(recipe, "convert")
    build = job_of(recipe, "build", gpus=1, after=(convert.name,))
    pair = job_of(recipe, "pair", after=(build.name,))
    standing, heard = run(scheduler, convert, build, pair)
    assert [event[:2] for event in heard.events if event[0] in ("submitted", "done")] == [
        *(("submitted", "convert"), ("done", "convert")),
        *(("submitted", "build"), ("done", "build")),
        *(("submitted", "pair"), ("done", "pair")),
    ]
    assert ("runs", "build", "") in heard.events
    assert standing.state(build.name).node == "gpu-1"
    assert convert.log.read_text().splitlines()[1:] == ["converted"]
    assert emulator.names("networkpolicies") == ["llama-3-1-8b-h100-build"]


def test_a_log_grows_while_its_job_runs_and_no_line_is_there_twice(
    emulator: Emulator, scheduler: KubernetesJobs, recipe: Path
) -> None:
    lines = [f"line {number}" for number in range(40)]
    scripted(emulator, finishing("\n".join(lines) + "\n", after=30.0))
    job, seen, heard = job_of(recipe), set[int](), Heard()
    heard.on_look = lambda: seen.add(len(job.log.read_text().splitlines()) if job.log.exists() else 0)
    run(scheduler, job, heard=heard)
    assert job.log.read_text().splitlines() == [f"pod {pods(emulator)[0]} on gpu-1:", *lines]
    assert len(seen) > 5


def test_a_progress_bar_in_a_log_ends_no_line(
    emulator: Emulator, scheduler: KubernetesJobs, recipe: Path
) -> None:
    """Its carriage returns are no ends of lines, and what follows them is no time."""
    lines = [f"line {number}\rLoading shards: {number}%\r Done\u2028" for number in range(20)]
    scripted(emulator, finishing("\n".join(lines) + "\n", after=15.0))
    job = job_of(recipe)
    run(scheduler, job)
    with job.log.open(newline="\n") as log:
        assert log.read().split("\n") == [f"pod {pods(emulator)[0]} on gpu-1:", *lines, ""]


@pytest.mark.parametrize(
    ("script", "reason", "repair"),
    [
        (failing(1, "error: no GPU\n"), "ended with status 1", None),
        (failing(137, reason="OOMKilled"), "took more memory than its limit", "kubernetes.build.memory"),
    ],
)
def test_a_job_that_fails_for_good_is_not_restarted_and_cancels_its_dependents(
    emulator: Emulator,
    scheduler: KubernetesJobs,
    recipe: Path,
    script: Script,
    reason: str,
    repair: str | None,
) -> None:
    scripted(emulator, script)
    build = job_of(recipe)
    pair = job_of(recipe, "pair", after=(build.name,))
    standing, _ = run(scheduler, build, pair)
    state = standing.state(build.name)
    assert (state.phase, state.reason, state.restarts) == (Phase.FAILED, reason, 0)
    assert repair is None or repair in str(state.repair)
    assert len(pods(emulator)) == 1
    assert standing.state(pair.name).phase is Phase.CANCELLED
    if reason.endswith("1"):
        assert build.log.read_text().endswith("error: no GPU\n")


def test_a_crash_is_tried_again_a_few_times(
    emulator: Emulator, scheduler: KubernetesJobs, recipe: Path
) -> None:
    scripted(emulator, failing(139, "crashed\n"))
    job = job_of(recipe)
    standing, _ = run(scheduler, job)
    state = standing.state(job.name)
    assert (state.phase, state.reason, state.restarts) == (Phase.FAILED, "was killed by signal 11", 3)
    assert job.log.read_text().count("crashed") == 4


def test_a_pod_that_gives_its_node_away_is_followed_by_another(
    emulator: Emulator, scheduler: KubernetesJobs, recipe: Path
) -> None:
    scripted(emulator, *[disrupted()] * 6, finishing("built\n"))
    job = job_of(recipe)
    standing, _ = run(scheduler, job)
    assert standing.state(job.name).phase is Phase.DONE
    assert len(pods(emulator)) == 7
    assert job.log.read_text().endswith("built\n")


def test_an_eviction_is_told(emulator: Emulator, scheduler: KubernetesJobs, recipe: Path) -> None:
    scripted(emulator, evicted("The node was low on resource: ephemeral-storage."))
    job = job_of(recipe)
    standing, _ = run(scheduler, job)
    reason = standing.state(job.name).reason
    assert reason == "was evicted from its node: The node was low on resource: ephemeral-storage."


def test_a_job_that_takes_too_long(emulator: Emulator, scheduler: KubernetesJobs, recipe: Path) -> None:
    recipe.write_text(recipe.read_text() + "kubernetes: {build: {limit_hours: 1}}\n")
    scripted(emulator, finishing(after=5000.0))
    job = job_of(recipe)

    def an_hour_later() -> None:
        emulator.now += 3590

    standing, _ = run(scheduler, job, heard=while_waiting(emulator, an_hour_later))
    state = standing.state(job.name)
    assert (state.phase, state.reason) == (Phase.FAILED, "took longer than its limit")
    assert "limit_hours" in str(state.repair)
    assert 3600 <= emulator.now < 3700


def test_a_second_call_finds_what_runs(
    emulator: Emulator, scheduler: KubernetesJobs, recipe: Path, cluster: Cluster
) -> None:
    scripted(emulator, finishing("one\ntwo\n", after=60.0))
    job, heard = job_of(recipe), Heard()

    def interrupt() -> None:
        if emulator.now > 10:
            raise KeyboardInterrupt

    heard.on_look = interrupt
    with pytest.raises(KeyboardInterrupt):
        run(scheduler, job, heard=heard)
    again = KubernetesJobs(lambda: cluster, "0.1.0", shares_files=True)
    _, heard = run(again, job)
    assert [event[0] for event in heard.events] == ["found", "runs", "done"]
    assert len(pods(emulator)) == 1
    assert job.log.read_text().splitlines()[1:] == ["one", "two"]


def test_two_calls_at_once_make_one_job(
    emulator: Emulator, scheduler: KubernetesJobs, recipe: Path, cluster: Cluster
) -> None:
    scripted(emulator, finishing())
    job = job_of(recipe)
    other = KubernetesJobs(lambda: cluster, "0.1.0", shares_files=True)
    assert scheduler.find([job.name]) == other.find([job.name]) == {}
    assert scheduler.submit(job, []) == other.submit(job, []) == job.name
    assert len(pods(emulator)) == 1


def test_a_failed_job_is_submitted_anew_by_the_next_run(
    emulator: Emulator, scheduler: KubernetesJobs, recipe: Path
) -> None:
    scripted(emulator, failing(1, "first\n"), finishing("second\n"))
    job = job_of(recipe)
    standing, _ = run(scheduler, job)
    assert standing.state(job.name).phase is Phase.FAILED
    standing, _ = run(scheduler, job)
    assert standing.state(job.name).phase is Phase.DONE
    assert standing.state(job.name).restarts == 0


def test_cancelling(emulator: Emulator, scheduler: KubernetesJobs, recipe: Path, cluster: Cluster) -> None:
    scripted(emulator, finishing(after=100.0))
    job = job_of(recipe)
    standing = JobStatus([job])
    standing.has(job.name, scheduler.submit(job, []))
    assert scheduler.how_to_cancel([job.name]) == (
        f"kubectl --context lab --namespace serving delete job {job.name}"
    )
    assert cancel(standing, scheduler) == [job.name]
    assert emulator.names("jobs") == []
    assert emulator.pods() == []


LLAMA = RECIPES / "llama-3.1-8b-h100.yaml"
EVERY_KEY = """\
kubernetes:
  name: llama
  image: registry.example.org/trtspec:0.1.0-26.06
  store: s3://inside/engines
  secrets: {store: reader, image_pull: [registry]}
  node_selector: {pool: gpus}
  tolerations: [dedicated]
  runtime_class: nvidia
  priority_class: low
  service_account: builder
  labels: {team: search}
  annotations: {example.org/note: any text}
  egress_ports: [443, 9000]
  build:
    queue: engines
    volume: {kind: claim, name: work}
    cpu: "8"
    memory: 200Gi
    disk: 10Gi
    limit_hours: 6
    secret: writer
    priority_class: high
"""

every_recipe = pytest.mark.parametrize("recipe", EVERY, ids=lambda path: path.stem)


def rendered(recipe: Path, stage: str = "build", gpus: int | None = None) -> dict[str, Any]:
    """The objects of a job by their kinds, as they are printed."""
    hardware = yaml.safe_load(recipe.read_text())["hardware"]
    own = 0 if hardware["gpu"] == "none" else hardware.get("count", 1)
    job = job_of(recipe, stage, gpus=own if gpus is None else gpus)
    script = KubernetesJobs(pytest.fail, "0.1.0", shares_files=False).script(job)
    return {each["kind"]: each for each in yaml.safe_load_all(script)}


def pod(objects: dict[str, Any]) -> dict[str, Any]:
    return dict(objects["Job"]["spec"]["template"]["spec"])


@every_recipe
@pytest.mark.parametrize("stage", ["build", "convert", "pair"])
def test_an_api_server_takes_the_jobs_of(recipe: Path, stage: str) -> None:
    objects = rendered(recipe, stage, None if stage == "build" else 0)
    assert list(objects) == ["NetworkPolicy", "Job"]
    for thing in objects.values():
        check(thing)
    assert complaints(list(objects.values())) == []
    assert objects["Job"]["metadata"]["name"] == f"trtspec-{stage}-{KEY[:16]}"
    template = objects["Job"]["spec"]["template"]
    assert template["metadata"]["annotations"]["trtspec/recipe"] == recipe.read_text()
    chosen = objects["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"]
    assert chosen.items() <= template["metadata"]["labels"].items()
    # By name and instance a deployment of the same recipe finds what is its own, and takes it away.
    for each in (template, objects["NetworkPolicy"], objects["Job"]):
        assert each["metadata"]["labels"]["app.kubernetes.io/name"] == "trtspec-build"


@every_recipe
def test_a_job_that_needs_a_gpu_is_placed_on_a_node_that_has_it(recipe: Path) -> None:
    hardware = yaml.safe_load(recipe.read_text())["hardware"]
    made, (container,) = pod(rendered(recipe)), pod(rendered(recipe))["containers"]
    if hardware["gpu"] == "none":
        assert "affinity" not in made
        assert "nvidia.com/gpu" not in container["resources"]["limits"]
        return
    gpu = GPUS[hardware["gpu"]]
    (term,) = made["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]
    assert term["matchExpressions"][0]["values"] == [gpu.label.replace(" ", "-")]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == hardware.get("count", 1)
    assert made["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists"}]


def test_a_job_that_needs_no_gpu_may_run_on_any_node() -> None:
    made = pod(rendered(LLAMA, "convert", 0))
    assert "affinity" not in made
    assert "tolerations" not in made
    assert "nvidia.com/gpu" not in made["containers"][0]["resources"]["limits"]


def test_a_job_needs_no_labels_of_gpu_feature_discovery(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(LLAMA.read_text() + "kubernetes: {gpu_labels: false}\n")
    spec = pod(rendered(recipe))
    assert "affinity" not in spec
    assert spec["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == 1


def test_every_key_arrives(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(LLAMA.read_text() + EVERY_KEY)
    assert set(yaml.safe_load(EVERY_KEY)["kubernetes"]["build"]) == set(BuildJobSection.model_fields)
    objects = rendered(recipe)
    for thing in objects.values():
        check(thing)
        assert thing["metadata"]["labels"]["team"] == "search"
        assert thing["metadata"]["labels"]["app.kubernetes.io/instance"] == "llama"
    job, made, (container,) = objects["Job"], pod(objects), pod(objects)["containers"]
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "engines"
    assert job["spec"]["suspend"] is True
    assert job["spec"]["activeDeadlineSeconds"] == 6 * 3600
    assert job["spec"]["template"]["metadata"]["annotations"]["example.org/note"] == "any text"
    assert container["image"] == "registry.example.org/trtspec:0.1.0-26.06"
    assert container["args"][:2] == ["trtspec", "build"]
    assert container["args"][container["args"].index("--store") + 1] == "s3://inside/engines"
    assert container["args"][container["args"].index("--output") + 1] == f"{WORK}/builds/{KEY[:16]}"
    assert container["args"][-2:] == ["--key", KEY]
    assert container["envFrom"] == [{"secretRef": {"name": "writer"}}]
    assert container["resources"]["requests"] == {
        "cpu": "8",
        "memory": "200Gi",
        "ephemeral-storage": "10Gi",
        "nvidia.com/gpu": 1,
    }
    assert made["volumes"][0] == {"name": "work", "persistentVolumeClaim": {"claimName": "work"}}
    assert made["serviceAccountName"] == "builder"
    assert made["priorityClassName"] == "high"
    assert made["runtimeClassName"] == "nvidia"
    assert made["nodeSelector"] == {"pool": "gpus"}
    assert made["imagePullSecrets"] == [{"name": "registry"}]
    ports = [rule["ports"] for rule in objects["NetworkPolicy"]["spec"]["egress"]]
    assert [port["port"] for rule in ports for port in rule] == [53, 53, 443, 9000]


def test_a_disruption_is_no_failure_and_what_trtspec_says_is_final() -> None:
    spec = rendered(LLAMA)["Job"]["spec"]
    ignored, final = spec["podFailurePolicy"]["rules"]
    assert ignored == {
        "action": "Ignore",
        "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
    }
    assert final["onExitCodes"] == {"containerName": "build", "operator": "In", "values": [1, 2, 137]}
    assert spec["template"]["spec"]["restartPolicy"] == "Never"


def test_memory_and_disk_follow_from_the_checkpoint() -> None:
    requests = pod(rendered(LLAMA))["containers"][0]["resources"]["requests"]
    assert requests["memory"] == f"{8 + 2 + 3 * 16}Gi"
    assert requests["ephemeral-storage"] == f"{1 + 4 * 16}Gi"


def test_without_walls(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(LLAMA.read_text() + "kubernetes: {network_policy: false}\n")
    assert list(rendered(recipe)) == ["Job"]


def test_an_image_that_is_not_there_ends_it(
    emulator: Emulator, scheduler: KubernetesJobs, recipe: Path
) -> None:
    scripted(emulator, no_image("manifest unknown"))
    job = job_of(recipe)
    standing, _ = run(scheduler, job)
    state = standing.state(job.name)
    assert state.phase is Phase.FAILED
    assert state.reason == "its image cannot be pulled: manifest unknown"
    assert "kubernetes.image" in str(state.repair)
    # The job waits on in the cluster; after the repair another takes its place.
    recipe.write_text(recipe.read_text() + "kubernetes: {image: 'registry.example.org/trtspec:1'}\n")
    scripted(emulator, finishing())
    repaired = job_of(recipe)
    standing, _ = run(scheduler, repaired)
    assert standing.state(job.name).phase is Phase.DONE
    (container,) = emulator.manifest("jobs", job.name)["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "registry.example.org/trtspec:1"


def test_a_job_waits_for_a_node(emulator: Emulator, scheduler: KubernetesJobs, recipe: Path) -> None:
    heard = while_waiting(emulator, lambda: born_again(emulator, finishing()))
    scripted(emulator, unschedulable("0/3 nodes are available: 3 Insufficient nvidia.com/gpu."))
    run(scheduler, job_of(recipe, gpus=1), heard=heard)
    assert "waits: build: no node takes it: 0/3 nodes are available" in heard.said
    assert heard.events[-1][0] == "done"


def born_again(emulator: Emulator, script: Script) -> None:
    for pod in emulator.controllers.pods:
        pod.script, pod.born = script, emulator.now


def test_a_job_waits_for_a_quota(emulator: Emulator, scheduler: KubernetesJobs, recipe: Path) -> None:
    words = (
        'pods "x" is forbidden: exceeded quota: gpus, requested: requests.nvidia.com/gpu=1,'
        " used: requests.nvidia.com/gpu=4, limited: requests.nvidia.com/gpu=4"
    )
    emulator.at_pods = lambda template, number: words

    def relent() -> None:
        emulator.at_pods = lambda template, number: None

    scripted(emulator, finishing())
    heard = while_waiting(emulator, relent)
    run(scheduler, job_of(recipe, gpus=1), heard=heard)
    assert "waits: build: its pods are rejected: " in heard.said
    assert "gpus" in heard.said
    assert heard.events[-1][0] == "done"


def test_a_queue_of_kueue_lets_a_job_in(
    emulator: Emulator, scheduler: KubernetesJobs, recipe: Path, cluster: Cluster
) -> None:
    recipe.write_text(recipe.read_text() + "kubernetes: {build: {queue: engines}}\n")
    job = job_of(recipe)

    def admit() -> None:
        assert pods(emulator) == []
        stored = emulator.stored["serving", "jobs", job.name]
        stored.merge({"spec": {"suspend": False}}, "kueue")
        emulator.settle()

    scripted(emulator, finishing())
    heard = while_waiting(emulator, admit)
    run(scheduler, job, heard=heard)
    assert "waits: build: waits in the queue engines" in heard.said
    assert heard.events[-1][0] == "done"


def test_a_webhook_that_denies(emulator: Emulator, scheduler: KubernetesJobs, recipe: Path) -> None:
    def deny(manifest: dict[str, Any]) -> None:
        if manifest["kind"] == "Job":
            words = 'admission webhook "validate.kyverno.svc" denied the request: no team label'
            raise Refused(400, "BadRequest", words)

    emulator.at_apply = deny
    with pytest.raises(JobError, match="no team label"):
        run(scheduler, job_of(recipe))


def test_a_job_that_was_deleted_is_looked_up_in_the_store(
    emulator: Emulator, scheduler: KubernetesJobs, recipe: Path, cluster: Cluster
) -> None:
    job = job_of(recipe)
    scripted(emulator, finishing(after=100.0))

    def delete() -> None:
        del emulator.stored["serving", "jobs", job.name]

    heard = while_waiting(emulator, delete)
    standing, _ = run(scheduler, job, heard=heard)
    assert standing.state(job.name).phase is Phase.FAILED
    assert standing.state(job.name).reason == "is no longer in the cluster"


def test_a_server_that_is_away_for_a_while(
    emulator: Emulator, scheduler: KubernetesJobs, recipe: Path
) -> None:
    def go_away() -> None:
        emulator.is_busy = True

    def come_back(now: float) -> None:
        if now > 60:
            emulator.is_busy = False

    emulator.at_time = come_back
    scripted(emulator, finishing(after=30.0))
    heard = while_waiting(emulator, go_away)
    run(scheduler, job_of(recipe), heard=heard)
    assert "unanswered: the cluster is busy (HTTP 503): etcdserver: leader changed" in heard.said
    assert heard.events[-1][0] == "done"


def test_rights_that_are_missing(emulator: Emulator, scheduler: KubernetesJobs, recipe: Path) -> None:
    emulator.forbidden.add(("list", "jobs"))
    with pytest.raises(JobError, match="jane"):
        run(scheduler, job_of(recipe))


def test_a_server_that_is_away_when_a_job_is_due(
    emulator: Emulator, scheduler: KubernetesJobs, recipe: Path
) -> None:
    class Leaving(Heard):
        def changed(self, job: ClusterJob, state: JobState) -> None:
            super().changed(job, state)
            emulator.is_busy = state.phase is Phase.DONE

    def come_back(now: float) -> None:
        if now > 60:
            emulator.is_busy = False

    emulator.at_time, heard = come_back, Leaving()
    scripted(emulator, finishing())
    convert = job_of(recipe, "convert")
    run(scheduler, convert, job_of(recipe, "build", after=(convert.name,)), heard=heard)
    assert "unanswered: the cluster is busy (HTTP 503)" in heard.said
    assert heard.events[-1][:2] == ("done", "build")
