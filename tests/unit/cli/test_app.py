from __future__ import annotations

import inspect
import os
import signal
import subprocess
import sys
import typing
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.docs.commands import named
from tests.support.command_line import trtspec
from trtspec.base.errors import ModelError
from trtspec.cli import app as cli
from trtspec.cli import commands
from trtspec.cli.commands import TABLE, CommandEntry, load

TRTSPEC = Path(sys.executable).with_name("trtspec")


def without_debug(**environment: str) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "TRTSPEC_DEBUG"} | environment


def run(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([TRTSPEC, *args], capture_output=True, text=True, timeout=240)


def run_shell(line: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["sh", "-c", line, TRTSPEC], capture_output=True, text=True, timeout=240)


def test_help_fits_one_screen_and_has_examples() -> None:
    result = run("--help")
    assert (result.returncode, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert len(lines) <= 48
    assert max(map(len, lines)) <= 80
    assert "  trtspec build recipe.yaml" in result.stdout
    assert "..." not in result.stdout.partition("Commands:")[2]  # every command's first sentence fits


@pytest.mark.parametrize("entry", TABLE, ids=lambda entry: entry.name)
def test_every_command_has_the_help_of_the_table_and_examples(entry: CommandEntry) -> None:
    result = CliRunner().invoke(cli.app, [*entry.name.split(), "--help"])
    assert result.exit_code == 0
    assert result.output.startswith(f"Usage: trtspec {entry.name} ")
    assert f"Examples:\n    trtspec {entry.name}" in result.output
    assert entry.help in " ".join(result.output.split())
    assert " range" not in result.output


@pytest.mark.parametrize("entry", TABLE, ids=lambda entry: entry.name)
def test_every_option_has_a_help(entry: CommandEntry) -> None:
    command = load(entry)
    for one in getattr(command, "commands", {"": command}).values():
        options = [option for option in one.params if not getattr(option, "hidden", False)]
        assert [option.name for option in options if not getattr(option, "help", None)] == []


def test_python_3_10s_type_hints_lose_no_argument(monkeypatch: pytest.MonkeyPatch) -> None:
    """`make test-pythons` compares the help under a real 3.10; here its hints alone are as it gives them."""

    def as_python_3_10(of: Any, *args: Any, **options: Any) -> dict[str, Any]:
        hints = typing.get_type_hints(of, *args, **options)
        parameters = {} if isinstance(of, type) else inspect.signature(of).parameters
        # Before 3.11 a default of None makes any hint optional, one with Typer's metadata too.
        none = [name for name, given in parameters.items() if given.default is None]
        return hints | {name: typing.Optional[hints[name]] for name in none if name in hints}  # noqa: UP045

    help_of = {name: one.get_help(one.context_class(one, info_name=name)) for name, one in named()}
    monkeypatch.setattr(commands, "get_type_hints", as_python_3_10)
    for name, one in named():
        assert one.get_help(one.context_class(one, info_name=name)) == help_of[name]


def test_help_imports_nothing_heavy() -> None:
    code = "import sys, trtspec.cli.app; print(*sys.modules)"
    loaded = set(subprocess.check_output([sys.executable, "-c", code], text=True).split())
    heavy = {
        "pydantic",
        "rich",
        "yaml",
        "numpy",
        "torch",
        "tokenizers",
        "huggingface_hub",
        "tritonclient",
        "google",
    }
    assert loaded & heavy == set()


@pytest.mark.parametrize("asked", ["--version", "version"])
def test_version(asked: str) -> None:
    result = run(asked)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == f"trtspec {metadata.version('trtspec')}\n"


def test_h_is_help_of_any_command() -> None:
    for words in ([], ["build"], ["rollout", "next"]):
        short, long = (CliRunner().invoke(cli.app, [*words, asked]) for asked in ("-h", "--help"))
        assert (short.exit_code, short.output) == (0, long.output)


@pytest.mark.parametrize("args", [["nonsense"], ["check"], ["check", "--nonsense", "x"], ["check", "a", "b"]])
def test_wrong_usage_exits_2_with_the_usage_on_stderr(args: list[str]) -> None:
    result = CliRunner().invoke(cli.app, args)
    assert result.exit_code == 2
    assert "Usage:" in result.stderr
    assert result.stdout == ""


def test_a_known_error_is_text_on_stderr_and_exit_1(tmp_path: Path) -> None:
    result = trtspec("check", tmp_path / "none.yaml", environment=without_debug())
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.splitlines() == [
        f"{tmp_path}/none.yaml: no such file; `trtspec init {tmp_path}/none.yaml` writes a starter recipe",
        f"error: {tmp_path}/none.yaml: 1 problem in this recipe",
    ]


def test_debug_can_be_switched_off(tmp_path: Path) -> None:
    assert "Traceback" not in trtspec("check", tmp_path, environment=without_debug(TRTSPEC_DEBUG="0")).stderr


def test_debug_shows_the_trace(tmp_path: Path) -> None:
    result = trtspec("check", tmp_path / "none.yaml", environment=without_debug(TRTSPEC_DEBUG="1"))
    assert result.returncode == 1
    assert "Traceback" in result.stderr
    assert "RecipeError" in result.stderr


@pytest.mark.parametrize("at", [0, 1], ids=["before the command", "behind it"])
def test_quiet_says_nothing_but_errors(tmp_path: Path, at: int) -> None:
    words, file = ["init"], str(tmp_path / "recipe.yaml")
    words.insert(at, "-q")
    assert (trtspec(*words, file).stderr, Path(file).is_file()) == ("", True)
    assert "error: " in trtspec(*words, file).stderr


@pytest.mark.parametrize("at", [0, 1], ids=["before the command", "behind it"])
def test_verbose_shows_the_trace(tmp_path: Path, at: int) -> None:
    words = ["inspect"]
    words.insert(at, "-v")
    assert "Traceback" in run(*words, str(tmp_path / "none")).stderr


class TestMain:
    def test_a_hint_follows_the_error(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def fail() -> None:
            raise ModelError("folder", "is empty", "fill it")

        monkeypatch.setattr(cli, "app", fail)
        monkeypatch.delenv("TRTSPEC_DEBUG", raising=False)
        with pytest.raises(SystemExit) as stop:
            cli.main()
        assert stop.value.code == 1
        assert capsys.readouterr().err.splitlines()[:2] == ["error: folder: is empty", "hint: fill it"]

    def test_a_defect_is_raised_again_with_a_request_to_report_it(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        empty: dict[str, object] = {}
        monkeypatch.setattr(cli, "app", lambda: empty["x"])
        with pytest.raises(KeyError):
            cli.main()
        assert "a defect of trtspec; please report it" in capsys.readouterr().err


def test_ctrl_c_exits_130(tmp_path: Path) -> None:
    fifo = tmp_path / "recipe.yaml"
    os.mkfifo(fifo)
    process = subprocess.Popen([TRTSPEC, "check", fifo], stderr=subprocess.PIPE, text=True)
    with fifo.open("w"):  # opens only once the command reads, so it is inside its work now
        process.send_signal(signal.SIGINT)
        _, talk = process.communicate(timeout=240)
    assert process.returncode == 130
    assert "Traceback" not in talk


@pytest.mark.parametrize(
    ("words", "status", "closed"),
    [("schema", 0, ">&-"), ("check no.yaml", 1, "2>&-"), ("schema", 0, "<&- >&- 2>&-")],
)
def test_a_closed_stream_is_no_defect(words: str, status: int, closed: str) -> None:
    said = run_shell(f'"$0" {words} {closed}')
    assert said.returncode == status
    assert "Traceback" not in said.stderr


def test_stdin_that_is_not_utf8_is_no_defect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "utf-8:strict")  # as in a UTF-8 locale, which may not be here
    said = run_shell(f"printf 'vllm serve a/\\377' | \"$0\" init --from - {tmp_path}/recipe.yaml")
    assert said.returncode == 1
    assert "target.model: Input should be a valid string" in said.stderr
    assert "Traceback" not in said.stderr


def test_ctrl_c_before_a_command_begins_exits_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "app", interrupt)
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 130


def test_a_closed_pipe_is_no_trace() -> None:
    process = subprocess.Popen([TRTSPEC, "schema"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == ""
    process.wait(timeout=240)
