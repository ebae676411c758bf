"""The table of commands. A command's module is imported when the command is asked for.

A module has a function of the command's last words and a tuple `EXAMPLES`. A group of commands has a tuple of
functions `COMMANDS` instead; an underscore in a function's name is a space on the command line. A function's
parameters are the command's options, or the one parameter is a dataclass of them.
"""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, is_dataclass
from importlib import import_module
from typing import Annotated, Any, get_args, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group
from typer.models import OptionInfo

from trtspec.base.errors import OptionError
from trtspec.cli.terminal.output import out


@dataclass(frozen=True, slots=True)
class CommandEntry:
    """One line of `trtspec --help`."""

    name: str
    module: str
    """The module, within `trtspec`."""
    help: str
    """The first sentence of the command's own help."""
    then: str = ""
    """The next command, printed on a terminal; it takes arguments and options of this one."""


TABLE = (
    CommandEntry(
        "demo",
        "measure.commands.demo",
        "Build and serve a tiny pair, stream one completion, stop.",
        then="init --recipe llama-3.1-8b-h100",
    ),
    CommandEntry("init", "cli.init", "Write a commented recipe to start from."),
    CommandEntry("migrate", "cli.migrate", "Move a recipe to another engine, and say what changes."),
    CommandEntry(
        "doctor", "cli.doctor", "Show what this machine has and what a recipe needs.", then="plan {recipe}"
    ),
    CommandEntry(
        "selftest", "measure.commands.selftest", "Try the whole chain on this machine with a tiny pair."
    ),
    CommandEntry(
        "check", "cli.check", "Check a recipe, and whether its models fit together.", then="plan {recipe}"
    ),
    CommandEntry(
        "plan",
        "cli.plan",
        "Show a build's values, its steps and what to expect.",
    ),
    CommandEntry("draft", "cli.draft", "Find drafts and heads for a model."),
    CommandEntry("tune", "train.commands.tune", "Find the best draft, method and K for a recipe."),
    CommandEntry(
        "distill", "train.commands.distill", "Train the draft, or a head, on the target's own answers."
    ),
    CommandEntry(
        "convert",
        "cli.convert",
        "Convert a recipe's models to TensorRT-LLM checkpoints.",
        then="build {recipe}{output}",
    ),
    CommandEntry(
        "build",
        "cli.build",
        "Convert, build the engines, write the repository.",
        then="deploy {recipes}{output}{container}",
    ),
    CommandEntry("deploy", "cli.deploy", "Serve a built recipe until Ctrl-C or SIGTERM."),
    CommandEntry("deploy status", "cli.deploy_status", "Show the servers that deploy has started."),
    CommandEntry("deploy logs", "cli.deploy_logs", "Show the log of a server that deploy has started."),
    CommandEntry("deploy stop", "cli.deploy_stop", "Stop a server that deploy has started."),
    CommandEntry("kubernetes", "cluster.commands.kubernetes", "Serve on a Kubernetes cluster."),
    CommandEntry("serve", "cli.serve", "Serve OpenAI's API in front of a Triton elsewhere."),
    CommandEntry("chat", "cli.chat", "Talk to a running model; acceptance and speed on stderr."),
    CommandEntry("generate", "cli.generate", "Complete a prompt; acceptance and speed on stderr."),
    CommandEntry(
        "bench",
        "measure.commands.bench",
        "Measure what drafts are worth on a deployment.",
        then="verify {recipe}",
    ),
    CommandEntry(
        "verify",
        "measure.commands.verify",
        "Tell whether drafts change the target's text.",
        then="rollout plan {recipe}",
    ),
    CommandEntry("prove", "measure.commands.prove", "Prove that a new server may replace an old one."),
    CommandEntry("top", "cli.top", "Show a server live: streams, speed, acceptance, K, queue."),
    CommandEntry("rollout", "cli.rollout", "Give drafts to a running server's requests, a step at a time."),
    CommandEntry("monitoring", "cli.monitoring", "A dashboard for Grafana, alerts for Prometheus."),
    CommandEntry("inspect", "cli.inspect", "Show a model, checkpoint, engine or build, and its oddities."),
    CommandEntry("store", "cli.store", "Keep engines in a folder, S3, GCS or elsewhere."),
    CommandEntry("ci", "cluster.commands.ci", "Engine builds and proofs in GitHub Actions or GitLab CI."),
    CommandEntry("schema", "cli.schema", "Print the JSON Schema of the recipe, for editors."),
    CommandEntry("version", "cli.version", "Print the version."),
)
"""In the order of the help."""
_ENTRIES = {entry.name: entry for entry in TABLE}


class Command(TyperCommand):
    """Reports an option that does not fit the recipe as wrong usage, and prints the next command."""

    then = ""
    """The `then` of `CommandEntry`."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Returns the parts of the usage as manual pages write them: RECIPE, [RECIPE], RECIPE..."""
        marks = {"{": "", "}": "", "[[": "[", "]]": "]", "......": "..."}
        pieces: list[str] = super().collect_usage_pieces(ctx)
        for mark, plain in marks.items():
            pieces = [piece.replace(mark, plain) for piece in pieces]
        return [piece.upper() for piece in pieces]

    def invoke(self, ctx: Any) -> Any:
        try:
            result = super().invoke(ctx)
        except OptionError as error:
            raise typer.BadParameter(error.problem, param_hint=f"--{error.option}") from None
        if self.then and not any(ctx.params.get(name) for name in _ELSEWHERE):
            words = {each.name: _words(each, ctx.params.get(each.name)) for each in self.params}
            line = self.then.format_map(words)
            if not line.endswith(" "):  # An argument was left out.
                out.next(line)
        return result


_ELSEWHERE = ("dry_run", "json", "on", "only", "fleet", "commands")
"""The options with which a command does not do what the next command needs."""


def _words(parameter: Any, value: Any) -> str:
    """Returns an argument for a shell, or an option with its name and a blank before it; "" if not given."""
    if value in (None, False):
        return ""
    values = [] if value is True else value if isinstance(value, list) else [value]
    words = shlex.join(map(str, values))
    return words if parameter.param_type_name == "argument" else f" {parameter.opts[0]} {words}".rstrip()


class Commands(TyperGroup):
    """Finds commands of one word or two: `deploy status` is a command, and so is `deploy`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        two = " ".join(args[:2])
        return super().resolve_command(ctx, [two, *args[2:]] if two in self.list_commands(ctx) else args)


class Root(Commands):
    """The group of all commands; its help imports none of their modules."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        # Only the names are read: Typer suggests the nearest of them for a misspelt command.
        self.commands = dict.fromkeys(_ENTRIES, TyperCommand(None))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] == "deploy" and "--kubernetes" in args:
            # For one release: the command that `deploy --kubernetes` has become.
            words = [word for word in args if word != "--kubernetes"]
            is_other = words[1:2] in (["status"], ["stop"])
            out.error(f"--kubernetes is a command now: trtspec kubernetes {shlex.join(words[is_other:])}")
            raise typer.Exit(2)
        return super().resolve_command(ctx, args)

    def list_commands(self, ctx: Any) -> list[str]:
        return list(_ENTRIES)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return load(_ENTRIES[cmd_name]) if cmd_name in _ENTRIES else None

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(entry.name, entry.help) for entry in TABLE])


def typer_app(name: str, group: type[TyperGroup] = Commands) -> typer.Typer:
    """Returns an empty group of commands."""
    # Without Rich's markup the help comes in half the time. `main` explains errors.
    return typer.Typer(
        name=name,
        cls=group,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        no_args_is_help=True,
        context_settings={"help_option_names": ["-h", "--help"]},
    )


def load(entry: CommandEntry) -> Any:
    """Imports a command, or a group of commands, and returns it; raises what its import raises."""
    module = import_module(f"trtspec.{entry.module}")
    epilog = examples(*module.EXAMPLES)
    app = typer_app("trtspec")
    if hasattr(module, "COMMANDS"):
        group = typer_app(entry.name)
        for command in module.COMMANDS:
            name = command.__name__.rstrip("_").replace("_", " ")
            group.command(name, cls=Command)(_with_talk(_flat(command)))
        app.add_typer(group, help=module.HELP, epilog=epilog)
    else:
        command = getattr(module, entry.name.replace(" ", "_"))
        app.command(entry.name, cls=Command, epilog=epilog)(_with_talk(_flat(command)))
    loaded: Any = get_group(app).commands[entry.name]
    loaded.then = entry.then
    return loaded


def _with_talk(command: Callable[..., None]) -> Callable[..., None]:
    """Returns a command with `-q` and `-v`, which the help of `trtspec` shows once for all commands."""
    kinds = {
        "quiet": Annotated[bool, typer.Option("--quiet", "-q", hidden=True)],
        "verbose": Annotated[int, typer.Option("--verbose", "-v", hidden=True, count=True)],
    }

    def run(*, quiet: bool = False, verbose: int = 0, **values: Any) -> None:
        out.set_talk(quiet=quiet or out.is_quiet, verbose=max(verbose, out.verbose))
        command(**values)

    own, keyword = inspect.signature(command), inspect.Parameter.KEYWORD_ONLY
    more = [inspect.Parameter(name, keyword, default=0, annotation=kind) for name, kind in kinds.items()]
    run.__doc__, run.__annotations__ = command.__doc__, command.__annotations__ | kinds
    run.__signature__ = own.replace(parameters=[*own.parameters.values(), *more])  # type: ignore[attr-defined]
    return run


def _flat(command: Callable[..., None]) -> Callable[..., None]:
    """Returns a command whose parameters are the fields of its dataclass of options, as Typer reads them.

    Typer's context may stand before the dataclass.
    """
    kinds: dict[str, Any] = {name: kind for name, kind in _hints(command).items() if is_dataclass(kind)}
    if not kinds:
        # An option in an annotation that is text would be made anew each time that it is read.
        command.__annotations__ = _with_numbers(command)
        return command
    ((parameter, options),) = kinds.items()
    hints = _with_numbers(options)
    before = [given for given in inspect.signature(command).parameters.values() if given.name != parameter]

    def run(**values: Any) -> None:
        own = {given.name: values.pop(given.name) for given in before}
        command(**own, **{parameter: options(**values)})

    run.__doc__ = command.__doc__
    run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            *(given.replace(kind=inspect.Parameter.KEYWORD_ONLY) for given in before),
            *(
                inspect.Parameter(
                    field.name,
                    inspect.Parameter.KEYWORD_ONLY,
                    default=inspect.Parameter.empty if field.default is MISSING else field.default,
                    annotation=hints[field.name],
                )
                for field in fields(options)
            ),
        ]
    )
    run.__annotations__ = {given.name: typer.Context for given in before} | hints
    return run


def _with_numbers(options: Any) -> dict[str, Any]:
    """Returns the annotations; options with bounds are shown as <int> or <float>, not as <int range>."""
    hints = _hints(options)
    for hint in hints.values():
        for option in getattr(hint, "__metadata__", ()):
            if isinstance(option, OptionInfo) and not (option.min is option.max is None):
                is_float = float in (hint.__origin__, *get_args(hint.__origin__))
                option.metavar = option.metavar or ("<float>" if is_float else "<int>")
    return hints


def _hints(options: Any) -> dict[str, Any]:
    """Returns the annotations of a function, or of a dataclass and those that it extends, as objects."""
    # Python 3.10's `get_type_hints` puts Optional around a parameter whose default is None, and Typer then
    # reads neither its name nor its help.
    if not isinstance(options, type):
        return inspect.get_annotations(options, eval_str=True)
    return get_type_hints(options, include_extras=True)


def examples(*lines: str) -> str:
    """Returns the end of a help text."""
    # A line with a backspace alone keeps the help from filling the lines that follow into one paragraph.
    return "\n".join(("\b", "Examples:", *(f"  {line}" for line in lines)))
