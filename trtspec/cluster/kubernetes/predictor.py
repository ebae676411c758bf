"""Finds the Deployment that KServe makes for an InferenceService."""

from __future__ import annotations

from trtspec.cluster.kubernetes.cluster import Cluster, Manifest
from trtspec.cluster.kubernetes.resources import DEPLOYMENT, INFERENCE_SERVICE, Ref, ref_of


def predictor_name(name: str) -> str:
    """Returns the name of KServe's Deployment for a service of this name."""
    return f"{name}-predictor"


def find_predictor(cluster: Cluster, manifest: Manifest) -> Manifest | None:
    """Returns the Deployment of an InferenceService; None before it exists, and for other objects."""
    ref = ref_of(manifest)
    if ref.resource != INFERENCE_SERVICE:
        return None
    return cluster.find(Ref(DEPLOYMENT, predictor_name(ref.name)))
