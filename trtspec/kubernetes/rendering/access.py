"""Who a server is, what it may reach and who may reach it, and how many may be missing at once."""

from __future__ import annotations

from trtspec.kubernetes.kinds.base import Selector
from trtspec.kubernetes.kinds.core import ClaimedResources, ClaimSpec, PersistentVolumeClaim, ServiceAccount
from trtspec.kubernetes.kinds.policies import (
    AnyNamespace,
    BudgetSpec,
    Egress,
    Ingress,
    NetworkPolicy,
    NetworkPolicySpec,
    PodDisruptionBudget,
    PolicyPort,
)
from trtspec.kubernetes.rendering.labels import meta, of_instance, selector
from trtspec.kubernetes.rendering.parts import METRICS, kept_name, ports
from trtspec.kubernetes.values import Values

_DNS = [PolicyPort(53, "UDP"), PolicyPort(53)]


def service_account(values: Values) -> ServiceAccount:
    """Returns an account without a token: a server asks nothing of the cluster."""
    return ServiceAccount(meta(values), automount_service_account_token=False)


def claim(values: Values, size: str, storage_class: str | None) -> PersistentVolumeClaim:
    """Returns the claim of the volume that pods of every node read and one at a time writes."""
    spec = ClaimSpec(["ReadWriteMany"], ClaimedResources({"storage": size}), storage_class)
    return PersistentVolumeClaim(meta(values, f"-{kept_name(values)}"), spec)


def disruption_budget(values: Values) -> PodDisruptionBudget:
    """Returns a budget: nodes are emptied one server at a time, and one that is not ready may always go."""
    return PodDisruptionBudget(meta(values), BudgetSpec(1, "AlwaysAllow", Selector(of_instance(values))))


def network_policy(values: Values) -> NetworkPolicy:
    """Returns a policy by which pods of the cluster reach the ports of the servers, and no others.

    Metrics at a port of their own, which have no word of a prompt, are for whoever reaches the pods' network:
    the API server, by way of which a canary is watched, is no pod. The servers reach names, and the store or
    the Hub.
    """
    named = ports(values)
    ingress = [Ingress([AnyNamespace({})], [PolicyPort(name) for name in named if name != METRICS])]
    if METRICS in named:
        ingress.append(Ingress(None, [PolicyPort(METRICS)]))
    return NetworkPolicy(
        meta(values),
        NetworkPolicySpec(
            pod_selector=selector(values),
            policy_types=["Ingress", "Egress"],
            ingress=ingress,
            egress=outward(values),
        ),
    )


def outward(values: Values) -> list[Egress]:
    """Returns where every pod may go: to names, and to the store or the Hub."""
    egress = [Egress(_DNS)]
    if values.egress_ports:
        egress.append(Egress([PolicyPort(port) for port in values.egress_ports]))
    return egress
