"""Names and labels, as Kubernetes recommends them (its documentation, "Recommended Labels")."""

from __future__ import annotations

from collections.abc import Mapping

from trtspec.kubernetes.kinds.base import Meta, Selector
from trtspec.kubernetes.values import Values

NAME, INSTANCE = "app.kubernetes.io/name", "app.kubernetes.io/instance"
COMPONENT = "app.kubernetes.io/component"
MANAGED_BY = "app.kubernetes.io/managed-by"
TRACK, STABLE, CANARY = "trtspec/track", "stable", "canary"
"""The label of a pod that says whether its build is tried beside another one, and its values."""


def of_instance(values: Values) -> dict[str, str]:
    """Returns the labels that all pods of a deployment have, whatever they are for."""
    return {NAME: "trtspec", INSTANCE: values.name}


def chosen_by(values: Values) -> dict[str, str]:
    """Returns the labels by which a deployment's pods are chosen; they never change."""
    return {
        **of_instance(values),
        COMPONENT: "server",
    }


def ours(values: Values) -> dict[str, str]:
    """Returns the labels by which the objects of a deployment are found, and those that trtspec applied."""
    return {NAME: "trtspec", INSTANCE: values.name, MANAGED_BY: values.managed_by}


def selector(values: Values) -> Selector:
    return Selector(chosen_by(values))


def service_account(values: Values) -> str:
    """Returns the name of the pods' ServiceAccount."""
    return values.service_account or values.name


def on_track(values: Values, track: str) -> dict[str, str]:
    """Returns the labels by which a workload knows its pods from those of a canary beside it."""
    return {**chosen_by(values), TRACK: track}


def meta(
    values: Values,
    suffix: str = "",
    *,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
) -> Meta:
    """Returns the metadata of an object of the deployment; `labels` are those of its own."""
    return Meta(
        name=f"{values.name}{suffix}",
        namespace=values.namespace,
        labels=all_labels(values, labels),
        annotations=annotations,
    )


def job(values: Values) -> str:
    """Returns the name of the deployment among Prometheus's jobs."""
    return f"trtspec/{values.name}"


def all_labels(values: Values, own: Mapping[str, str] | None = None) -> dict[str, str]:
    """Returns the labels of every object, with those of one's own.

    A recipe's do not replace those that others depend on.
    """
    return {
        **values.labels,
        **(own or {}),
        **chosen_by(values),
        "app.kubernetes.io/version": values.version,
        MANAGED_BY: values.managed_by,
    }
