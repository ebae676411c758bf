"""A job of a build: a pod that calls trtspec once, and what it may reach.

The recipe travels in an annotation of the pod, which it reads as a file: so a job is one object, and nothing
is left of it when it goes.
"""

from __future__ import annotations

from trtspec.deploy.pod import RECIPE, SHARED_MEMORY, TEMPORARY
from trtspec.jobs.job import SHARED_MEMORY as SHARED_BYTES
from trtspec.jobs.job import Job
from trtspec.kubernetes.deriving import default_image, gib, gpu_choice, name_of
from trtspec.kubernetes.kinds import jobs as kinds
from trtspec.kubernetes.kinds.base import Meta, Selector
from trtspec.kubernetes.kinds.pods import (
    Affinity,
    ClaimSource,
    Container,
    EmptyDirSource,
    FieldRef,
    HostPathSource,
    Mount,
    ObjectRef,
    PodField,
    PodFields,
    PodSpec,
    PodTemplate,
    Resources,
    Toleration,
    Variable,
    VariablesFrom,
    Volume,
)
from trtspec.kubernetes.kinds.policies import Egress, NetworkPolicy, NetworkPolicySpec, PolicyPort
from trtspec.kubernetes.rendering.labels import INSTANCE
from trtspec.kubernetes.rendering.parts import GPU, NOBODY, NOTHING
from trtspec.kubernetes.rendering.pod import gpu_nodes
from trtspec.recipe.kubernetes import EmptyDir, HostPath, OwnClaim
from trtspec.recipe.schema import Recipe
from trtspec.units import GIB

CONTAINER = "build"
WORK = "/scratch"
"""The volume in which models, checkpoints and engines are made."""

BUILDS = {"app.kubernetes.io/name": "trtspec-build", "app.kubernetes.io/component": "build"}
"""The labels of all jobs of builds, and of their pods."""

QUEUE = "kueue.x-k8s.io/queue-name"
TITLE = "trtspec/title"
_TEXT = "trtspec/recipe"
_VOLUME, _RECIPE, _TEMPORARY, _MEMORY = "work", "recipe", "temporary", "shared-memory"
_DIGITS = 16
_RETRIES = 3
_KEPT_S = 86_400  # a second call tells the next day how a job ended
_END_S = 60  # to give back what it holds in the store
_HOUR_S = 3_600

# On a disk are the model, which may have twice the bytes of its checkpoint, the checkpoint and the engine.
_LOGS, _TIMES_ON_DISK = GIB, 4
# Statuses of trtspec that another try does not change, and SIGKILL: without a disruption it is for memory.
_FINAL = (1, 2, 137)


def job_object(job: Job, version: str) -> kinds.Job:
    """Returns a job of a build as Kubernetes takes it; `version` is that of trtspec."""
    recipe = job.recipe
    build = recipe.kubernetes.build
    queue = {QUEUE: build.queue} if build.queue else {}
    return kinds.Job(
        Meta(job.name, labels={**_labels(recipe, version), **queue}, annotations={TITLE: job.title}),
        kinds.JobSpec(
            backoff_limit=_RETRIES,
            active_deadline_seconds=build.limit_hours * _HOUR_S,
            ttl_seconds_after_finished=_KEPT_S,
            pod_failure_policy=kinds.FailurePolicy(
                [
                    kinds.FailureRule("Ignore", on_pod_conditions=[kinds.PodCondition("DisruptionTarget")]),
                    kinds.FailureRule("FailJob", on_exit_codes=kinds.ExitCodes(CONTAINER, "In", _FINAL)),
                ]
            ),
            template=_pod(job, version),
            suspend=True if build.queue else None,
        ),
    )


def network_policy(recipe: Recipe, version: str) -> NetworkPolicy:
    """Returns a policy by which the pods of a recipe's jobs reach names, the store and the Hub.

    Nobody reaches them.
    """
    egress = [Egress([PolicyPort(53, "UDP"), PolicyPort(53)])]
    if ports := recipe.kubernetes.egress_ports:
        egress.append(Egress([PolicyPort(port) for port in ports]))
    return NetworkPolicy(
        Meta(f"{_instance(recipe)}-build", labels=_labels(recipe, version)),
        NetworkPolicySpec(Selector(_chosen_by(recipe)), ["Ingress", "Egress"], ingress=[], egress=egress),
    )


def _pod(job: Job, version: str) -> PodTemplate:
    options, recipe = job.recipe.kubernetes, job.recipe
    gpu = gpu_choice(recipe) if job.gpus else None
    tolerated = [GPU] if gpu else []
    texts = {**options.annotations, _TEXT: job.file.read_text(encoding="utf-8")}
    return PodTemplate(
        Meta(labels=_labels(recipe, version), annotations=texts),
        PodSpec(
            service_account_name=options.service_account or "default",
            automount_service_account_token=False,
            enable_service_links=False,
            termination_grace_period_seconds=_END_S,
            security_context=NOBODY,
            containers=[_container(job, version)],
            volumes=_volumes(recipe),
            image_pull_secrets=[ObjectRef(name) for name in options.secrets.image_pull] or None,
            affinity=Affinity(gpu_nodes(gpu)) if gpu else None,
            node_selector=(options.node_selector or None) if gpu else None,
            tolerations=[Toleration(key, "Exists") for key in (*tolerated, *options.tolerations)] or None,
            runtime_class_name=options.runtime_class if gpu else None,
            priority_class_name=options.build.priority_class or options.priority_class,
            restart_policy="Never",
        ),
    )


def _container(job: Job, version: str) -> Container:
    options = job.recipe.kubernetes
    secret = options.build.secret or options.secrets.store
    store = options.store or job.store
    environment = {
        "HOME": str(TEMPORARY),
        "HF_HOME": f"{WORK}/huggingface",
        "TRTSPEC_CACHE": f"{WORK}/cache",
    }
    return Container(
        name=CONTAINER,
        image=options.image or default_image(job.recipe, version),
        image_pull_policy="IfNotPresent",
        args=["trtspec", *job.call(str(RECIPE), f"{WORK}/builds/{job.key[:_DIGITS]}", store)],
        env=[Variable(name, value) for name, value in environment.items()],
        env_from=[VariablesFrom(ObjectRef(secret))] if secret else None,
        resources=_resources(job),
        security_context=NOTHING,
        volume_mounts=[
            Mount(_VOLUME, WORK),
            Mount(_RECIPE, str(RECIPE.parent), read_only=True),
            Mount(_TEMPORARY, str(TEMPORARY)),
            Mount(_MEMORY, str(SHARED_MEMORY)),
        ],
        termination_message_policy="FallbackToLogsOnError",
    )


def _resources(job: Job) -> Resources:
    build, gpus = job.recipe.kubernetes.build, {GPU: job.gpus} if job.gpus else {}
    memory = build.memory or gib(job.memory)
    own = _TIMES_ON_DISK * job.size if isinstance(build.volume, EmptyDir) else 0
    disk = build.disk or gib(_LOGS + own)
    return Resources(
        requests={"cpu": build.cpu, "memory": memory, "ephemeral-storage": disk, **gpus},
        limits={"memory": memory, **gpus},
    )


def _volumes(recipe: Recipe) -> list[Volume]:
    text = PodField(RECIPE.name, FieldRef(f"metadata.annotations['{_TEXT}']"))
    return [
        _work(recipe),
        Volume(_RECIPE, downward_api=PodFields([text])),
        Volume(_TEMPORARY, empty_dir=EmptyDirSource()),
        Volume(_MEMORY, empty_dir=EmptyDirSource("Memory", gib(SHARED_BYTES))),
    ]


def _work(recipe: Recipe) -> Volume:
    volume = recipe.kubernetes.build.volume
    if isinstance(volume, HostPath):
        return Volume(_VOLUME, host_path=HostPathSource(volume.path, "Directory"))
    if isinstance(volume, OwnClaim):
        return Volume(_VOLUME, persistent_volume_claim=ClaimSource(volume.name))
    return Volume(_VOLUME, empty_dir=EmptyDirSource())


def _instance(recipe: Recipe) -> str:
    return recipe.kubernetes.name or name_of(recipe.name)


def _chosen_by(recipe: Recipe) -> dict[str, str]:
    return {**BUILDS, INSTANCE: _instance(recipe)}


def _labels(recipe: Recipe, version: str) -> dict[str, str]:
    own = {"app.kubernetes.io/version": version, "app.kubernetes.io/managed-by": "trtspec"}
    return {**recipe.kubernetes.labels, **_chosen_by(recipe), **own}
