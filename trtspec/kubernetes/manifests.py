"""All objects of a deployment, in the order in which they are applied, and their text; pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import yaml

from trtspec.kubernetes.kinds.base import Object, document
from trtspec.kubernetes.kinds.scaling import Workload
from trtspec.kubernetes.kinds.workloads import Deployment, LeaderWorkerSet
from trtspec.kubernetes.rendering.access import claim, disruption_budget, network_policy, service_account
from trtspec.kubernetes.rendering.autoscaler import horizontal, scaled_object
from trtspec.kubernetes.rendering.group import group_policy, leader_worker_set
from trtspec.kubernetes.rendering.kserve import inference_service, predictor_name, serving_runtime
from trtspec.kubernetes.rendering.monitoring import dashboard, pod_monitor, rules
from trtspec.kubernetes.rendering.route import http_route, inference_pool
from trtspec.kubernetes.rendering.workload import config_map, deployment, service
from trtspec.kubernetes.values import Values
from trtspec.recipe.kubernetes import Claim

_WIDTH = 110
_NO_TEXT = re.compile(r"[yYnN]|[-+]?(\.\d[\d_]*|\d[\d_]*(\.[\d_]*)?)([eE][-+]?\d+)?|[-+]?0o[0-7_]+")
"""What Kubernetes' parsers read as a number or a switch, and PyYAML as text: 1e3, 1_0e3, -0o7, y."""


def manifests(values: Values) -> list[Object]:
    """Returns the objects; each comes after those that it names."""
    return [*_needed(values), *_serving(values), *_watched(values)]


def _needed(values: Values) -> Iterator[Object]:
    """Yields what pods need to start, and what bounds them."""
    if values.service_account is None:
        yield service_account(values)
    if named := config_map(values):
        yield named
    volume = values.volume
    if isinstance(volume, Claim) and volume.name is None and volume.size:
        yield claim(values, volume.size, volume.storage_class)
    if values.network_policy:
        yield network_policy(values)
        if values.group and not values.kserve:
            yield group_policy(values)
    yield disruption_budget(values)


def _serving(values: Values) -> Iterator[Object]:
    """Yields the servers, their number and the ways to them."""
    if values.kserve:
        yield serving_runtime(values)
        yield inference_service(values)
        name = predictor_name(values.name)
    else:
        yield service(values)
        yield leader_worker_set(values, values.group) if values.group else deployment(values)
        name = values.name
    kind = LeaderWorkerSet if values.group and not values.kserve else Deployment
    workload = Workload(kind.api_version, kind.kind, name)
    if scaling := values.scaling:
        if scaling.prometheus:
            yield scaled_object(values, scaling, workload, scaling.prometheus)
        else:
            yield horizontal(values, scaling, workload)
    if gateway := values.gateway:
        if gateway.endpoint_picker:
            yield inference_pool(values, gateway.endpoint_picker)
        yield http_route(values, gateway, name)


def _watched(values: Values) -> Iterator[Object]:
    """Yields what others need to watch the servers."""
    if values.monitoring.pod_monitor:
        yield pod_monitor(values)
    if values.monitoring.rules:
        yield rules(values)
    if values.monitoring.dashboard:
        yield dashboard(values)


def to_yaml(objects: Iterable[Object]) -> str:
    """Returns the objects as the documents of one YAML text, as `kubectl apply` reads it."""
    return "".join(f"---\n{dump(document(thing))}" for thing in objects)


class _Dumper(yaml.SafeDumper):
    """Writes text of several lines as such, and no anchors."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    quoted = "'" if _NO_TEXT.fullmatch(text) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else quoted)


_Dumper.add_representer(str, _text)


def dump(content: dict[str, Any]) -> str:
    """Returns one document of YAML."""
    return yaml.dump(content, Dumper=_Dumper, sort_keys=False, width=_WIDTH, allow_unicode=True)
