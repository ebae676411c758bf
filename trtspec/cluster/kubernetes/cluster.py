"""Asks a Kubernetes API server about one namespace: that of a context of the kubeconfig, or of this pod.

No other module uses the official client.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, urlencode, urlsplit

import yaml

from trtspec.base.errors import ClusterError
from trtspec.base.extras import require
from trtspec.cluster.kubernetes.objects import EVENT, POD, Ref, Resource, ref_of
from trtspec.cluster.kubernetes.refusals import RefusedByCluster, answer_of, one_line, refusal
from trtspec.cluster.kubernetes.troubles import Event

if TYPE_CHECKING:
    from kubernetes.client import ApiClient

THIS_POD = "this pod's cluster"
"""The context's name in a pod, which has no kubeconfig."""

MANAGER, SCALER = "trtspec", "trtspec-scaling"
"""The field managers of applied objects, and of replicas that an autoscaler sets. The API server stores which
manager has set which field."""

_TIMEOUTS_S = (10.0, 60.0)  # to connect, and to read
_APPLY = "application/apply-patch+yaml"

Manifest = dict[str, Any]
"""An object as JSON; its readers turn it into plain types at once."""

_IN_CLUSTER = "KUBERNETES_SERVICE_HOST"
_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


class LogLine(NamedTuple):
    """A line of a container's log, and its time as sortable text."""

    time: str
    text: str


class UnreachableError(ClusterError):
    """An API server that does not answer."""


class Cluster:
    """Asks one API server for the objects of a `namespace`; `context` is the server's name for people.

    Every method raises `UnreachableError` if the server does not answer, and `RefusedByCluster` if it
    refuses.
    """

    def __init__(self, api: ApiClient, context: str, namespace: str) -> None:
        self._api, self.context, self.namespace = api, context, namespace

    @property
    def has_context(self) -> bool:
        """True if a kubeconfig names the cluster; false inside a pod of the cluster."""
        return self.context != THIS_POD

    @property
    def server(self) -> str:
        """The URL of the API server."""
        return str(self._api.configuration.host)

    def apply(self, manifest: Manifest, *, force: bool = False, manager: str = MANAGER) -> None:
        """Applies a manifest by a server-side apply in the manager's name.

        With `force` it takes over fields that others have set.
        """
        of = ref_of(manifest)
        self._ask(
            "PATCH",
            of.resource.path(self.namespace, of.name),
            {"fieldManager": manager, "force": str(force).lower()},
            body=manifest,
            content_type=_APPLY,
            of=of,
        )

    def find(self, of: Ref) -> Manifest | None:
        """Returns an object; None if there is none."""
        try:
            found: Manifest = json.loads(
                self._ask("GET", of.resource.path(self.namespace, of.name), {}, of=of)
            )
        except RefusedByCluster as error:
            if error.answer.is_absent and not error.answer.lacks_kind:
                return None
            raise
        return found

    def labelled(self, resource: Resource, labels: Mapping[str, str]) -> list[Manifest]:
        """Returns the objects that have these labels."""
        return self._list(resource, {"labelSelector": ",".join(f"{key}={labels[key]}" for key in labels)})

    def events(self, kind: str, name: str) -> list[Event]:
        """Returns the events of an object; none if the caller may not see them."""
        options = {"fieldSelector": f"involvedObject.kind={kind},involvedObject.name={name}"}
        try:
            found = self._list(EVENT, options)
        except RefusedByCluster as error:
            if not error.answer.is_forbidden:
                raise
            return []
        return [Event(each.get("reason") or "", each.get("message") or "") for each in found]

    def delete(self, of: Ref) -> bool:
        """Deletes an object and what belongs to it; returns False if there was none."""
        path = of.resource.path(self.namespace, of.name)
        try:
            self._ask("DELETE", path, {"propagationPolicy": "Background"}, of=of)
        except RefusedByCluster as error:
            if error.answer.is_absent:
                return False
            raise
        return True

    def log(self, pod: str, container: str, lines: int, *, previous: bool = False) -> tuple[str, ...]:
        """Returns the last lines of a container's log, or of the log before its last restart."""
        options = {"container": container, "tailLines": str(lines), "previous": str(previous).lower()}
        path = f"{POD.path(self.namespace, pod)}/log"
        return tuple(_lines(self._ask("GET", path, options, of=Ref(POD, pod)))[-lines:])

    def log_since(self, pod: str, container: str, time: str | None) -> list[LogLine]:
        """Returns a container's log since a time; the whole log if that is None."""
        options = {"container": container, "timestamps": "true", **({"sinceTime": time} if time else {})}
        text = self._ask("GET", f"{POD.path(self.namespace, pod)}/log", options, of=Ref(POD, pod))
        lines = (LogLine(*line.split(" ", 1)) for line in _lines(text) if " " in line)
        # The server counts whole seconds.
        return [line for line in lines if time is None or line.time > time]

    def _list(self, resource: Resource, options: Mapping[str, str]) -> list[Manifest]:
        found: list[Manifest] = []
        going_on: dict[str, str] = {}
        while True:
            text = self._ask(
                "GET", resource.path(self.namespace), {**options, "limit": "500", **going_on}, of=resource
            )
            said = json.loads(text)
            found += said["items"]
            if not (mark := said["metadata"].get("continue")):
                return found
            going_on = {"continue": mark}

    def _ask(
        self,
        method: str,
        path: str,
        options: Mapping[str, str],
        *,
        of: Ref | Resource,
        body: Manifest | None = None,
        content_type: str | None = None,
    ) -> str:
        from kubernetes.client.exceptions import ApiException
        from urllib3.exceptions import HTTPError

        headers = {"Accept": "application/json, */*"}
        if content_type:
            headers["Content-Type"] = content_type
        serialized = self._api.param_serialize(
            method,
            quote(path, safe="/:") + (f"?{urlencode(options)}" if options else ""),
            header_params=headers,
            body=body,
            auth_settings=["BearerToken"],
        )
        try:
            response = self._api.call_api(*serialized, _request_timeout=_TIMEOUTS_S)
            text: str = response.read().decode(errors="replace")
        except (HTTPError, ApiException, OSError) as error:
            raise _unreachable(self.context, self.server, error) from error
        if not 200 <= response.status < 300:
            resource = of.resource if isinstance(of, Ref) else of
            subject = str(of) if isinstance(of, Ref) else of.plural
            raise refusal(answer_of(response.status, text), subject, self.namespace, resource.owner)
        return text


_NO_ANSWER = (
    ("Name or service not known", "has no address"),
    ("Temporary failure in name resolution", "has no address"),
    ("NameResolutionError", "has no address"),
    ("refused", "refuses connections"),
    ("timed out", "does not answer in time"),
)


def _unreachable(context: str, server: str, error: Exception) -> UnreachableError:
    why = " ".join(str(error).split())
    host = urlsplit(server).netloc
    if "CERTIFICATE_VERIFY_FAILED" in why:
        repair = "check the kubeconfig's certificate-authority and its server"
        return UnreachableError(context, f"the certificate of {host} cannot be verified", repair)
    known = (problem for word, problem in _NO_ANSWER if word in why)
    problem = next(known, f"does not answer ({why[:200]})")
    repair = "check that the cluster runs and this machine reaches its network: kubectl cluster-info"
    return UnreachableError(context, f"no cluster: {host} {problem}", repair)


def _lines(text: str) -> list[str]:
    """Returns the lines of a log; a carriage return, as progress bars write it, ends no line."""
    return text.removesuffix("\n").split("\n") if text else []


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
    return Cluster(_without_retries(api), name, namespace or known[name].get("namespace") or "default")


def _of_this_pod(config: Any, namespace: str | None) -> Cluster:
    from kubernetes.client import ApiClient, Configuration

    made = Configuration()
    try:
        config.load_incluster_config(client_configuration=made)
    except config.ConfigException as error:
        repair = "its service account's token must be mounted: automountServiceAccountToken"
        raise ClusterError(THIS_POD, one_line(str(error)), repair) from error
    own = _NAMESPACE_FILE.read_text().strip() if _NAMESPACE_FILE.exists() else None
    return Cluster(_without_retries(ApiClient(made)), THIS_POD, namespace or own or "default")


def _without_retries(api: ApiClient) -> ApiClient:
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
