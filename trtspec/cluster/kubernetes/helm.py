"""Runs the installed Helm: renders the chart, and creates, reads and deletes its releases.

Helm does not wait here: it knows when a Deployment is ready, but not why its pods are not.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from importlib.resources import as_file, files
from typing import Any

from trtspec.base.errors import ClusterError, UnavailableError
from trtspec.cluster.kubernetes.cluster import MANAGER, SCALER, Cluster
from trtspec.cluster.kubernetes.objects import CONFIG_MAP, MONITORS, OURS, Ref
from trtspec.cluster.kubernetes.refusals import helms_words
from trtspec.cluster.kubernetes.values import Values, chart_values
from trtspec.cluster.tool import run_tool

_HELM = "helm"
_INSTALL = "install Helm 4 or newer: helm.sh/docs/intro/install"
_HISTORY = ("--history-max", "20")
_FORCE = "--force-conflicts"
_HOLDER = re.compile(r'conflicts? with "([^"]+)"')
_ABSENT = "release: not found"


def template(values: Values, context: str | None) -> str:
    """Returns the objects of a deployment as YAML, including those of operators that a cluster may lack.

    No cluster is asked. If the values name no namespace, it is that of the kubeconfig's context.
    """
    kinds = ",".join(f"{each.api_version}/{each.kind}" for each in MONITORS)
    where = (
        *(("--kube-context", context) if context else ()),
        *(("--namespace", values.namespace) if values.namespace else ()),
    )
    words = ("template", values.name, *where, "--api-versions", kinds)
    return _with_chart(words, chart_values(values), values.namespace or "")


class Helm:
    """Releases of the chart in a cluster's namespace. Methods raise `ClusterError` if Helm or the cluster
    refuses."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster, self._namespace = cluster, cluster.namespace
        context = ("--kube-context", cluster.context) if cluster.has_context else ()
        self._where = (*context, "--namespace", cluster.namespace)

    def upgrade(self, values: Values, *, force: bool) -> None:
        """Updates the release to the values, or creates it; returns when the API server has its objects.

        With `force` it takes over objects and fields of others.
        """
        taken = ("--take-ownership", _FORCE) if force else ()
        words = ("upgrade", values.name, *self._where, *_HISTORY, "--hide-notes", "--install", *taken)
        try:
            _with_chart(words, chart_values(values), self._namespace)
        except ClusterError as error:
            # The replicas are ours: the handover to an autoscaler sets them in our name.
            holders = set(_HOLDER.findall(error.problem))
            if not holders or not holders <= {MANAGER, SCALER}:
                raise
            _with_chart((*words, _FORCE), chart_values(values), self._namespace)

    def revision(self, name: str) -> int | None:
        """Returns the number of the release's revision that serves; None if there is none."""
        try:
            history = json.loads(self._ask("history", name, "--output", "json"))
        except ClusterError as error:
            if _ABSENT in error.problem:
                return None
            raise
        deployed = [each["revision"] for each in history if each["status"] == "deployed"]
        return max(deployed, default=None)

    def releases(self) -> list[str]:
        """Returns the names of the releases of the chart, in whatever state."""
        found = json.loads(self._ask("list", "--output", "json"))
        return sorted(each["name"] for each in found if each["chart"].startswith("trtspec-"))

    def rollback(self, name: str, revision: int, *, force: bool) -> None:
        """Rolls a release back to a revision; with `force` it takes over fields of others."""
        self._ask("rollback", name, str(revision), *_HISTORY, *([_FORCE] if force else []))

    def uninstall(self, name: str) -> None:
        """Deletes the objects of a release but not its volume claims; a missing release is no failure."""
        self._ask("uninstall", name, "--ignore-not-found")
        self.sweep(name)

    def sweep(self, name: str, *, but: Collection[str] = ()) -> None:
        """Deletes the ConfigMaps that earlier revisions of a release have left for their pods."""
        own = re.compile(rf"{re.escape(name)}-(recipe|launch)-[0-9a-f]{{8}}")
        for each in self._cluster.labelled(CONFIG_MAP, OURS):
            found = each["metadata"]["name"]
            if own.fullmatch(found) and found not in but:
                self._cluster.delete(Ref(CONFIG_MAP, found))

    def _ask(self, *words: str) -> str:
        return _run((*words, *self._where), "", self._namespace)


def _with_chart(words: tuple[str, ...], values: Mapping[str, Any], namespace: str) -> str:
    with as_file(files("trtspec.cluster.kubernetes") / "chart") as chart:
        return _run((*words[:2], str(chart), *words[2:], "--values", "-"), json.dumps(values), namespace)


def _run(words: tuple[str, ...], stdin: str, namespace: str) -> str:
    done = run_tool(_HELM, *words, stdin=stdin, repair=_INSTALL)
    if done.returncode == 0:
        return done.stdout
    if "unknown flag" in done.stderr:
        raise UnavailableError(_HELM, "is older than Helm 4", _INSTALL)
    raise helms_words(done.stderr, words[1], namespace)
