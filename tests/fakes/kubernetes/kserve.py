"""What KServe makes of an InferenceService, and what it tells of that."""

from __future__ import annotations

from tests.fakes.kubernetes.emulator import NAMESPACE, Emulator
from tests.fakes.kubernetes.objects import Json


def reconcile(emulator: Emulator, name: str) -> None:
    """Brings the Deployment of a service to what the service asks for."""
    predictor = emulator.manifest("inferenceservices", name)["spec"]["predictor"]
    labels = {"app": f"{name}-predictor"}
    template = {
        "metadata": {
            "labels": {**predictor.get("labels", {}), **labels},
            "annotations": predictor.get("annotations", {}),
        },
        "spec": {"containers": [{"name": "kserve-container", "image": "trtspec:1"}]},
    }
    owner = {"apiVersion": "serving.kserve.io/v1beta1", "kind": "InferenceService", "name": name, "uid": "1"}
    made: Json = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": f"{name}-predictor", "ownerReferences": [owner]},
        "spec": {
            "replicas": predictor.get("minReplicas", 1),
            "selector": {"matchLabels": labels},
            "template": template,
        },
    }
    emulator.apply((NAMESPACE, "deployments", f"{name}-predictor"), made, {"fieldManager": "kserve"})


def tell(emulator: Emulator, name: str) -> None:
    """Writes the service's status, which has the generation of the Deployment that was looked at."""
    status = emulator.manifest("deployments", f"{name}-predictor")["status"]
    is_ready = status["availableReplicas"] > 0
    emulator.stored[NAMESPACE, "inferenceservices", name].status = {
        "observedGeneration": status["observedGeneration"],
        "conditions": [{"type": "Ready", "status": str(is_ready)}],
    }
