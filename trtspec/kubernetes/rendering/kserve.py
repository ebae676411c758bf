"""KServe's form of a deployment: a runtime that serves this build, and the service that asks for it.

KServe makes a Deployment and a Service of the two, both called `<name>-predictor`, whose pod is the same as
without it.
"""

from __future__ import annotations

from dataclasses import replace

from trtspec.kubernetes.kinds.kserve import (
    InferenceService,
    ModelFormat,
    ModelSpec,
    Predictor,
    RuntimeSpec,
    ServiceSpec,
    ServingRuntime,
)
from trtspec.kubernetes.rendering.labels import meta
from trtspec.kubernetes.rendering.pod import pod
from trtspec.kubernetes.values import Values

_FORMAT = "trtspec"
_CONTAINER = "kserve-container"  # the name that KServe looks for


def predictor_name(name: str) -> str:
    """Returns the name of what KServe makes of a service of this name."""
    return f"{name}-predictor"


def serving_runtime(values: Values) -> ServingRuntime:
    """Returns the runtime: the server's container, and where it may run."""
    spec = pod(values).spec
    return ServingRuntime(
        meta(values),
        RuntimeSpec(
            supported_model_formats=[ModelFormat(_FORMAT, "1", auto_select=False)],
            protocol_versions=["v2", "grpc-v2"],
            multi_model=False,
            containers=[replace(container, name=_CONTAINER) for container in spec.containers],
            volumes=spec.volumes,
            affinity=spec.affinity,
            node_selector=spec.node_selector,
            tolerations=spec.tolerations,
            image_pull_secrets=spec.image_pull_secrets,
        ),
    )


def inference_service(values: Values) -> InferenceService:
    """Returns the service; its number of replicas is fixed, or up to an autoscaler that is not KServe's.

    No storageUri is named: the init container pulls the build.
    """
    template, scaling = pod(values), values.scaling
    spec = template.spec
    annotations = {
        "serving.kserve.io/deploymentMode": "RawDeployment",
        "serving.kserve.io/autoscalerClass": "external" if scaling else "none",
    }
    return InferenceService(
        meta(values, annotations=annotations),
        ServiceSpec(
            Predictor(
                model=ModelSpec(ModelFormat(_FORMAT), runtime=values.name),
                labels=template.metadata.labels or {},
                annotations=template.metadata.annotations or {},
                min_replicas=values.replicas,
                max_replicas=scaling.max_replicas if scaling else values.replicas,
                init_containers=spec.init_containers or [],
                service_account_name=spec.service_account_name,
                automount_service_account_token=spec.automount_service_account_token,
                enable_service_links=spec.enable_service_links,
                termination_grace_period_seconds=spec.termination_grace_period_seconds,
                security_context=spec.security_context,
                topology_spread_constraints=spec.topology_spread_constraints or [],
                runtime_class_name=spec.runtime_class_name,
                priority_class_name=spec.priority_class_name,
            )
        ),
    )
