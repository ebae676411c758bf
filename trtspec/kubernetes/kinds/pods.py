"""The parts of a pod (`core/v1`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trtspec.kubernetes.kinds.base import Meta, Selector


@dataclass(frozen=True, slots=True)
class ObjectRef:
    """Another object of the namespace, by its name."""

    name: str


@dataclass(frozen=True, slots=True)
class FieldRef:
    """A field of the pod itself."""

    field_path: str


@dataclass(frozen=True, slots=True)
class KeyRef:
    """One key of a Secret."""

    name: str
    key: str


@dataclass(frozen=True, slots=True)
class VariableSource:
    """Where a variable's value comes from."""

    secret_key_ref: KeyRef


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable of a container's environment, with its value or where that comes from."""

    name: str
    value: str | None = None
    value_from: VariableSource | None = None


@dataclass(frozen=True, slots=True)
class VariablesFrom:
    """A Secret each of whose keys becomes a variable."""

    secret_ref: ObjectRef


@dataclass(frozen=True, slots=True)
class ContainerPort:
    """A port that a container listens on."""

    name: str
    container_port: int


@dataclass(frozen=True, slots=True)
class HttpGet:
    """A request whose status 200 to 399 is a success; `port` is a port's name."""

    path: str
    port: str


@dataclass(frozen=True, slots=True)
class Probe:
    """A question that the kubelet asks a container again and again; times are in seconds."""

    http_get: HttpGet
    period_seconds: int
    failure_threshold: int
    timeout_seconds: int


@dataclass(frozen=True, slots=True)
class Sleep:
    """Seconds to wait."""

    seconds: int


@dataclass(frozen=True, slots=True)
class Handler:
    """What is done at a moment of a container's life."""

    sleep: Sleep


@dataclass(frozen=True, slots=True)
class Lifecycle:
    """What is done before a container is told to stop."""

    pre_stop: Handler


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The capabilities of Linux that a container has not."""

    drop: Sequence[str]


@dataclass(frozen=True, slots=True)
class SecurityContext:
    """What a container may not do."""

    allow_privilege_escalation: bool
    read_only_root_filesystem: bool
    capabilities: Capabilities


@dataclass(frozen=True, slots=True)
class SeccompProfile:
    """The system calls that a pod may make, by the name of the kind of profile."""

    type: str


@dataclass(frozen=True, slots=True)
class PodSecurityContext:
    """The user of a pod, and what it may not do."""

    run_as_non_root: bool
    run_as_user: int
    run_as_group: int
    fs_group: int
    fs_group_change_policy: str
    seccomp_profile: SeccompProfile


@dataclass(frozen=True, slots=True)
class Resources:
    """What a container asks for, and the most that it gets, in quantities."""

    requests: Mapping[str, str | int]
    limits: Mapping[str, str | int]


@dataclass(frozen=True, slots=True)
class Mount:
    """A volume in a container's file system."""

    name: str
    mount_path: str
    read_only: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """A container of a pod; a `command` is in place of the image's entry point."""

    name: str
    image: str
    image_pull_policy: str
    command: Sequence[str] | None = None
    args: Sequence[str]
    env: Sequence[Variable] | None = None
    env_from: Sequence[VariablesFrom] | None = None
    ports: Sequence[ContainerPort] | None = None
    resources: Resources | None = None
    startup_probe: Probe | None = None
    readiness_probe: Probe | None = None
    liveness_probe: Probe | None = None
    lifecycle: Lifecycle | None = None
    security_context: SecurityContext | None = None
    volume_mounts: Sequence[Mount] | None = None
    termination_message_policy: str | None = None


@dataclass(frozen=True, slots=True)
class EmptyDirSource:
    """A folder that ends with its pod; of the kind Memory it is in the pod's memory."""

    medium: str | None = None
    size_limit: str | None = None


@dataclass(frozen=True, slots=True)
class HostPathSource:
    """A folder of the node."""

    path: str
    type: str


@dataclass(frozen=True, slots=True)
class ClaimSource:
    """A volume that is claimed."""

    claim_name: str


@dataclass(frozen=True, slots=True)
class ConfigMapSource:
    """A folder with a file for each key of a ConfigMap; an `optional` one may not be there."""

    name: str
    optional: bool | None = None


@dataclass(frozen=True, slots=True)
class SecretSource:
    """A folder with a file for each key of a Secret; `default_mode` is the mode of the files."""

    secret_name: str
    default_mode: int


@dataclass(frozen=True, slots=True)
class PodField:
    """A file of a volume that has a field of the pod itself."""

    path: str
    field_ref: FieldRef


@dataclass(frozen=True, slots=True)
class PodFields:
    """A folder with files of the pod's own fields."""

    items: Sequence[PodField]


@dataclass(frozen=True, slots=True)
class Volume:
    """A volume of a pod, of one source."""

    name: str
    empty_dir: EmptyDirSource | None = None
    host_path: HostPathSource | None = None
    persistent_volume_claim: ClaimSource | None = None
    config_map: ConfigMapSource | None = None
    secret: SecretSource | None = None
    downward_api: PodFields | None = None


@dataclass(frozen=True, slots=True)
class Requirement:
    """What a node's label must be."""

    key: str
    operator: str
    values: Sequence[str]


@dataclass(frozen=True, slots=True)
class NodeTerm:
    """Requirements of which a node must fulfil all."""

    match_expressions: Sequence[Requirement]


@dataclass(frozen=True, slots=True)
class NodeSelector:
    """Terms of which a node must fulfil one."""

    node_selector_terms: Sequence[NodeTerm]


@dataclass(frozen=True, slots=True)
class NodeAffinity:
    """The nodes that a pod may be on."""

    required_during_scheduling_ignored_during_execution: NodeSelector


@dataclass(frozen=True, slots=True)
class PodTerm:
    """Pods, and the label of nodes whose value says what is one place."""

    label_selector: Selector
    topology_key: str


@dataclass(frozen=True, slots=True)
class WeightedPodTerm:
    """A term that counts so much, 1 to 100."""

    weight: int
    pod_affinity_term: PodTerm


@dataclass(frozen=True, slots=True)
class PodAntiAffinity:
    """The pods that a pod had better not be beside."""

    preferred_during_scheduling_ignored_during_execution: Sequence[WeightedPodTerm]


@dataclass(frozen=True, slots=True)
class Affinity:
    """Where a pod goes."""

    node_affinity: NodeAffinity | None = None
    pod_anti_affinity: PodAntiAffinity | None = None


@dataclass(frozen=True, slots=True)
class Toleration:
    """A taint that a pod may be on a node in spite of."""

    key: str
    operator: str


@dataclass(frozen=True, slots=True)
class Spread:
    """How evenly pods are spread over places."""

    max_skew: int
    topology_key: str
    when_unsatisfiable: str
    label_selector: Selector


@dataclass(frozen=True, slots=True)
class PodSpec:
    """A pod."""

    service_account_name: str
    automount_service_account_token: bool
    enable_service_links: bool
    termination_grace_period_seconds: int
    security_context: PodSecurityContext
    containers: Sequence[Container]
    volumes: Sequence[Volume]
    init_containers: Sequence[Container] | None = None
    image_pull_secrets: Sequence[ObjectRef] | None = None
    affinity: Affinity | None = None
    node_selector: Mapping[str, str] | None = None
    tolerations: Sequence[Toleration] | None = None
    topology_spread_constraints: Sequence[Spread] | None = None
    runtime_class_name: str | None = None
    priority_class_name: str | None = None
    restart_policy: str | None = None


@dataclass(frozen=True, slots=True)
class PodTemplate:
    """What the pods of a workload are made from."""

    metadata: Meta
    spec: PodSpec
