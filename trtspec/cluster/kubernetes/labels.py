"""Defines the labels of objects and pods, as Kubernetes recommends them ("Recommended Labels")."""

from __future__ import annotations

NAME, INSTANCE = "app.kubernetes.io/name", "app.kubernetes.io/instance"
COMPONENT = "app.kubernetes.io/component"
MANAGED_BY = "app.kubernetes.io/managed-by"
TRACK, STABLE, CANARY = "trtspec/track", "stable", "canary"
"""The label of a pod that says whether it belongs to a canary, and the label's values."""

OURS = {NAME: "trtspec", MANAGED_BY: "Helm"}
"""The labels of every object of the chart."""


def of_instance(name: str) -> dict[str, str]:
    """Returns the labels of all objects and pods of a deployment."""
    return {**OURS, INSTANCE: name}


def on_track(name: str, track: str) -> dict[str, str]:
    """Returns the labels of the pods of one of the two builds that a deployment may have."""
    return {NAME: "trtspec", INSTANCE: name, COMPONENT: "server", TRACK: track}
