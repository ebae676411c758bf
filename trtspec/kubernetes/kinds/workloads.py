"""Workloads: Deployment (`apps/v1`) and LeaderWorkerSet (`leaderworkerset.x-k8s.io/v1`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from trtspec.kubernetes.kinds.base import Object, Selector
from trtspec.kubernetes.kinds.pods import PodTemplate


@dataclass(frozen=True, slots=True)
class RollingUpdate:
    """How many pods may be too many and too few during an update."""

    max_surge: int
    max_unavailable: int


@dataclass(frozen=True, slots=True)
class Strategy:
    """How an update replaces pods."""

    type: str
    rolling_update: RollingUpdate


@dataclass(frozen=True, slots=True)
class DeploymentSpec:
    """Pods that are alike; without `replicas` their number is an autoscaler's."""

    selector: Selector
    strategy: Strategy
    progress_deadline_seconds: int
    template: PodTemplate
    replicas: int | None = None


@dataclass(frozen=True)
class Deployment(Object):
    """Pods that are alike, replaced a few at a time."""

    api_version: ClassVar[str] = "apps/v1"
    kind: ClassVar[str] = "Deployment"

    spec: DeploymentSpec


@dataclass(frozen=True, slots=True)
class GroupTemplate:
    """What the pods of a group are made from: `size` of them, of which the first is the leader."""

    size: int
    restart_policy: str
    leader_template: PodTemplate
    worker_template: PodTemplate


@dataclass(frozen=True, slots=True)
class GroupStrategy:
    """How an update replaces groups."""

    type: str
    rolling_update_configuration: RollingUpdate


@dataclass(frozen=True, slots=True)
class GroupNetwork:
    """Whose Service makes names of pods, all groups' or each group's own."""

    subdomain_policy: str


@dataclass(frozen=True, slots=True)
class GroupsSpec:
    """Groups of pods that are alike; without `replicas` their number is an autoscaler's."""

    startup_policy: str
    rollout_strategy: GroupStrategy
    network_config: GroupNetwork
    leader_worker_template: GroupTemplate
    replicas: int | None = None


@dataclass(frozen=True)
class LeaderWorkerSet(Object):
    """Groups of pods that are made, and made anew, together."""

    api_version: ClassVar[str] = "leaderworkerset.x-k8s.io/v1"
    kind: ClassVar[str] = "LeaderWorkerSet"

    spec: GroupsSpec
