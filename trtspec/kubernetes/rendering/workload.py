"""The workload of a deployment, its Service, and the ConfigMap with its recipe."""

from __future__ import annotations

from dataclasses import replace

from trtspec.deploy.pod import RECIPE
from trtspec.kubernetes.kinds.base import Selector
from trtspec.kubernetes.kinds.core import ConfigMap, Service, ServicePort, ServiceSpec
from trtspec.kubernetes.kinds.workloads import Deployment, DeploymentSpec, RollingUpdate, Strategy
from trtspec.kubernetes.rendering.labels import STABLE, chosen_by, meta, on_track
from trtspec.kubernetes.rendering.pod import PORTS, pod
from trtspec.kubernetes.values import Values


def deployment(values: Values, track: str = STABLE) -> Deployment:
    """Returns a Deployment of which each pod is a server on one host."""
    return Deployment(
        meta(values, "" if track == STABLE else f"-{track}"),
        DeploymentSpec(
            replicas=None if values.scaling else values.replicas,
            selector=Selector(on_track(values, track)),
            strategy=Strategy("RollingUpdate", RollingUpdate(values.max_surge, values.max_unavailable)),
            progress_deadline_seconds=values.times.progress_s,
            template=pod(values, track),
        ),
    )


def service(values: Values) -> Service:
    """Returns the name under which clients find the servers."""
    protocols = {"grpc": "kubernetes.io/h2c"}
    ports = [ServicePort(name, port, name, protocols.get(name, "http")) for name, port in PORTS.items()]
    return Service(meta(values), ServiceSpec("ClusterIP", chosen_by(values), ports))


def recipe_map(values: Values) -> ConfigMap:
    """Returns the recipe. Its name is another for another recipe: pods of before an update keep theirs."""
    named = replace(meta(values), name=values.recipe_map)
    return ConfigMap(named, {RECIPE.name: values.recipe}, immutable=True)
