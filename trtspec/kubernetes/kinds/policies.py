"""PodDisruptionBudget (`policy/v1`) and NetworkPolicy (`networking.k8s.io/v1`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from trtspec.kubernetes.kinds.base import Object, Selector


@dataclass(frozen=True, slots=True)
class BudgetSpec:
    """How many pods may be missing because somebody empties their nodes."""

    max_unavailable: int
    unhealthy_pod_eviction_policy: str
    selector: Selector


@dataclass(frozen=True)
class PodDisruptionBudget(Object):
    """A bound on pods that are moved at once."""

    api_version: ClassVar[str] = "policy/v1"
    kind: ClassVar[str] = "PodDisruptionBudget"

    spec: BudgetSpec


@dataclass(frozen=True, slots=True)
class AnyNamespace:
    """The pods of the namespaces with these labels; with none of every namespace."""

    namespace_selector: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class SomePods:
    """The pods of the same namespace with these labels."""

    pod_selector: Selector


@dataclass(frozen=True, slots=True)
class PolicyPort:
    """A port, by its number or its name."""

    port: int | str
    protocol: str = "TCP"


@dataclass(frozen=True, slots=True)
class Ingress:
    """Who may come in, and where; None for everybody, and without `ports` for anywhere."""

    from_: Sequence[AnyNamespace | SomePods] | None
    ports: Sequence[PolicyPort] | None = None


@dataclass(frozen=True, slots=True)
class Egress:
    """Where a pod may go, anywhere on these ports; without any to the pods `to` alone."""

    ports: Sequence[PolicyPort] | None = None
    to: Sequence[SomePods] | None = None


@dataclass(frozen=True, slots=True)
class NetworkPolicySpec:
    """What may come to pods and leave them; all else may not."""

    pod_selector: Selector
    policy_types: Sequence[str]
    ingress: Sequence[Ingress]
    egress: Sequence[Egress]


@dataclass(frozen=True)
class NetworkPolicy(Object):
    """What may come to pods and leave them."""

    api_version: ClassVar[str] = "networking.k8s.io/v1"
    kind: ClassVar[str] = "NetworkPolicy"

    spec: NetworkPolicySpec
