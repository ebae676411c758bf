"""`trtspec deploy`: a built recipe under a real Triton, on this machine or in a container."""

from __future__ import annotations

import os
import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trtspec.cli.options import DryRunOption, OutputOption, RecipeArgument
from trtspec.cli.output import out
from trtspec.cli.plan import watch
from trtspec.cli.serving import run
from trtspec.errors import UnavailableError

if TYPE_CHECKING:
    from trtspec.deploy.deployment import Deployment
    from trtspec.deploy.restarts import Restarts
    from trtspec.engine.loading import Runtime
    from trtspec.recipe.schema import Recipe

EXAMPLES = (
    "trtspec deploy recipe.yaml",
    "trtspec deploy recipe.yaml --http-port 9000 --grpc-port 9001",
    "trtspec deploy recipe.yaml --docker --detach",
    "trtspec deploy status",
    "trtspec deploy stop",
)


def deploy(
    recipe: RecipeArgument,
    output: OutputOption = None,
    docker: Annotated[
        bool, typer.Option("--docker", help="Serve in a container of the release's image from NVIDIA.")
    ] = False,
    detach: Annotated[
        bool, typer.Option("--detach", help="With --docker: leave it running when it is ready.")
    ] = False,
    dry_run: DryRunOption = False,
    host: Annotated[
        str, typer.Option(help="Address to listen on; Triton asks nobody for a password.")
    ] = "127.0.0.1",
    http_port: Annotated[int, typer.Option(min=1, max=65535, help="Port of Triton's HTTP.")] = 8000,
    grpc_port: Annotated[int, typer.Option(min=1, max=65535, help="Port of Triton's gRPC.")] = 8001,
    metrics_port: Annotated[int, typer.Option(min=1, max=65535, help="Port of the metrics.")] = 8002,
    restart: Annotated[
        bool, typer.Option("--restart", help="Serve again when the server has ended by itself.")
    ] = False,
    grace: Annotated[float, typer.Option(min=0, help="Seconds that requests in flight have to end in.")] = 10,
    timeout: Annotated[
        float | None,
        typer.Option(
            min=1, help="Seconds that loading the engines may take.", show_default="300, and 5 for each GB"
        ),
    ] = None,
) -> None:
    """Serve a built recipe under Triton until Ctrl-C or SIGTERM.

    Without --docker that is the Triton of NVIDIA's image, if this is one, or the one that is installed here.
    Told to stop, it takes in nothing more. The exit status is 0 for a server that was ready and was stopped
    so, 130 for one that was stopped before it was ready, 1 for one that ended by itself. With --restart that
    one is started again, after 1 to 30 seconds, unless five starts in a row lead to nothing; docker does so
    with what --detach leaves running.
    """
    from trtspec.deploy.deployment import Deployment, patience
    from trtspec.deploy.ports import Ports
    from trtspec.deploy.restarts import Restarts
    from trtspec.engine.directory import read_engine
    from trtspec.engine.manifest import recipe_of
    from trtspec.plan.resolve import build_folder
    from trtspec.recipe.loader import load

    if detach and not docker:
        raise typer.BadParameter("only a container can be left running: --docker", param_hint="--detach")
    loaded = load(recipe)
    build = build_folder(loaded, {"output": output}, os.environ)
    if not (build / "model_repository").is_dir():
        repair = f"trtspec build {recipe}" + (f" --output {output}" if output else "")
        raise UnavailableError(build, "there is no build here", repair)
    deployment = Deployment(
        name=loaded.recipe.name,
        build=build.resolve(),
        model_name=loaded.recipe.serving.model_name,
        ranks=max(read_engine(build / role / "engine").num_processes for role in loaded.recipe.models),
        host=host,
        ports=Ports(http_port, grpc_port, metrics_port),
        start_s=timeout or patience(build),
        grace_s=grace,
        loads_one_by_one=_shares_a_server(loaded.recipe, build),
    )
    if recipe_of(build / "manifest.json") not in (None, loaded.recipe.digest):
        out.warning(f"{recipe} has changed since {build} was built from it, which is served as it is")
    if docker:
        _in_docker(deployment, loaded.recipe, Restarts(restart), detach, dry_run)
    else:
        _here(deployment, loaded.recipe, Restarts(restart), dry_run)


def _shares_a_server(recipe: Recipe, build: Path) -> bool:
    """Whether NVIDIA's C++ backend loads both engines."""
    return recipe.backend == "tensorrt_llm" and (build / "model_repository/tensorrt_llm").is_dir()


def _here(deployment: Deployment, recipe: Recipe, restarts: Restarts, dry_run: bool) -> None:
    from trtspec.deploy.local import find_triton, line, serve
    from trtspec.machine.devices import find_gpus
    from trtspec.machine.runtime import this_runtime

    triton, gpus = find_triton(), len(find_gpus())
    if dry_run:
        shown = line(replace(deployment, key="$KEY"), triton, gpus)
        variables = [f"{name}={shlex.quote(value)}" for name, value in shown.environment.items()]
        command = " ".join([*variables, shlex.join(shown.argv)])
        out.result(f"cd {shlex.quote(str(deployment.build))} && {command}")
        return
    _check_engines(deployment.build, recipe, this_runtime())
    if triton.problem and deployment.is_public:
        out.warning(triton.problem)
    run(serve(deployment, triton, gpus), deployment, restarts)


def _in_docker(
    deployment: Deployment, recipe: Recipe, restarts: Restarts, detach: bool, dry_run: bool
) -> None:
    from trtspec.deploy.in_docker import container, serve
    from trtspec.docker.daemon import container_user, find_daemon, obstacle
    from trtspec.docker.image import ensure_image
    from trtspec.machine.devices import container_gpus, find_gpus
    from trtspec.machine.runtime import image_runtime
    from trtspec.recipe.releases import release_of

    release, daemon = release_of(recipe.engine.release), find_daemon()
    gpus = container_gpus(find_gpus(), recipe.hardware.count) if recipe.hardware.gpu != "none" else ()
    made = container(deployment, release.image, gpus, container_user(daemon))
    if dry_run:
        hidden = container(replace(deployment, key="$KEY"), release.image, gpus, container_user(daemon))
        out.result(shlex.join(hidden.run("--detach")))
        return
    _check_engines(deployment.build, recipe, image_runtime(release))
    if problem := obstacle(daemon, needs_gpus=bool(gpus)):
        raise problem
    ensure_image(release.image, watch)
    run(serve(deployment, made, detach), deployment, restarts, made.name if detach else None)


def _check_engines(build: Path, recipe: Recipe, runtime: Runtime) -> None:
    """What would fail after minutes of loading is refused at once."""
    from trtspec.checkpoint.tokenizer import read_tokenizer
    from trtspec.engine.directory import read_engine
    from trtspec.engine.integrity import check_unchanged
    from trtspec.engine.loading import Pair, built_with, check_loading
    from trtspec.machine.devices import find_gpus
    from trtspec.plan.obstacles import settings_obstacle
    from trtspec.repository.placement import place

    gpus = place(recipe.ranks, recipe.hardware.count)
    pair = Pair(build / "target/engine", build / "draft/engine", gpus.target, gpus.draft)
    check_unchanged(build)
    manifest = build / "manifest.json"
    built = (built_with(manifest, "target"), built_with(manifest, "draft"))
    size = read_tokenizer(build / "tokenizer").size
    check_loading(pair, recipe.speculation.num_draft_tokens or 1, size, built, runtime)
    if read_engine(pair.target).backend == "tensorrt_llm":
        visible = find_gpus()
        if problem := settings_obstacle([visible[gpu] for gpu in sorted({*gpus.target, *gpus.draft})]):
            raise problem
