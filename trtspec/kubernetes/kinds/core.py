"""Objects of the core API (`v1`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from trtspec.kubernetes.kinds.base import Object


@dataclass(frozen=True, slots=True)
class ServicePort:
    """A port of a Service, which leads to the pods' port of the name `target_port`."""

    name: str
    port: int
    target_port: str
    app_protocol: str | None = None


@dataclass(frozen=True, slots=True)
class ServiceSpec:
    """The pods behind one name, and its ports."""

    type: str
    selector: Mapping[str, str]
    ports: Sequence[ServicePort]


@dataclass(frozen=True)
class Service(Object):
    """One name for many pods."""

    api_version: ClassVar[str] = "v1"
    kind: ClassVar[str] = "Service"

    spec: ServiceSpec


@dataclass(frozen=True)
class ConfigMap(Object):
    """Text that is no secret, by its name; one that is `immutable` never changes."""

    api_version: ClassVar[str] = "v1"
    kind: ClassVar[str] = "ConfigMap"

    data: Mapping[str, str]
    immutable: bool | None = None


@dataclass(frozen=True)
class ServiceAccount(Object):
    """Who a pod is to the cluster."""

    api_version: ClassVar[str] = "v1"
    kind: ClassVar[str] = "ServiceAccount"

    automount_service_account_token: bool


@dataclass(frozen=True, slots=True)
class ClaimedResources:
    """How much is claimed, in quantities."""

    requests: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ClaimSpec:
    """A volume that is asked for; without a class it is of the cluster's default."""

    access_modes: Sequence[str]
    resources: ClaimedResources
    storage_class_name: str | None = None


@dataclass(frozen=True)
class PersistentVolumeClaim(Object):
    """A volume that outlives pods."""

    api_version: ClassVar[str] = "v1"
    kind: ClassVar[str] = "PersistentVolumeClaim"

    spec: ClaimSpec
