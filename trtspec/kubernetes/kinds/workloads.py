"""Workloads: Deployment (`apps/v1`)."""

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
