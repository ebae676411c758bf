"""KServe's ServingRuntime (`serving.kserve.io/v1alpha1`), InferenceService (`serving.kserve.io/v1beta1`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from trtspec.kubernetes.kinds.base import Object
from trtspec.kubernetes.kinds.pods import (
    Affinity,
    Container,
    ObjectRef,
    PodSecurityContext,
    Spread,
    Toleration,
    Volume,
)


@dataclass(frozen=True, slots=True)
class ModelFormat:
    """A format of models by its name; a runtime with `auto_select` is taken for any model of the format."""

    name: str
    version: str | None = None
    auto_select: bool | None = None


@dataclass(frozen=True, slots=True)
class RuntimeSpec:
    """How models of some formats are served."""

    supported_model_formats: Sequence[ModelFormat]
    protocol_versions: Sequence[str]
    multi_model: bool
    containers: Sequence[Container]
    volumes: Sequence[Volume]
    affinity: Affinity | None = None
    node_selector: Mapping[str, str] | None = None
    tolerations: Sequence[Toleration] | None = None
    image_pull_secrets: Sequence[ObjectRef] | None = None


@dataclass(frozen=True)
class ServingRuntime(Object):
    """How models of some formats are served."""

    api_version: ClassVar[str] = "serving.kserve.io/v1alpha1"
    kind: ClassVar[str] = "ServingRuntime"

    spec: RuntimeSpec


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A model, and the runtime that serves it."""

    model_format: ModelFormat
    runtime: str


@dataclass(frozen=True, slots=True)
class Predictor:
    """The pods of a model, beside what the runtime says of them."""

    model: ModelSpec
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    min_replicas: int
    max_replicas: int
    init_containers: Sequence[Container]
    service_account_name: str
    automount_service_account_token: bool
    enable_service_links: bool
    termination_grace_period_seconds: int
    security_context: PodSecurityContext
    topology_spread_constraints: Sequence[Spread]
    runtime_class_name: str | None = None
    priority_class_name: str | None = None


@dataclass(frozen=True, slots=True)
class ServiceSpec:
    """A model that is served."""

    predictor: Predictor


@dataclass(frozen=True)
class InferenceService(Object):
    """A model that is served."""

    api_version: ClassVar[str] = "serving.kserve.io/v1beta1"
    kind: ClassVar[str] = "InferenceService"

    spec: ServiceSpec
