"""Helm, as it is installed here: the chart rendered, and releases of it made, looked at and ended.

Helm does not wait: it knows when a Deployment is ready, but not why its pods are not.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Collection, Mapping
from importlib.resources import as_file, files
from typing import Any

from trtspec.base.errors import ClusterError, UnavailableError
from trtspec.cluster.kubernetes.cluster import MANAGER, SCALER, Cluster
from trtspec.cluster.kubernetes.labels import OURS
from trtspec.cluster.kubernetes.refusals import helms_words
from trtspec.cluster.kubernetes.resources import CONFIG_MAP, MONITORS, Ref
from trtspec.cluster.kubernetes.values import Values, chart_values

_HELM = "helm"
_INSTALL = "install Helm 4 or newer: helm.sh/docs/intro/install"
# A canary makes a revision a step, and that before it must be left to go back to.
_HISTORY = ("--history-max", "20")
_FORCE = "--force-conflicts"
_HOLDER = re.compile(r'conflicts? with "([^"]+)"')
_ABSENT = "release: not found"


def template(values: Values, context: str | None) -> str:
    """Returns the objects of a deployment as YAML, with those of operators that a cluster may lack.

    No cluster is asked; the namespace is that of the kubeconfig's context where the values name none.
    """
    kinds = ",".join(f"{each.api_version}/{each.kind}" for each in MONITORS)
    where = (
        *(("--kube-context", context) if context else ()),
        *(("--namespace", values.namespace) if values.namespace else ()),
    )
    words = ("template", values.name, *where, "--api-versions", kinds)
    return _with_chart(words, chart_values(values), values.namespace or "")


class Helm:
    """Releases of the chart in a cluster's namespace; methods raise `ClusterError` for what is refused."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster, self._namespace = cluster, cluster.namespace
        context = ("--kube-context", cluster.context) if cluster.has_context else ()
        self._where = (*context, "--namespace", cluster.namespace)

    def upgrade(
        self, values: Values, *, force: bool = False, settings: Mapping[str, Any] | None = None
    ) -> None:
        """Makes the release what the values say, or a new one; returns when the API server has its objects.

        `settings` are values of the chart that win. With `force` objects and fields of others are taken over.
        """
        taken = ("--take-ownership", _FORCE) if force else ()
        self._upgrade(values.name, {**chart_values(values), **(settings or {})}, "--install", *taken)

    def upgrade_canary(self, values: Values, replicas: int) -> None:
        """Makes the release of a canary beside that of the values' name, with so many pods."""
        settings = {"canaryOf": values.name, "replicas": replicas}
        self._upgrade(f"{values.name}-canary", {**chart_values(values), **settings}, "--install", _FORCE)

    def change(self, name: str, settings: Mapping[str, Any]) -> None:
        """Changes some values of a release, and leaves the others as they are."""
        self._upgrade(name, settings, "--reuse-values", _FORCE)

    def revision(self, name: str) -> int | None:
        """Returns the number of the revision of a release that serves; None where there is none."""
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
        """Makes a release what it was at a revision; with `force` fields of others are taken over."""
        self._ask("rollback", name, str(revision), *_HISTORY, *([_FORCE] if force else []))

    def uninstall(self, name: str) -> None:
        """Deletes the objects of a release but its volume claims; one that is not there is no failure."""
        self._ask("uninstall", name, "--ignore-not-found")
        self.sweep(name)

    def sweep(self, name: str, *, but: Collection[str] = ()) -> None:
        """Deletes the ConfigMaps that earlier revisions of a release have left for their pods."""
        own = re.compile(rf"{re.escape(name)}-(recipe|launch)-[0-9a-f]{{8}}")
        for each in self._cluster.labelled(CONFIG_MAP, OURS):
            found = each["metadata"]["name"]
            if own.fullmatch(found) and found not in but:
                self._cluster.delete(Ref(CONFIG_MAP, found))

    def _upgrade(self, name: str, values: Mapping[str, Any], *how: str) -> None:
        words = ("upgrade", name, *self._where, *_HISTORY, "--hide-notes", *how)
        try:
            _with_chart(words, values, self._namespace)
        except ClusterError as error:
            # A canary sets replicas in our name, and what keeps them for an autoscaler does.
            holders = set(_HOLDER.findall(error.problem))
            if not holders or not holders <= {MANAGER, SCALER}:
                raise
            _with_chart((*words, _FORCE), values, self._namespace)

    def _ask(self, *words: str) -> str:
        return _run((*words, *self._where), "", self._namespace)


def _with_chart(words: tuple[str, ...], values: Mapping[str, Any], namespace: str) -> str:
    with as_file(files("trtspec.cluster.kubernetes") / "chart") as chart:
        return _run((*words[:2], str(chart), *words[2:], "--values", "-"), json.dumps(values), namespace)


def _run(words: tuple[str, ...], stdin: str, namespace: str) -> str:
    executable = shutil.which(_HELM)
    if executable is None:
        raise UnavailableError(_HELM, "is not on PATH", _INSTALL)
    # In a session of its own, so that Ctrl-C does not end it while it holds a release.
    done = subprocess.run(  # noqa: S603
        [executable, *words],
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        start_new_session=True,
    )
    if done.returncode == 0:
        return done.stdout
    if "unknown flag" in done.stderr:
        raise UnavailableError(_HELM, "is older than Helm 4", _INSTALL)
    raise helms_words(done.stderr, words[1], namespace)
