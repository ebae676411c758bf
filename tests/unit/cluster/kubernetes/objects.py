"""A deployment's objects, as small as they can be."""

from __future__ import annotations

from typing import Any

LABELS = {"app.kubernetes.io/instance": "llama", "app.kubernetes.io/managed-by": "trtspec"}


def config_map(name: str, **data: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "labels": LABELS},
        "data": data,
    }


def claim(name: str) -> dict[str, Any]:
    spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    metadata = {"name": name, "labels": LABELS}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec}


def inference_service(digest: str) -> dict[str, Any]:
    predictor = {
        "annotations": {"trtspec/digest": digest},
        "labels": LABELS,
        "minReplicas": 2,
        "model": {"modelFormat": {"name": "trtspec"}},
    }
    return {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": {"name": "llama", "labels": LABELS},
        "spec": {"predictor": predictor},
    }


def deployment(image: str = "trtspec:1", replicas: int = 2, name: str = "llama") -> dict[str, Any]:
    pod = {
        "initContainers": [{"name": "pull", "image": image}],
        "containers": [{"name": "server", "image": image}],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "labels": LABELS},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": LABELS},
            "strategy": {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            "template": {"metadata": {"labels": LABELS}, "spec": pod},
        },
    }
