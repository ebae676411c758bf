"""Reads the counters of pods: from each pod through the API server, or from a Prometheus."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Protocol

from trtspec.base.errors import ClusterError, UnavailableError
from trtspec.client import scrape
from trtspec.client.scrape import Scrape
from trtspec.cluster.kubernetes.canary.evidence import Counted, counted
from trtspec.cluster.kubernetes.cluster import Cluster, UnreachableError
from trtspec.cluster.kubernetes.refusals import RefusedByCluster
from trtspec.deployment.pod import PORTS

MOST_PODS = 50
"""At most this many pods of one build are asked; more would add little."""
_SILENT = 3
"""If this many pods do not answer, the cause is a network policy rather than pods that are ending."""


class PodMetrics(Protocol):
    """Reads the counters of pods."""

    def of(self, pods: Sequence[str]) -> dict[str, Counted]:
        """Returns the counters of those of the first `MOST_PODS` pods that give any."""
        ...


class OfPods:
    """Asks each pod, by the proxy of the API server."""

    def __init__(self, cluster: Cluster, model: str) -> None:
        self._cluster, self._model = cluster, model

    def of(self, pods: Sequence[str]) -> dict[str, Counted]:
        """Raises `ClusterError` if the caller may not use the proxy, or it reaches none of the first pods."""
        found: dict[str, Counted] = {}
        silent = 0
        for pod in pods[:MOST_PODS]:
            try:
                text = self._cluster.fetch(pod, PORTS.metrics, "metrics")
            except (RefusedByCluster, UnreachableError) as error:
                silent += 1
                is_forbidden = isinstance(error, RefusedByCluster) and error.answer.is_forbidden
                if is_forbidden or (not found and silent == min(len(pods), _SILENT)):
                    why = f"{error.repair}; " if error.repair else ""
                    repair = f"{why}--prometheus URL asks a Prometheus instead"
                    raise ClusterError(error.subject, error.problem, repair) from error
                continue
            found[pod] = counted(scrape.parse(text, 0.0), self._model)
        return found


class OfPrometheus:
    """Asks a Prometheus that scrapes the pods, for example by a PodMonitor."""

    def __init__(self, url: str, namespace: str, model: str) -> None:
        self._url, self._namespace, self._model = url.rstrip("/"), namespace, model

    def of(self, pods: Sequence[str]) -> dict[str, Counted]:
        """Raises `UnavailableError` if Prometheus does not answer."""
        asked = pods[:MOST_PODS]
        if not asked:
            return {}
        chosen = f'__name__=~"trtspec:.*",namespace="{self._namespace}",pod=~"{"|".join(asked)}"'
        text = scrape.read(f"{self._url}/api/v1/query", {"query": f"{{{chosen}}}"})
        rows: dict[str, list[tuple[str, scrape.Labels, float]]] = {}
        try:
            for each in json.loads(text)["data"]["result"]:
                labels = dict(each["metric"])
                name, pod = labels.pop("__name__"), labels["pod"]
                rows.setdefault(pod, []).append((name, labels, float(each["value"][1])))
        except (ValueError, KeyError, TypeError) as error:
            raise UnavailableError(self._url, "is no Prometheus", "name it with --prometheus") from error
        return {
            pod: counted(Scrape(0.0, tuple(found)), self._model)
            for pod, found in rows.items()
            if pod in asked
        }
