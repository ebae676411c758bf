"""Finds the cluster: a context of the kubeconfig, or the cluster whose pod runs this process."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from trtspec.base.errors import ClusterError
from trtspec.base.extras import require
from trtspec.cluster.kubernetes.cluster import THIS_POD, Cluster
from trtspec.cluster.kubernetes.refusals import one_line

if TYPE_CHECKING:
    from kubernetes.client import ApiClient

_IN_CLUSTER = "KUBERNETES_SERVICE_HOST"
_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


def connect(context: str | None, namespace: str | None) -> Cluster:
    """Returns the cluster of a context, by default the kubeconfig's current one, without asking it anything.

    The default namespace is the context's, or `default`. Raises `ClusterError` for a context or a kubeconfig
    that cannot be used, and `UnavailableError` if the client is not installed.
    """
    require("a cluster", "kubernetes")
    from kubernetes import config

    where = os.environ.get("KUBECONFIG") or "~/.kube/config"
    if any(Path(file).expanduser().exists() for file in where.split(os.pathsep) if file):
        return _of_kubeconfig(config, where, context, namespace)
    if context is None and _IN_CLUSTER in os.environ:
        return _of_this_pod(config, namespace)
    raise ClusterError(
        where,
        "there is no kubeconfig, and this process runs in no pod of a cluster",
        "KUBECONFIG names another file",
    )


def _of_kubeconfig(config: Any, where: str, context: str | None, namespace: str | None) -> Cluster:
    try:
        contexts, current = config.list_kube_config_contexts(where)
    except (config.ConfigException, yaml.YAMLError, OSError) as error:
        raise ClusterError(where, f"cannot be read: {one_line(str(error))}", "kubectl config view") from error
    known = {each["name"]: each.get("context") or {} for each in contexts}
    name = context or (current or {}).get("name")
    if name is None:
        raise ClusterError(where, "names no current context", f"--context {_one_of(known)}")
    if name not in known:
        raise ClusterError(name, "there is no such context in the kubeconfig", f"there are {_one_of(known)}")
    with _what_is_logged() as said:
        try:
            api = config.new_client_from_config(where, name, persist_config=False)
        except (config.ConfigException, OSError) as error:
            raise ClusterError(name, one_line(str(error)), "kubectl config view shows the context") from error
    if said:
        # The client continues without credentials if the program that fetches them fails.
        raise ClusterError(name, f"cannot get its credentials: {said[0]}", "kubectl get pods, as a test")
    return Cluster(_patient(api), name, namespace or known[name].get("namespace") or "default")


def _of_this_pod(config: Any, namespace: str | None) -> Cluster:
    from kubernetes.client import ApiClient, Configuration

    made = Configuration()
    try:
        config.load_incluster_config(client_configuration=made)
    except config.ConfigException as error:
        repair = "its service account's token must be mounted: automountServiceAccountToken"
        raise ClusterError(THIS_POD, one_line(str(error)), repair) from error
    own = _NAMESPACE_FILE.read_text().strip() if _NAMESPACE_FILE.exists() else None
    return Cluster(_patient(ApiClient(made)), THIS_POD, namespace or own or "default")


def _patient(api: ApiClient) -> ApiClient:
    """Returns the client without its own retries, which would log and delay what is reported anyway."""
    from kubernetes.client import ApiClient

    api.configuration.retries = False
    return ApiClient(api.configuration)


@contextmanager
def _what_is_logged() -> Iterator[list[str]]:
    """Yields the errors that the client reports only to the root logger, and keeps them off the terminal."""
    said: list[str] = []
    handler = logging.Handler(logging.ERROR)
    handler.emit = lambda record: said.append(one_line(record.getMessage()))  # type: ignore[method-assign]
    logging.getLogger().addHandler(handler)
    try:
        yield said
    finally:
        logging.getLogger().removeHandler(handler)


def _one_of(names: dict[str, Any]) -> str:
    return ", ".join(sorted(names)) or "none"
