"""Prints the progress of a deployment on a cluster, and defines the options that name a cluster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from trtspec.base.errors import ClusterError
from trtspec.base.progress import Advance
from trtspec.cli.terminal.output import INTERRUPTED, out
from trtspec.cluster.kubernetes.connection import connect
from trtspec.cluster.kubernetes.deploying import deploy
from trtspec.deployment.pod import PORTS

if TYPE_CHECKING:
    from trtspec.cluster.kubernetes.cluster import Cluster
    from trtspec.cluster.kubernetes.resources import Ref
    from trtspec.cluster.kubernetes.troubles import Trouble
    from trtspec.cluster.kubernetes.values import Values


def deploy_to(values: Values, context: str | None, timeout: float | None, *, force: bool) -> None:
    """Deploys to a cluster and prints the progress.

    `timeout` is the number of seconds that may pass without progress; None takes the default of the build.
    Raises `ClusterError`, and `typer.Exit` with status 130 for Ctrl-C, which leaves what was applied.
    """
    cluster, talk = connect(context, values.namespace), ClusterTalk()
    try:
        deploy(cluster, values, talk, timeout or float(values.times.progress_s), force=force)
    except ClusterError:
        if talk.has_applied and not talk.has_gone_back:
            out.warning(f"what was applied stays; {_stops(cluster, values.name)} deletes it")
        raise
    except KeyboardInterrupt:
        if talk.has_applied:
            out.status(
                f"interrupted: the cluster keeps starting what was applied; {_status(cluster)} shows it"
            )
        raise typer.Exit(INTERRUPTED) from None
    _tell_ready(cluster, values)


class ClusterTalk:
    """Prints how a deployment is applied and starts.

    `has_applied` is true once the cluster has it, and `has_gone_back` once it was rolled back.
    """

    def __init__(self) -> None:
        self.has_applied = self.has_gone_back = False

    def left_out(self, ref: Ref) -> None:
        out.warning(f"{ref} is left out: this cluster does not have {ref.resource.owner}")

    @contextmanager
    def applying(self) -> Iterator[None]:
        with out.progress("applying, by helm"):
            yield
        self.has_applied = True

    def going_back(self, revision: int) -> None:
        out.warning(f"rolling the release back to revision {revision}, which served before")
        self.has_gone_back = True

    @contextmanager
    def waiting(self) -> Iterator[PodTalk]:
        with out.progress("waiting for pods") as advance:
            yield PodTalk(advance)


class PodTalk:
    """Prints how pods start: in place on a terminal; elsewhere, or without progress, one line for each
    change."""

    def __init__(self, advance: Advance | None = None) -> None:
        self._advance, self._said = advance, ""

    def stands(self, ready: int, wanted: int, words: str) -> None:
        said = f"{ready} of {wanted} ready ({words})"
        if said != self._said and not (self._advance and out.draws):
            out.status(said)
        self._said = said
        if self._advance:
            self._advance(0, said)

    def troubled(self, trouble: Trouble) -> None:
        out.warning(f"{trouble.subject}: {trouble.problem}; it may pass")
        if trouble.repair:
            out.hint(trouble.repair)


def tell_left(cluster: Cluster, left: Sequence[Ref]) -> None:
    """Prints what was not deleted because it holds data."""
    for ref in left:
        out.status(f"{ref} is kept with its data; kubectl delete {ref} -n {cluster.namespace} deletes it")


def _tell_ready(cluster: Cluster, values: Values) -> None:
    if values.kserve:
        out.status(f"{values.model_name} is ready; {_stops(cluster, values.name)} stops it")
        out.result(f"kubectl get inferenceservice {values.name} -n {cluster.namespace}")
        return
    host, where = f"{values.name}.{cluster.namespace}.svc", f"-n {cluster.namespace} service/{values.name}"
    out.status(f"{values.model_name} is ready; {_stops(cluster, values.name)} stops it")
    if values.engines:
        out.result(f"HTTP     http://{host}:{PORTS.http}/v2/models/{values.model_name}/generate")
    out.result(f"OpenAI   http://{host}:{PORTS.openai}/v1")
    if values.engines:
        out.result(f"gRPC     {host}:{PORTS.grpc}")
    out.result(f"kubectl port-forward {where} {PORTS.openai}:{PORTS.openai}")


def _stops(cluster: Cluster, name: str) -> str:
    return f"trtspec deploy stop {name} {_where(cluster)}"


def _status(cluster: Cluster) -> str:
    return f"trtspec deploy status {_where(cluster)}"


def _where(cluster: Cluster) -> str:
    return f"--kubernetes --context {cluster.context} --namespace {cluster.namespace}"
