"""Job (`batch/v1`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from trtspec.kubernetes.kinds.base import Object
from trtspec.kubernetes.kinds.pods import PodTemplate


@dataclass(frozen=True, slots=True)
class ExitCodes:
    """The exit statuses of a container, by an operator and values."""

    container_name: str
    operator: str
    values: Sequence[int]


@dataclass(frozen=True, slots=True)
class PodCondition:
    """A condition of a pod that is true."""

    type: str
    status: str = "True"


@dataclass(frozen=True, slots=True)
class FailureRule:
    """What is done about a pod that failed so."""

    action: str
    on_exit_codes: ExitCodes | None = None
    on_pod_conditions: Sequence[PodCondition] | None = None


@dataclass(frozen=True, slots=True)
class FailurePolicy:
    """Rules of which the first that fits holds."""

    rules: Sequence[FailureRule]


@dataclass(frozen=True, slots=True)
class JobSpec:
    """A pod that is to succeed once."""

    backoff_limit: int
    active_deadline_seconds: int
    ttl_seconds_after_finished: int
    pod_failure_policy: FailurePolicy
    template: PodTemplate
    suspend: bool | None = None


@dataclass(frozen=True)
class Job(Object):
    """Work that ends."""

    api_version: ClassVar[str] = "batch/v1"
    kind: ClassVar[str] = "Job"

    spec: JobSpec
