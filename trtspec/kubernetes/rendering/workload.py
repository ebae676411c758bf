"""The workload of a deployment, its Service, and the ConfigMap that its pods mount."""

from __future__ import annotations

from dataclasses import replace

from trtspec.deploy.pod import RECIPE
from trtspec.kubernetes.kinds.base import Selector
from trtspec.kubernetes.kinds.core import ConfigMap, Service, ServicePort, ServiceSpec
from trtspec.kubernetes.kinds.workloads import Deployment, DeploymentSpec, RollingUpdate, Strategy
from trtspec.kubernetes.rendering.labels import STABLE, chosen_by, meta, on_track
from trtspec.kubernetes.rendering.parts import ports
from trtspec.kubernetes.rendering.pod import pod
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
    found = [
        ServicePort(name, port, name, protocols.get(name, "http")) for name, port in ports(values).items()
    ]
    return Service(meta(values), ServiceSpec("ClusterIP", chosen_by(values), found))


def config_map(values: Values) -> ConfigMap | None:
    """Returns the recipe of engines, or the files of a server of others; None for one that has none."""
    named = replace(meta(values), name=values.config_map)
    data = {RECIPE.name: values.engines.recipe} if values.engines else values.server and values.server.files
    return ConfigMap(named, data, immutable=True) if data else None
