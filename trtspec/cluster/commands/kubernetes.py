"""Deploys a recipe on a cluster: collects the values for it, and prints the progress."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from trtspec.backends.recipes import load, runner_of
from trtspec.base.errors import ClusterError, RecipeError, StoreError, UnavailableError
from trtspec.cli.deploy import DeployArguments
from trtspec.cli.terminal.output import INTERRUPTED, out
from trtspec.cluster.kubernetes.connection import connect
from trtspec.cluster.kubernetes.deploying import ClusterTalk, deploy
from trtspec.cluster.kubernetes.deriving import ServedRecipe, derive
from trtspec.cluster.kubernetes.helm import template
from trtspec.cluster.kubernetes.of_engines import find_build, of_engines
from trtspec.cluster.kubernetes.of_server import of_server
from trtspec.cluster.kubernetes.values import Values, chart_values
from trtspec.cluster.kubernetes.yaml_text import dump
from trtspec.deployment.build import DeployedBuild
from trtspec.deployment.pod import PORTS
from trtspec.pipeline.plan.resolved import build_folder
from trtspec.pipeline.store.address import StoreAddress
from trtspec.pipeline.store.store import Store
from trtspec.recipe.loader import LoadedRecipe

if TYPE_CHECKING:
    from trtspec.cluster.kubernetes.cluster import Cluster
    from trtspec.cluster.kubernetes.resources import Ref
    from trtspec.cluster.kubernetes.values import Values


def deploy_on_cluster(asked: DeployArguments) -> None:
    """Deploys a recipe's build from a store, or another engine's server, on a cluster.

    With `helm_values` it prints the values of the Helm chart, and with `dry_run` what it would apply. Raises
    what `find_values` and `deploy_to` raise.
    """
    loaded = load(Path(asked.recipe))
    if (asked.output or asked.plain) and runner_of(loaded.recipe).builds_engines:
        raise typer.BadParameter("a cluster serves a build from a store", param_hint="--output, --plain")
    values = find_values(loaded, asked.store, asked.namespace, output=asked.output, plain=asked.plain)
    if asked.helm_values:
        out.data(dump(chart_values(values)))
    elif asked.dry_run:
        out.data(template(values, asked.cluster))
    else:
        deploy_to(values, asked.cluster, asked.timeout, force=asked.force)


def find_values(
    loaded: LoadedRecipe,
    store: str | None,
    namespace: str | None,
    *,
    output: str | None = None,
    plain: bool = False,
) -> Values:
    """Returns the values of a recipe's deployment: of engines in a store, or of another engine's server.

    `store`, `namespace` and the build's folder `output` replace the recipe's. With `plain`, another engine's
    server runs without drafts, beside the one with drafts and on no route of a Gateway. Raises RecipeError,
    StoreError for what a store lacks, and UnavailableError for a build that is not there.
    """
    if runner_of(loaded.recipe).builds_engines:
        return derive(loaded, _of_engines(loaded, store), namespace)
    served = _of_server(loaded, store, output, plain=plain)
    values = derive(loaded, served, namespace)
    return values.model_copy(update={"name": f"{values.name}-plain", "gateway": None}) if plain else values


def _of_server(loaded: LoadedRecipe, store: str | None, output: str | None, *, plain: bool) -> ServedRecipe:
    build = DeployedBuild(build_folder(loaded, {"output": output}, os.environ), loaded)
    repair = f"trtspec build {loaded.path}" + (f" --output {output}" if output else "")
    if store is not None:
        problem = "--store has no effect: the server loads the models itself, and no engine is in a store"
        raise UnavailableError(build.folder, problem, "leave it out")
    launch = build.find_launch()
    if launch is None:
        raise UnavailableError(build.folder, "there is no build here", repair)
    if not build.is_current:
        raise UnavailableError(build.folder, f"was built before {loaded.path} changed", repair)
    return of_server(loaded, launch.without_drafts() if plain else launch)


def _of_engines(loaded: LoadedRecipe, store: str | None) -> ServedRecipe:
    url = store or loaded.recipe.kubernetes.store
    if url is None:
        problem = loaded.problem("kubernetes.store", "is missing: the URL of the store that has the build")
        raise RecipeError(loaded.path, [problem])
    # The ConfigMap has the recipe with its own store's URL, even if --store names another.
    for address in map(StoreAddress, filter(None, (store, loaded.recipe.kubernetes.store))):
        if address.has_secret:
            repair = "put it into a Secret, and name that in kubernetes.secrets.store"
            raise StoreError(
                str(address), "its URL contains a secret, which every manifest would show", repair
            )
    if StoreAddress(url).protocol == "file":
        out.warning(f"{url} is a folder of this machine, which pods do not have")
    build = find_build(Store(url), loaded.recipe)
    text = loaded.path.read_text(encoding="utf-8")
    served = of_engines(loaded.recipe, text, build, url, version("trtspec"))
    if loaded.recipe.kubernetes.image is None:
        out.warning(f"kubernetes.image is not written: every node must have {served.image} already")
    if loaded.recipe.kubernetes.autoscaling and not loaded.recipe.kubernetes.monitoring.rules:
        out.warning(
            "kubernetes.monitoring.rules is false, and autoscaling reads the series of these rules: "
            "Prometheus must get them from another deployment's rules or from trtspec monitoring scaling"
        )
    return served


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
            shows = f"trtspec deploy status {_where(cluster)} shows it"
            out.status(f"interrupted: the cluster keeps starting what was applied; {shows}")
        raise typer.Exit(INTERRUPTED) from None
    _tell_ready(cluster, values)


def tell_left(cluster: Cluster, left: Sequence[Ref]) -> None:
    """Prints what was not deleted because it holds data."""
    for ref in left:
        out.status(f"{ref} is kept with its data; kubectl delete {ref} -n {cluster.namespace} deletes it")


def _tell_ready(cluster: Cluster, values: Values) -> None:
    out.status(f"{values.model_name} is ready; {_stops(cluster, values.name)} stops it")
    if values.kserve:
        out.result(f"kubectl get inferenceservice {values.name} -n {cluster.namespace}")
        return
    host, where = f"{values.name}.{cluster.namespace}.svc", f"-n {cluster.namespace} service/{values.name}"
    if values.engines:
        out.result(f"HTTP     http://{host}:{PORTS.http}/v2/models/{values.model_name}/generate")
    out.result(f"OpenAI   http://{host}:{PORTS.openai}/v1")
    if values.engines:
        out.result(f"gRPC     {host}:{PORTS.grpc}")
    out.result(f"kubectl port-forward {where} {PORTS.openai}:{PORTS.openai}")


def _stops(cluster: Cluster, name: str) -> str:
    return f"trtspec deploy stop {name} {_where(cluster)}"


def _where(cluster: Cluster) -> str:
    return f"--kubernetes --context {cluster.context} --namespace {cluster.namespace}"
