"""`trtspec deploy`: a built recipe under a real Triton, on this machine or in a container."""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from trtspec.base.errors import UnavailableError
from trtspec.cli.terminal.options import (
    ApiKeysOption,
    ContextOption,
    DryRunOption,
    NamespaceOption,
    OutputOption,
    PythonOption,
    RecipeArgument,
)
from trtspec.cli.terminal.output import INTERRUPTED, out
from trtspec.gateway.addresses import LOOPBACK
from trtspec.gateway.ports import GRPC, HTTP, METRICS, OPENAI

if TYPE_CHECKING:
    from trtspec.backends.servers.launch import ServerLaunch
    from trtspec.recipe.loader import LoadedRecipe

_ONLY_TRITON: tuple[str, ...] = ("http_port", "grpc_port", "metrics_port", "openai", "trace_config")
_ONLY_SERVERS: tuple[str, ...] = ("python", "plain")
_ONLY_API = ("openai_port", "api_keys")
LogFormat = Literal["text", "json"]
LogPlace = Literal["build", "stdout"]

EXAMPLES = (
    "trtspec deploy recipe.yaml",
    "trtspec deploy recipe.yaml --http-port 8100 --grpc-port 8101",
    "trtspec deploy recipe.yaml --container --detach",
    "trtspec deploy recipe.yaml --python .venv-vllm/bin/python    # engine.backend: vllm",
    "trtspec deploy recipe.yaml --kubernetes --store s3://engines/llama",
    "trtspec deploy status",
    "trtspec deploy stop",
)


def deploy(
    context: typer.Context,
    recipe: RecipeArgument,
    output: OutputOption = None,
    container: Annotated[
        bool,
        typer.Option("--container", help="Serve in NVIDIA's image of the release, with docker or podman."),
    ] = False,
    docker: Annotated[bool, typer.Option("--docker", hidden=True)] = False,
    detach: Annotated[
        bool, typer.Option("--detach", help="With --container: leave it running when it is ready.")
    ] = False,
    kubernetes: Annotated[
        bool,
        typer.Option(
            "--kubernetes", help="Serve on a cluster: what a store has of the build, or another's server."
        ),
    ] = False,
    store: Annotated[
        str | None,
        typer.Option("--store", metavar="URL", help="With --kubernetes: the store, if not the recipe's."),
    ] = None,
    cluster: ContextOption = None,
    namespace: NamespaceOption = None,
    force: Annotated[
        bool, typer.Option("--force", help="With --kubernetes: take over fields that others have set.")
    ] = False,
    helm_values: Annotated[
        bool, typer.Option("--helm-values", help="With --kubernetes: print the values of the Helm chart.")
    ] = False,
    dry_run: DryRunOption = False,
    host: Annotated[
        str, typer.Option(help="Address to listen on; Triton asks nobody for a password.")
    ] = LOOPBACK,
    http_port: Annotated[int, typer.Option(min=1, max=65535, help="Port of Triton's HTTP.")] = HTTP,
    grpc_port: Annotated[int, typer.Option(min=1, max=65535, help="Port of Triton's gRPC.")] = GRPC,
    metrics_port: Annotated[int, typer.Option(min=1, max=65535, help="Port of the metrics.")] = METRICS,
    openai: Annotated[bool, typer.Option("--openai/--no-openai", help="Serve OpenAI's API as well.")] = True,
    openai_port: Annotated[int, typer.Option(min=1, max=65535, help="Port of OpenAI's API.")] = OPENAI,
    api_keys: ApiKeysOption = None,
    restart: Annotated[
        bool, typer.Option("--restart", help="Serve again when the server has ended by itself.")
    ] = False,
    grace: Annotated[float, typer.Option(min=0, help="Seconds that requests in flight have to end in.")] = 10,
    log_format: Annotated[
        LogFormat, typer.Option(help="With json: a line of JSON for each message and each request.")
    ] = "text",
    log_to: Annotated[
        LogPlace,
        typer.Option(help="With stdout: every line of the logs goes there, and no file grows."),
    ] = "build",
    trace_config: Annotated[
        list[str] | None,
        typer.Option(metavar="OPTION", help="An option of Triton's tracing; may be given often."),
    ] = None,
    python: PythonOption = None,
    plain: Annotated[
        bool, typer.Option("--plain", help="Of vLLM, SGLang, trtllm-serve: the same server without drafts.")
    ] = False,
    timeout: Annotated[
        float | None,
        typer.Option(
            min=1,
            help="Seconds that loading may take.",
            show_default="300, or 1800 without engines, and 5 for each GB",
        ),
    ] = None,
) -> None:
    """Serve a built recipe until Ctrl-C or SIGTERM.

    Engines are served under Triton, and a recipe of another engine.backend by that server itself. Without
    --container that is what is installed here, which may be in NVIDIA's or the vendor's image. Told
    to stop, it takes in nothing more. The exit status is 0 for a server that was ready and was stopped
    so, 130 for one that was stopped before it was ready, 1 for one that ended by itself. With --restart that
    one is started again, after 1 to 30 seconds, unless five starts in a row lead to nothing; docker or podman
    does so with what --detach leaves running. With --kubernetes the status is 0 when all pods are ready;
    Ctrl-C leaves what was applied.
    """
    from trtspec.backends.servers.plain import without_drafts
    from trtspec.backends.table import backend_named
    from trtspec.cli.terminal.built import find_build
    from trtspec.cli.terminal.served import LogTalk, ServerTalk
    from trtspec.cluster.commands.cluster import deploy_to
    from trtspec.cluster.commands.kubernetes import find_values
    from trtspec.cluster.kubernetes.helm import template
    from trtspec.cluster.kubernetes.values import chart_values
    from trtspec.cluster.kubernetes.yaml_text import dump
    from trtspec.deploy import foreground
    from trtspec.deploy.deployment import Deployment, rollout_file
    from trtspec.deploy.following import LogFollower
    from trtspec.deploy.patience import with_build, with_models
    from trtspec.deploy.restarts import Restarts
    from trtspec.deploy.site import Here, InContainer, Site
    from trtspec.deploy.vendor.build import find_launch, key_of
    from trtspec.deploy.vendor.deployment import VendorDeployment
    from trtspec.deploy.vendor.models import models_of
    from trtspec.deploy.vendor.site import VendorContainer, VendorHere
    from trtspec.gateway.ports import Ports
    from trtspec.recipe.loader import load
    from trtspec.serving.rollout.file import ROLLOUT

    if docker:
        _check_docker()
    in_container = container or docker
    if detach and not in_container:
        raise typer.BadParameter("only a container can be left running: --container", param_hint="--detach")
    if detach and log_to == "stdout":
        raise typer.BadParameter(
            "docker or podman has the logs of what is left running", param_hint="--log-to"
        )
    if api_keys and not openai:
        raise typer.BadParameter("there is no OpenAI's API to open: --openai", param_hint="--api-keys")
    if (store or cluster or namespace or force or helm_values) and not kubernetes:
        hint = "--store, --context, --namespace, --force, --helm-values"
        raise typer.BadParameter("only a cluster needs it: --kubernetes", param_hint=hint)
    if kubernetes:
        loaded = load(recipe)
        _check_cluster(loaded, output, in_container=in_container, plain=plain)
        values = find_values(loaded, store, namespace, output=output, plain=plain)
        if helm_values:
            out.data(dump(chart_values(values)))
        elif dry_run:
            out.data(template(values, cluster))
        else:
            deploy_to(values, cluster, timeout, force=force)
        return
    build = find_build(recipe, output)
    launch = find_launch(build.folder)
    _check_options(context, launch, for_triton=build.is_for_triton)
    logs = context.with_resource(TemporaryDirectory(prefix="trtspec-")) if log_to == "stdout" else None
    folder = Path(logs) if logs else None
    patience = with_models(launch) if launch else with_build(build.folder)
    deployment: Deployment | VendorDeployment
    site: Site
    if launch and not build.is_for_triton:
        deployment = VendorDeployment(
            name=build.recipe.name,
            build=build.folder.resolve(),
            backend=launch.backend,
            model_name=launch.served_model_name,
            host=host,
            port=openai_port,
            start_s=timeout or patience.seconds,
            grace_s=grace,
            key=key_of(launch, api_keys) if api_keys else None,
            is_plain=plain,
            json_logs=log_format == "json",
            logs=folder,
        )
        models = models_of(without_drafts(launch) if plain else launch, build.recipe)
        if in_container:
            site = VendorContainer(deployment, models, build.recipe.hardware, detach=detach)
        else:
            site = VendorHere(deployment, models, python)
    else:
        rollout = None if in_container else os.environ.get(ROLLOUT)
        deployment = Deployment(
            name=build.recipe.name,
            build=build.folder.resolve(),
            model_name=build.recipe.serving.model_name,
            ranks=build.ranks,
            host=host,
            ports=Ports(http_port, grpc_port, metrics_port, openai_port if openai and not launch else None),
            start_s=timeout or patience.seconds,
            grace_s=grace,
            api_keys=api_keys,
            loads_one_by_one=build.shares_a_server,
            json_logs=log_format == "json",
            trace_config=tuple(trace_config or ()),
            rollout=Path(rollout) if rollout else None,
            logs=folder,
        )
        _tell_rollout(deployment.rollout or rollout_file(deployment.build), recipe)
        if launch and not in_container:
            raise UnavailableError(build.folder, "is for NVIDIA's image of Triton with vLLM", "--container")
        site = InContainer(deployment, build, detach=detach) if in_container else Here(deployment, build)
    if logs and deployment.json_logs and not dry_run:
        out.log_as_json()
    if not build.is_current:
        out.warning(f"{recipe} has changed since {build.folder} was built from it, which is served as it is")
    if dry_run:
        out.result(site.command_line())
        return
    site.prepare(out.watch)
    wrong = backend_named(launch.backend).doubt(build.recipe.hardware.gpu) if launch and not plain else None
    for warning in filter(None, (site.warning, deployment.exposure, wrong)):
        out.warning(warning)
    if timeout is None:
        out.status(f"the start may take {patience}; --timeout says otherwise")
    talk = LogTalk(deployment, None) if logs else ServerTalk(deployment, site.left)
    following = LogFollower(deployment.all_logs, talk.log) if isinstance(talk, LogTalk) else nullcontext()
    try:
        with following:
            foreground.serve(
                site.serve(), deployment.log, Restarts(is_wanted=restart), talk, leave=bool(site.left)
            )
    except foreground.Interrupted:
        raise typer.Exit(INTERRUPTED) from None
    if not site.left:
        out.status("stopped")


def _check_options(context: typer.Context, launch: ServerLaunch | None, *, for_triton: bool) -> None:
    """Refuses options of the command line that what serves the build does not have."""
    if launch is None:
        refused, why = _ONLY_SERVERS, "the build has engines, which Triton serves"
    elif for_triton:
        refused, why = (*_ONLY_SERVERS, *_ONLY_API), "Triton has no API of OpenAI's in front of vLLM"
    else:
        refused, why = _ONLY_TRITON, f"it is Triton's; {launch.backend} has one port, --openai-port"
    for name in refused:
        source = context.get_parameter_source(name)
        if source and source.name == "COMMANDLINE":
            raise typer.BadParameter(why, param_hint=_option(name))


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _check_cluster(loaded: LoadedRecipe, output: str | None, *, in_container: bool, plain: bool) -> None:
    """Refuses options that a cluster has no use for."""
    from trtspec.backends.table import backend_named

    if in_container:
        raise typer.BadParameter("a cluster has containers of its own", param_hint="--container")
    if (output or plain) and backend_named(loaded.recipe.backend).builds_engines:
        raise typer.BadParameter("a cluster serves what a store has", param_hint="--output, --plain")


def _check_docker() -> None:
    """Refuses --docker, the older word for --container, where that would be podman."""
    from trtspec.backends.containers.dialect import DOCKER
    from trtspec.backends.containers.program import find_program

    if find_program().dialect is not DOCKER:
        raise typer.BadParameter("it is podman that runs containers here: --container", param_hint="--docker")


def _tell_rollout(file: Path, recipe: Path) -> None:
    """Says where a roll-out stands that an earlier deployment has left."""
    from trtspec.deploy.rollout.standing import read
    from trtspec.deploy.rollout.steps import ALL, name_of

    try:
        found = read(file)
    except UnavailableError as error:
        out.warning(f"its roll-out cannot be followed: {error}")
        return
    if found and found.state != ALL.state:
        out.warning(
            f"its roll-out stands at {name_of(found.state)}; to move it: trtspec rollout next {recipe}"
        )
