"""The settings file of a person, `trtspec/config.yaml` below `XDG_CONFIG_HOME`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from trtspec.cli.app import app
from trtspec.cli.terminal.settings import VARIABLES, apply_settings, settings_file


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for variable in VARIABLES.values():
        # What a command sets of it is taken back too.
        monkeypatch.setenv(variable, "")
        monkeypatch.delenv(variable)
    settings_file().parent.mkdir()
    return settings_file()


def run(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def test_a_setting_is_the_default_that_variables_and_options_override(
    file: Path, pair_recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text(f"output: {tmp_path}/mine/{{name}}\n")
    name = pair_recipe.stem
    assert f"{tmp_path}/mine/{name}/target" in run("build", pair_recipe, "--dry-run").output
    monkeypatch.setenv("TRTSPEC_OUTPUT", f"{tmp_path}/variable")
    assert f"{tmp_path}/variable/target" in run("build", pair_recipe, "--dry-run").output
    said = run("build", pair_recipe, "--dry-run", "--output", tmp_path / "option").output
    assert f"{tmp_path}/option/target" in said


def test_doctor_shows_the_settings(file: Path) -> None:
    file.write_text("containers: podman\nstore: s3://engines\n")
    said = " ".join(run("doctor").stdout.split())
    assert f"settings store: s3://engines, containers: podman ({file})" in said
    file.unlink()
    assert f"({file} is not there)" in " ".join(run("doctor").stdout.split())


def test_the_home_has_the_file_where_no_other_folder_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert settings_file() == tmp_path / ".config/trtspec/config.yaml"


def test_doctor_does_not_show_a_stores_password(file: Path) -> None:
    file.write_text("store: https://me:hidden@host/engines\n")
    said = run("doctor").output
    assert "host/engines" in said
    assert "hidden" not in said


def test_a_user_without_a_home_has_no_settings(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("XDG_CONFIG_HOME", "HOME"):
        monkeypatch.delenv(variable)
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)
    assert not settings_file().is_absolute()
    apply_settings({})


@pytest.mark.parametrize(
    ("text", "place", "said"),
    [
        ("# mine\nbakend: torch\n", ":2: bakend: unknown key", "did you mean backend?"),
        ("colour: red\n", ":1: colour: unknown key", "the keys are backend, output"),
        ("backend: tgi\n", ":1: backend: 'tgi' is not allowed", "write tensorrt_llm, torch"),
        ("containers: 3\n", ":1: containers: a value that is not text is not allowed", "docker, podman"),
        ("output: ~/builds\n", ":1: output: is one folder", "~/builds/{name}"),
        ("- backend\n", ":1: the top level is", ""),
    ],
)
def test_a_wrong_file_is_refused_with_the_line_and_the_repair(
    file: Path, monkeypatch: pytest.MonkeyPatch, text: str, place: str, said: str
) -> None:
    from trtspec.base.errors import UnavailableError

    file.write_text(text)
    with pytest.raises(UnavailableError) as refused:
        apply_settings(os.environ)
    assert f"{refused.value.subject}: {refused.value.problem}".startswith(f"{file}{place}")
    assert said in (refused.value.repair or "")


def test_an_empty_file_sets_nothing(file: Path) -> None:
    environment: dict[str, str] = {}
    for text in ("", "# nothing yet\n"):
        file.write_text(text)
        apply_settings(environment)
    assert not environment
