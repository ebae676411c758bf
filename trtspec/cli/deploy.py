"""`trtspec deploy`: a built recipe under its server, on this machine or in a container."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Literal

import typer

import trtspec
from trtspec.backends.table import load, loads
from trtspec.base.errors import OptionError, UnavailableError
from trtspec.base.files import write_atomically
from trtspec.base.progress import Advance, no_progress
from trtspec.base.roles import Role
from trtspec.cli.terminal.options import (
    AllowedHostOption,
    ApiKeysOption,
    DryRunOption,
    OutputOption,
    PythonOption,
)
from trtspec.cli.terminal.output import INTERRUPTED, log_line, out
from trtspec.cli.terminal.signals import ended_by_sigterm
from trtspec.deployment.build import NoBuildError, PlannedBuild, find_build
from trtspec.deployment.deployment import DeployOptions
from trtspec.deployment.server import Interrupted, LogFollower, Restarts, last_lines, serve_in_foreground
from trtspec.deployment.triton.server import UNREADY
from trtspec.gateway.ports import ANY_PORT, GRPC, HTTP, LOOPBACK, METRICS, OPENAI, Ports, free_run
from trtspec.methods.table import METHODS
from trtspec.models.download import refused
from trtspec.models.source import has_file
from trtspec.pipeline.machine.devices import find_gpus, product_of
from trtspec.recipe import gpus
from trtspec.recipe.edit import flow, written
from trtspec.recipe.gpus import NONE
from trtspec.recipe.loader import model_location
from trtspec.serving.rollout.state import ROLLOUT

if TYPE_CHECKING:
    from trtspec.base.errors import ServerError
    from trtspec.deployment.build import DeployedBuild
    from trtspec.deployment.deployment import Deployment, StartLimit
    from trtspec.deployment.place import ServingPlace

_ONLY_TRITON: tuple[str, ...] = (
    "allowed_host",
    "http_port",
    "grpc_port",
    "metrics_port",
    "openai",
    "trace_config",
)
_ONLY_SERVERS: tuple[str, ...] = ("python", "plain")
_ONLY_API = ("openai_port", "api_keys")

EXAMPLES = (
    "trtspec deploy recipe.yaml",
    "trtspec deploy recipe.yaml --port 8100    # HTTP; 8101 gRPC, 8102 metrics, 8103 OpenAI's API",
    "trtspec deploy Qwen/Qwen3-8B --draft Qwen/Qwen3-0.6B --container    # writes the recipe, builds, serves",
    "trtspec deploy recipe.yaml --detach",
    "trtspec deploy recipe.yaml --container --dry-run --format compose > compose.yaml",
    "trtspec deploy recipe.yaml --python .venv-vllm/bin/python    # engine.backend: vllm",
    "trtspec deploy status",
    "trtspec deploy stop",
)


@dataclass(frozen=True, slots=True)
class DeployArguments:
    """The arguments and options of `trtspec deploy`."""

    recipe: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE",
            help="The recipe, a YAML file; or a model, by its Hub id or its folder.",
            show_default=False,
        ),
    ]
    draft: Annotated[
        str | None,
        typer.Option(
            "--draft", metavar="MODEL", help="With a model: its draft, by its Hub id or its folder."
        ),
    ] = None
    method: Annotated[
        str | None,
        typer.Option(
            "--method",
            metavar="NAME",
            help="With a model: the source of its drafts.",
            show_default="ngram, or --draft",
        ),
    ] = None
    gpu: Annotated[
        str | None,
        typer.Option(
            "--gpu", metavar="GPU", help="With a model: the GPU.", show_default="that of this machine"
        ),
    ] = None
    output: OutputOption = None
    container: Annotated[
        bool,
        typer.Option("--container", help="Serve in NVIDIA's image of the release, with docker or podman."),
    ] = False
    detach: Annotated[bool, typer.Option("--detach", help="Leave the server running when it is ready.")] = (
        False
    )
    dry_run: DryRunOption = False
    format: Annotated[
        Literal["shell", "compose"] | None,
        typer.Option(help="What --dry-run prints: commands, or a Compose file.", show_default="shell"),
    ] = None
    host: Annotated[
        str, typer.Option(help="The address to listen on. Triton's own ports have no password.")
    ] = LOOPBACK
    allowed_host: AllowedHostOption = None
    port: Annotated[
        str | None,
        typer.Option(
            metavar=f"N|{ANY_PORT}",
            help=f"The first of the ports: HTTP, gRPC, metrics, OpenAI's API; {ANY_PORT} takes free ones.",
        ),
    ] = None
    http_port: Annotated[int, typer.Option(min=1, max=65535, help="Port of Triton's HTTP.")] = HTTP
    grpc_port: Annotated[int, typer.Option(min=1, max=65535, help="Port of Triton's gRPC.")] = GRPC
    metrics_port: Annotated[int, typer.Option(min=1, max=65535, help="Port of the metrics.")] = METRICS
    openai: Annotated[bool, typer.Option("--openai/--no-openai", help="Serve OpenAI's API as well.")] = True
    openai_port: Annotated[int, typer.Option(min=1, max=65535, help="Port of OpenAI's API.")] = OPENAI
    api_keys: ApiKeysOption = None
    restart: Annotated[
        bool, typer.Option("--restart", help="Start the server again when it ends by itself.")
    ] = False
    grace: Annotated[float, typer.Option(min=0, help="Seconds that requests in flight have to end.")] = 10
    log_format: Annotated[
        Literal["text", "json"],
        typer.Option(help="json writes a line of JSON for each message and each request."),
    ] = "text"
    log_to: Annotated[
        Literal["build", "stdout"],
        typer.Option(help="Where logs go: to files in the build directory, or to stdout."),
    ] = "build"
    trace_config: Annotated[
        list[str] | None,
        typer.Option(metavar="OPTION", help="An option of Triton's tracing; may be repeated."),
    ] = None
    python: PythonOption = None
    plain: Annotated[
        bool, typer.Option("--plain", help="With vLLM, SGLang or trtllm-serve: serve without drafts.")
    ] = False
    timeout: Annotated[
        float | None,
        typer.Option(
            min=1,
            help="Seconds that the server may take to load.",
            show_default="300, or 1800 without engines, plus 5 for each GB",
        ),
    ] = None


def deploy(context: typer.Context, arguments: DeployArguments) -> None:
    """Serve a built recipe until Ctrl-C or SIGTERM.

    Give a model instead of a recipe, and deploy writes the recipe to NAME.yaml in the current folder and
    builds what is missing.

    Triton serves engines of TensorRT-LLM and torch. vLLM, SGLang and trtllm-serve serve their own recipes.
    Without --container deploy runs what is installed here. When it is stopped, it accepts no new requests,
    and those in flight have --grace seconds to end.

    With --restart a server that ended by itself starts again after 1 to 30 seconds. Deploy gives up after
    five failed starts in a row. A server that --detach left running is started again too.

    The exit status is 0 if the server was ready and was stopped, 130 if it was stopped before it was ready,
    and 1 if it ended by itself.
    """
    _check_together(arguments)
    # A missing extra is named before a model is built.
    from trtspec.deployment.deploy import place_of, with_own_logs

    build = _build(_recipe(arguments), arguments)
    _check_options(context, build)
    asked = _asked(context, arguments, is_for_triton=build.is_for_triton)
    if asked.logs and asked.json_logs and not arguments.dry_run:
        out.log_as_json()
    if stale := build.staleness:
        out.warning(f"{stale}, which is served unchanged")
    leaves = arguments.detach and not arguments.container
    if not (arguments.dry_run or leaves):
        asked = context.with_resource(with_own_logs(build, asked))
    place = place_of(build, asked, container=arguments.container, detach=arguments.detach)
    for warning in place.warnings:
        out.warning(warning)
    if arguments.dry_run:
        show = place.compose if arguments.format == "compose" else place.commands
        out.result(show() if show else "")
        return
    place.prepare(out.watch)
    limit = build.start_limit if asked.start_s is None else None
    if leaves:
        _leave(place.deployment, limit)
    else:
        _stay(place, limit, restart=arguments.restart)


def _recipe(arguments: DeployArguments) -> Path:
    """Returns the recipe that is asked for, or the recipe of the model after building it."""
    asked, choices = arguments.recipe, ModelChoices(arguments.draft, arguments.method, arguments.gpu)
    model = find_model(asked)
    if model is None:
        if choices != ModelChoices():
            hint = "--draft, --method, --gpu"
            raise typer.BadParameter(f"they go with a model, and {asked} is a recipe", param_hint=hint)
        return Path(asked)
    if arguments.dry_run:
        out.data(recipe_text(model, choices))
        raise typer.Exit
    recipe = write_recipe(model, choices)
    with ended_by_sigterm():
        done = trtspec.build(
            recipe,
            output=arguments.output,
            container=arguments.container,
            progress=out.watch,
            warn=out.warning,
        )
    if done.ran:
        out.status(f"{len(done.ran)} of {len(done.steps)} steps run in {done.seconds:.1f} s: {done.output}")
    return recipe


def _build(recipe: Path, arguments: DeployArguments) -> DeployedBuild:
    """Returns the build of a recipe. For a dry run it may be a build that is only planned."""
    try:
        return find_build(recipe, arguments.output, container=arguments.container)
    except NoBuildError as lack:
        if not arguments.dry_run:
            raise
        made = trtspec.plan(recipe, output=arguments.output, container=lack.in_container)
        out.status(f"not built yet: {lack.repair}")
        return PlannedBuild.of(made)


def _ports(context: typer.Context, arguments: DeployArguments, *, is_for_triton: bool) -> Ports:
    """Returns the ports: those from --port on, but for those that are given each, or the usual ones."""
    own = {name: getattr(arguments, f"{name}_port") for name in ("http", "grpc", "metrics", "openai")}
    names = [*own] if is_for_triton else ["openai"]
    first, given = arguments.port, context.get_parameter_source
    if first == ANY_PORT:
        first = str(free_run(arguments.host, len(names)))
    if first is not None:
        if not first.isdecimal() or not 0 < int(first) <= 65536 - len(names):
            raise typer.BadParameter(f"the number of a port, or {ANY_PORT}", param_hint="--port")
        for name, port in zip(names, range(int(first), 1 << 16), strict=False):
            if getattr(given(f"{name}_port"), "name", "") != "COMMANDLINE":
                own[name] = port
    return Ports(own["http"], own["grpc"], own["metrics"], own["openai"] if arguments.openai else None)


def _asked(context: typer.Context, arguments: DeployArguments, *, is_for_triton: bool) -> DeployOptions:
    """Returns the options for the server from the command line."""
    logs = None
    if arguments.log_to == "stdout":
        # The folder exists until the command ends.
        logs = Path(context.with_resource(TemporaryDirectory(prefix="trtspec-")))
    named = None if arguments.container else os.environ.get(ROLLOUT)
    return DeployOptions(
        host=arguments.host,
        allowed_hosts=tuple(arguments.allowed_host or ()),
        ports=_ports(context, arguments, is_for_triton=is_for_triton),
        start_s=arguments.timeout,
        grace_s=arguments.grace,
        api_keys=arguments.api_keys,
        json_logs=arguments.log_format == "json",
        logs=logs,
        trace_config=tuple(arguments.trace_config or ()),
        rollout=Path(named) if named else None,
        python=arguments.python,
        plain=arguments.plain,
    )


def _leave(deployment: Deployment, limit: StartLimit | None) -> None:
    """Has a process of its own serve on this machine, and prints its addresses when it is ready.

    Raises `typer.Exit` with the process's status if that ends before.
    """
    ports = [f"--{name}-port={port}" for name, port in deployment.all_ports.items()]
    words = [word for word in sys.argv[1:] if word != "--detach"]
    log = deployment.build / f"deploy-{deployment.asked_port}.log"
    with log.open("wb") as output:
        child = subprocess.Popen(  # noqa: S603
            [sys.executable, "-m", "trtspec", *words, *ports, "--restart"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        with ended_by_sigterm(), ServerTalk(deployment, None, limit).starting() as tell:
            while child.poll() is None and not deployment.is_ready():
                tell("")
                time.sleep(0.2)
    except BaseException:
        child.terminate()
        child.wait()
        raise
    if child.poll() is not None:
        for line in last_lines(log):
            out.status(line)
        raise typer.Exit(max(child.returncode, 1))
    ServerTalk(deployment, f"{deployment.container_name}-{child.pid}", None).ready()


def _stay(place: ServingPlace, limit: StartLimit | None, *, restart: bool) -> None:
    """Stays in the foreground while a place serves; raises `typer.Exit` if it is interrupted."""
    deployment, left = place.deployment, place.left
    talk = LogTalk(deployment, None, limit) if deployment.logs else ServerTalk(deployment, left, limit)
    following = LogFollower(deployment.all_logs, talk.log) if isinstance(talk, LogTalk) else nullcontext()
    try:
        with following, deployment.as_local(None).announced():
            restarts = Restarts(is_wanted=restart)
            serve_in_foreground(place.serve(), deployment.log, restarts, talk, leave=bool(left))
    except Interrupted:
        raise typer.Exit(INTERRUPTED) from None
    if left:
        deployment.as_local(left).leave()
    else:
        out.status("stopped")


def _check_together(arguments: DeployArguments) -> None:
    """Refuses options that have no effect without another one, or beside it."""
    if arguments.format and not arguments.dry_run:
        raise typer.BadParameter("it is how a dry run is shown: --dry-run", param_hint="--format")
    if arguments.format == "compose" and not arguments.container:
        raise typer.BadParameter("Compose runs containers: --container", param_hint="--format")
    if arguments.detach and arguments.log_to == "stdout":
        why = "trtspec deploy logs shows those of what is left running"
        raise typer.BadParameter(why, param_hint="--log-to")
    if arguments.api_keys and not arguments.openai:
        why = "there is no OpenAI's API to open: --openai"
        raise typer.BadParameter(why, param_hint="--api-keys")


def _check_options(context: typer.Context, build: DeployedBuild) -> None:
    """Refuses options that the server of this build does not have."""
    launch = build.launch
    if launch is None:
        refused, why = _ONLY_SERVERS, "the build has engines, which Triton serves"
    elif build.is_for_triton:
        refused, why = (*_ONLY_SERVERS, *_ONLY_API), "Triton has no API of OpenAI's in front of vLLM"
    else:
        refused, why = _ONLY_TRITON, f"it is Triton's; {launch.backend} has one port, --openai-port"
    for name in refused:
        source = context.get_parameter_source(name)
        if source and source.name == "COMMANDLINE":
            raise typer.BadParameter(why, param_hint=f"--{name.replace('_', '-')}")


_LONG_S = 20.0


class ServerTalk:
    """Prints the states of the server; `left` names what is left running, if it is.

    After some seconds of its start it says the `limit`, if that is not the user's own.
    """

    def __init__(self, deployment: Deployment, left: str | None, limit: StartLimit | None) -> None:
        self._deployment, self._left, self._limit = deployment, left, limit

    @contextmanager
    def starting(self) -> Iterator[Callable[[str], None]]:
        begin = time.monotonic()

        def tell(does: str) -> None:
            if self._limit and time.monotonic() - begin > _LONG_S:
                out.status(f"the start may take {self._limit}; --timeout says otherwise")
                self._limit = None
            advance(0, does)

        with self._progress(f"starting {self._deployment.software}") as advance:
            yield tell

    def _progress(self, label: str) -> AbstractContextManager[Advance]:
        return out.progress(f"{label} (log: {self._deployment.log})")

    def ready(self) -> None:
        how = f"trtspec deploy stop {self._left} stops it" if self._left else "Ctrl-C stops it"
        out.status(f"{self._deployment.model_name} is ready; {how}")
        if self._left:
            out.status(f"its log: trtspec deploy logs {self._left} --follow")
        for what, where in self._deployment.addresses.items():
            out.result(f"{what:<8} {where}")
        out.result(self._deployment.example)
        if "OpenAI" in self._deployment.addresses:
            out.next("chat")

    def said(self, line: str) -> None:
        out.status(line)

    def failed(self, error: ServerError, delay: float) -> None:
        out.warning(f"{error}; starting again in {delay:g} s")

    def stopping(self) -> None:
        out.status("stopping; requests in flight may end first, a second Ctrl-C does not wait for them")


class LogTalk(ServerTalk):
    """The same for a server without a terminal, whose logs all go to stdout; `log` prints them."""

    def _progress(self, label: str) -> AbstractContextManager[Advance]:
        out.status(label)
        return no_progress(label, None)

    def ready(self) -> None:
        out.status(f"{self._deployment.model_name} is ready")

    def said(self, line: str) -> None: ...

    def log(self, name: str, line: str) -> None:
        """Prints a line of a log, as JSON if the models log JSON. Lines about making the server unready are
        left out."""
        if UNREADY in line or (self._deployment.json_logs and line[0] in "+|"):
            return
        out.log(as_json(line, name) if self._deployment.json_logs else line)


# Triton's: I1122 23:25:47.123456 1 http_server.cc:4692] "Started HTTPService at 0.0.0.0:8000"
_TRITONS = re.compile(r'([IWEF])\d{4} [\d:.]+ \d+ ([\w.]+:\d+)\] ?"?(.*?)"?$')
# [TensorRT-LLM][ERROR] …, or [11/21/2026-07:30:00] [TRT-LLM] [E] …
_LLMS = re.compile(r"(?:\[[\d/:-]+\] )?\[(?:TensorRT-LLM|TRT-LLM|TRT)\] ?\[([VIWEF])\w*\]")
_LEVELS = {"V": "debug", "I": "info", "W": "warning", "E": "error", "F": "critical"}


def as_json(line: str, logger: str) -> str:
    """Returns a line of a server's log as JSON, and as it is if it is JSON already."""
    if line.startswith("{") and _is_json(line):
        return line
    if found := _TRITONS.fullmatch(line):
        return log_line(_LEVELS[found[1]], logger, found[3], source=found[2])
    if found := _LLMS.match(line):
        return log_line(_LEVELS[found[1]], logger, line)
    return log_line("info", logger, line)


def _is_json(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
_FROM_TEXT = "ngram"


@dataclass(frozen=True, slots=True)
class ModelChoices:
    """The options of the command line for a model's recipe; None for those left out."""

    draft: str | None = None
    method: str | None = None
    gpu: str | None = None


def find_model(asked: str) -> Path | str | None:
    """Returns the folder or the Hub id of a model; None for the path of a recipe, there or not.

    Raises `UnavailableError` for anything else.
    """
    path = Path(asked).expanduser()
    if path.is_file() or path.suffix in (".yaml", ".yml"):
        return None
    if has_file(path / "config.json"):
        return Path(os.path.abspath(path))
    if (path / "manifest.json").is_file():
        raise UnavailableError(
            asked, "is a build, which its recipe serves", f"trtspec deploy RECIPE --output {asked}"
        )
    if path.is_dir():
        raise UnavailableError(asked, "is a folder without a model, which has a config.json")
    if _HUB_ID.fullmatch(asked):
        return asked
    problem = "is no recipe or folder, and no model of the Hub, which is OWNER/NAME"
    raise UnavailableError(asked, problem, "trtspec init writes a recipe to start from")


def write_recipe(model: Path | str, choices: ModelChoices) -> Path:
    """Returns the recipe of a model in the current folder, which is written if it is not there yet.

    Raises `UnavailableError` if the file is another model's, RecipeError for choices that no recipe can have,
    and the Hub's error for a model that it does not give. It then writes nothing.
    """
    path, text = Path(f"{_name(model)}.yaml"), recipe_text(model, choices)
    if not path.exists():
        for refusal in refused(loads(text.encode(), path)).values():
            raise refusal
        write_atomically(path, text)
        out.status(f"wrote {path}, the recipe, which may be edited: the same command uses it again")
        return path
    known = load(path)
    if _resolved(known.locations[Role.TARGET]) != _resolved(model):
        raise UnavailableError(path, f"is there already, and is not for {model}", f"trtspec deploy {path}")
    out.status(f"{path} is there already, and is used")
    if path.read_text(encoding="utf-8") != text and choices != ModelChoices():
        out.warning(f"{path} stays as it is: --draft, --method and --gpu are for a new one")
    return path


def recipe_text(model: Path | str, choices: ModelChoices) -> str:
    """Returns the recipe; without a draft or a method the drafts come from the text itself, and the
    GPU is this machine's first one.

    Raises `OptionError` for an unknown method or GPU.
    """
    if choices.method not in (None, *METHODS):
        raise OptionError("method", f"{choices.method!r} is none of {', '.join(METHODS)}")
    if choices.gpu not in (None, *gpus.NAMES):
        raise OptionError("gpu", f"{choices.gpu!r} is none of {', '.join(gpus.NAMES)}")
    here = Path()
    lines = [
        "# Written by trtspec deploy; trtspec plan -v shows every other key with its default and the reason.",
        "version: 1",
        f"name: {flow(_name(model))}",
        f"target: {{model: {flow(written(model, here))}}}",
    ]
    if choices.draft:
        draft = written(model_location(choices.draft, here), here)
        lines.append(f"draft: {{model: {flow(draft)}}}")
    if method := choices.method or (None if choices.draft else _FROM_TEXT):
        lines.append(f"speculation: {{method: {flow(method)}}}")
    if not (gpu := choices.gpu):
        found = find_gpus()
        gpu = product_of(found[0]).name if found else NONE
    return "\n".join([*lines, f"hardware: {{gpu: {flow(gpu)}}}", ""])


def _resolved(model: Path | str) -> Path | str:
    return model.resolve() if isinstance(model, Path) else model


def _name(model: Path | str) -> str:
    """Returns the name of a recipe for a model."""
    last = str(model).rpartition("/")[2].lower()
    return re.sub(r"[^a-z0-9._-]", "-", last).lstrip("._-") or "model"
