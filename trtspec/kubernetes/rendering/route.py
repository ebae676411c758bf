"""A route of the Gateway API to OpenAI's API, and the pool of the Gateway API Inference Extension."""

from __future__ import annotations

from trtspec.kubernetes.kinds.gateway import (
    BackendRef,
    HttpRoute,
    InferencePool,
    Match,
    ParentRef,
    Path,
    PickerRef,
    PoolSpec,
    PortNumber,
    RouteRule,
    RouteSpec,
    Timeouts,
)
from trtspec.kubernetes.rendering.labels import meta, selector
from trtspec.kubernetes.rendering.parts import OPENAI, ports
from trtspec.kubernetes.values import Values
from trtspec.recipe.kubernetes import Gateway

_PICKER = 9002  # where the endpoint pickers of the extension listen
_ALL = Match(Path("PathPrefix", "/v1"))


def http_route(values: Values, gateway: Gateway, service: str) -> HttpRoute:
    """Returns the way from a Gateway to the servers, whose Service has the name `service`.

    The server has time limits of its own, and a stream may be long, so the route has none: 0s.
    """
    parent = ParentRef("gateway.networking.k8s.io", "Gateway", gateway.name, gateway.namespace)
    if gateway.endpoint_picker:
        backend = BackendRef("inference.networking.k8s.io", "InferencePool", values.name)
    else:
        backend = BackendRef("", "Service", service, ports(values)[OPENAI])
    rule = RouteRule([_ALL], [backend], Timeouts("0s"))
    return HttpRoute(meta(values), RouteSpec([parent], [rule], gateway.hostnames or None))


def inference_pool(values: Values, picker: str) -> InferencePool:
    """Returns the servers, of which the endpoint picker of this name chooses one for each request.

    The picker reads the gauges of the engine type `triton-tensorrt-llm` at the metrics port, or those of a
    server of others at its one port.
    """
    port = PortNumber(ports(values)[OPENAI])
    spec = PoolSpec(selector(values), [port], PickerRef(picker, PortNumber(_PICKER)))
    return InferencePool(meta(values), spec)
