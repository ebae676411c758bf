"""`trtspec kubernetes`: a recipe's servers on a cluster are deployed, shown and stopped."""

from __future__ import annotations

from dataclasses import replace
from importlib.metadata import version
from typing import TYPE_CHECKING, Annotated

import typer

from trtspec.backends.table import load, runner_of
from trtspec.base.errors import ClusterError, RecipeError, StoreError, UnavailableError
from trtspec.cli.deploy_stop import only_one
from trtspec.cli.terminal.options import (
    ContextOption,
    DryRunOption,
    JsonOption,
    NamespaceOption,
    OutputOption,
    RecipeArgument,
)
from trtspec.cli.terminal.output import INTERRUPTED, ShownRows, out
from trtspec.cluster.kubernetes import release
from trtspec.cluster.kubernetes.cluster import connect
from trtspec.cluster.kubernetes.objects import dump
from trtspec.cluster.kubernetes.recipe_values import (
    PORTS,
    PodValues,
    StoredBuild,
    derive,
    find_build,
    from_build,
    from_launch,
    planned_build,
)
from trtspec.cluster.kubernetes.release import template
from trtspec.cluster.kubernetes.values import Values, chart_values
from trtspec.deployment.build import NoBuildError, PlannedBuild
from trtspec.deployment.build import find_build as find_served
from trtspec.pipeline.build.plan import make_plan
from trtspec.pipeline.store.files import StoreAddress
from trtspec.pipeline.store.store import Store
from trtspec.recipe.loader import LoadedRecipe

if TYPE_CHECKING:
    from trtspec.cluster.kubernetes.cluster import Cluster

HELP = "Serve on a Kubernetes cluster."
EXAMPLES = (
    "trtspec kubernetes deploy recipe.yaml --store s3://engines/llama",
    "trtspec kubernetes deploy recipe.yaml --dry-run    # the manifests, before anything is built",
    "trtspec kubernetes status --namespace serving",
    "trtspec kubernetes stop llama --namespace serving",
)


def deploy(
    recipe: RecipeArgument,
    output: OutputOption = None,
    store: Annotated[
        str | None, typer.Option("--store", metavar="URL", help="The store, if not the recipe's.")
    ] = None,
    context: ContextOption = None,
    namespace: NamespaceOption = None,
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite fields that somebody else has set.")
    ] = False,
    plain: Annotated[
        bool, typer.Option("--plain", help="With vLLM, SGLang or trtllm-serve: serve without drafts.")
    ] = False,
    helm_values: Annotated[
        bool, typer.Option("--helm-values", help="Print the values of the Helm chart.")
    ] = False,
    dry_run: DryRunOption = False,
    timeout: Annotated[
        float | None,
        typer.Option(
            min=1, help="Seconds that may pass without progress.", show_default="those of the build's size"
        ),
    ] = None,
) -> None:
    """Deploy a recipe's build, and wait until all pods are ready.

    Engines come from a store. vLLM, SGLang and trtllm-serve serve the build on this machine. Ctrl-C leaves on
    the cluster what was applied.
    """
    loaded = load(recipe)
    values = _values(loaded, store, namespace, output, plain=plain, previews=helm_values or dry_run)
    if helm_values:
        out.data(dump(chart_values(values)))
    elif dry_run:
        out.data(template(values, context))
    else:
        _deploy(values, context, timeout, force=force)


def status(
    context: ContextOption = None, namespace: NamespaceOption = None, json: JsonOption = False
) -> None:
    """Show the servers on a cluster.

    The exit status is 1 if a server is in trouble.
    """
    cluster = connect(context, namespace)
    found = release.find_deployed(cluster)
    nothing = f"nothing of trtspec is in namespace {cluster.namespace} of {cluster.context}"
    header = ("name", "what", "state", "ready", "build", "image")
    out.show(ShownRows([each.as_json() for each in found], nothing, header), as_json=json)
    for each in found:
        if each.trouble:
            out.warning(each.trouble)
    if any(each.trouble for each in found):
        raise typer.Exit(1)


def stop(
    name: Annotated[
        str | None,
        typer.Argument(
            help="The deployment's name, as trtspec kubernetes status shows it.", show_default="the only one"
        ),
    ] = None,
    context: ContextOption = None,
    namespace: NamespaceOption = None,
) -> None:
    """Stop a server on a cluster.

    Requests in flight have the seconds of the recipe to end. Stop deletes all objects of the deployment
    except volume claims, because these hold engines.
    """
    cluster = connect(context, namespace)
    found = release.find_names(cluster)
    name = only_one(name, found, f"in namespace {cluster.namespace} of {cluster.context}")
    try:
        with out.progress(f"stopping {name}") as advance:
            left = release.stop(cluster, name, lambda does: advance(0, does))
    except KeyboardInterrupt:
        out.status(f"interrupted: {name} is deleted, and its pods end by themselves")
        raise typer.Exit(INTERRUPTED) from None
    for ref in left:
        out.status(f"{ref} is kept with its data; kubectl delete {ref} -n {cluster.namespace} deletes it")
    out.status(f"{name}: stopped")


COMMANDS = (deploy, status, stop)


def _values(
    loaded: LoadedRecipe,
    store: str | None,
    namespace: str | None,
    output: str | None,
    *,
    plain: bool,
    previews: bool,
) -> Values:
    """Returns the values of a recipe's deployment: of engines in a store, or of another engine's server.

    `store`, `namespace` and the build's folder `output` replace the recipe's. With `plain`, another engine's
    server runs without drafts, beside the one with drafts and on no route of a Gateway. Where it `previews`,
    what is not built yet is as it is planned, and what that leaves open is told. Otherwise raises StoreError
    for what a store lacks, and UnavailableError for a build that is not there. Raises RecipeError.
    """
    if runner_of(loaded.recipe).builds_engines:
        if output or plain:
            raise typer.BadParameter("a cluster serves a build from a store", param_hint="--output, --plain")
        return derive(loaded, _engines(loaded, store, previews=previews), namespace)
    pods = _engine_server(loaded, store, output, plain=plain, previews=previews)
    values = derive(loaded, pods, namespace)
    return values.model_copy(update={"name": f"{values.name}-plain", "gateway": None}) if plain else values


def _engine_server(
    loaded: LoadedRecipe, store: str | None, output: str | None, *, plain: bool, previews: bool
) -> PodValues:
    try:
        build = find_served(loaded.path, output)
    except NoBuildError as lack:
        if not previews:
            raise
        build = PlannedBuild.of(make_plan(loaded.path, output=output))
        out.status(f"not built yet: {lack.repair}")
    if store is not None:
        problem = "--store has no effect: the server loads the models itself, and no engine is in a store"
        raise UnavailableError(build.folder, problem, "leave it out")
    launch = build.launch
    if launch is None or not build.is_current:
        repair = f"trtspec build {loaded.path}" + (f" --output {output}" if output else "")
        raise UnavailableError(build.folder, f"was built before {loaded.path} changed", repair)
    return from_launch(loaded, launch.without_drafts() if plain else launch)


_STORE, _DIGEST = "STORE", "BUILD"
"""Stand for the URL of a store and the digest of a build, where a preview leaves them open."""


def _engines(loaded: LoadedRecipe, store: str | None, *, previews: bool) -> PodValues:
    url = store or loaded.recipe.kubernetes.store or (_STORE if previews else None)
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
    if url != _STORE and StoreAddress(url).protocol == "file":
        out.warning(f"{url} is a folder of this machine, which pods do not have")
    build, is_planned = _stored(loaded, url, previews=previews)
    text = loaded.path.read_text(encoding="utf-8")
    pods = from_build(loaded.recipe, text, build, url, version("trtspec"))
    pods = replace(pods, digest=_DIGEST) if is_planned else pods
    if loaded.recipe.kubernetes.image is None:
        out.warning(f"kubernetes.image is not written: every node must have {pods.image} already")
    if loaded.recipe.kubernetes.autoscaling and not loaded.recipe.kubernetes.monitoring.rules:
        out.warning(
            "kubernetes.monitoring.rules is false, and autoscaling reads the series of these rules: "
            "Prometheus must get them from another deployment's rules or from trtspec monitoring scaling"
        )
    return pods


def _stored(loaded: LoadedRecipe, url: str, *, previews: bool) -> tuple[StoredBuild, bool]:
    """Returns the build that a store has, or as it is planned, which is told; and says whether it is planned.

    Raises StoreError and UnavailableError, if it does not `preview`.
    """
    try:
        if url != _STORE:
            return find_build(Store(url), loaded.recipe), False
        out.status(f"left open: {_STORE}, the URL of the store with the build (kubernetes.store, --store)")
    except (StoreError, UnavailableError) as error:
        if not previews:
            raise
        out.status(f"{error.subject}: {error.problem}")
    command = f"trtspec build {loaded.path} --store {url}"
    out.status(f"left open: {_DIGEST}, the digest of the build, which is not made yet: {command}")
    is_compiled = runner_of(loaded.recipe).engine_release(loaded.recipe) is not None
    return planned_build(make_plan(loaded.path, container=is_compiled)), True


def _deploy(values: Values, context: str | None, timeout: float | None, *, force: bool) -> None:
    """Deploys to a cluster and prints the progress.

    `timeout` is the number of seconds that may pass without progress; None takes the default of the build.
    Raises `ClusterError`, and `typer.Exit` with status 130 for Ctrl-C, which leaves what was applied.
    """
    cluster, talk = connect(context, values.namespace), release.ClusterTalk()
    try:
        release.deploy(cluster, values, talk, timeout or float(values.times.progress_s), force=force)
    except ClusterError:
        if talk.has_applied and not talk.has_gone_back:
            out.warning(f"what was applied stays; {_stops(cluster, values.name)} deletes it")
        raise
    except KeyboardInterrupt:
        if talk.has_applied:
            shows = f"trtspec kubernetes status {_where(cluster)} shows it"
            out.status(f"interrupted: the cluster keeps starting what was applied; {shows}")
        raise typer.Exit(INTERRUPTED) from None
    _tell_ready(cluster, values)


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
    return f"trtspec kubernetes stop {name} {_where(cluster)}"


def _where(cluster: Cluster) -> str:
    return f"--context {cluster.context} --namespace {cluster.namespace}"
