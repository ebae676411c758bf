"""`trtspec deploy` before anything is started."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from trtspec.base.errors import UnavailableError
from trtspec.cli.app import app
from trtspec.cli.deploy import ServerTalk
from trtspec.deployment.deployment import Deployment, StartLimit


def run(*words: object) -> Result:
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    return result


def test_a_recipe_that_has_changed_since_is_told(pair_recipe: Path, tmp_path: Path) -> None:
    built = tmp_path / "out"
    run("build", pair_recipe, "--output", built)
    assert "has changed" not in run("deploy", pair_recipe, "--output", built, "--dry-run").stderr
    pair_recipe.write_text(pair_recipe.read_text() + "\nspeculation: {num_draft_tokens: 2}\n")
    assert "pair.yaml has changed since" in run("deploy", pair_recipe, "--output", built, "--dry-run").stderr


@pytest.mark.parametrize("options", [(), ("--container", "--format", "compose")], ids=["here", "compose"])
@pytest.mark.parametrize("backend", ["torch", "vllm"])
def test_what_would_run_is_known_before_the_build(
    pair_recipe: Path, backend: str, options: tuple[str, ...]
) -> None:
    """It is the same to the letter: the plan says of a build what its files say."""
    text = pair_recipe.read_text().replace("backend: torch", f"backend: {backend}")
    pair_recipe.write_text(text.replace(", dtype: float32", ""))
    python = ("--python", sys.executable) if backend == "vllm" and not options else ()
    built = pair_recipe.parent / "out"
    command = ("deploy", pair_recipe, "--output", built, "--dry-run", *options, *python)
    planned = run(*command)
    assert f"not built yet: trtspec build {pair_recipe} --output {built}\n" in planned.stderr
    assert not built.exists()
    run("build", pair_recipe, "--output", built)
    known = run(*command)
    assert known.stdout == planned.stdout
    assert "not built" not in known.stderr


def test_one_option_moves_all_ports(pair_recipe: Path) -> None:
    command = ("deploy", str(pair_recipe), "--output", str(pair_recipe.parent / "none"), "--dry-run")

    def ports(*options: str) -> list[int]:
        shown = run(*command, *options).stdout
        found = re.findall(r"-port[= ](\d+)|--port (\d+)", shown)
        return [int(first or second) for first, second in found]

    assert ports("--port", "8100") == [8100, 8101, 8102, 8103]
    assert ports("--port", "8100", "--openai-port", "9100") == [8100, 8101, 8102, 9100]
    found = ports("--port", "any")
    assert len(set(found)) == 4
    assert not {*found} & {8000, 8001, 8002, 9000}
    for wrong in ("some", "0", "65534"):
        refused = CliRunner().invoke(app, [*command, "--port", wrong])
        assert refused.exit_code == 2


def test_compose_is_for_previews_of_containers(pair_recipe: Path) -> None:
    for option in ("--container", "--dry-run"):
        refused = CliRunner().invoke(app, ["deploy", str(pair_recipe), "--format", "compose", option])
        assert refused.exit_code == 2


def test_the_hint_of_a_deploy_in_a_container_builds_in_one(pair_recipe: Path) -> None:
    text = pair_recipe.read_text().replace("engine: {backend: torch}\n", "").replace("none", "h100")
    pair_recipe.write_text(text.replace(", dtype: float32", ""))
    refused = CliRunner().invoke(app, ["deploy", str(pair_recipe), "--container", "--output", "out"])
    assert isinstance(refused.exception, UnavailableError)
    assert refused.exception.repair == f"trtspec build {pair_recipe} --output out --container"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"version": 1, "mode": "speculate", "share": 0}', "the roll-out of this build is at step off"),
        ('{"version": 1, "mode": "shadow", "share": 0.5}', "the roll-out of this build is at step shadow"),
        ('{"version": 1, "mode": "speculate", "share": 1}', ""),
        ("{", "the roll-out's file cannot be used"),
    ],
)
def test_a_roll_out_that_was_left_is_told(pair_recipe: Path, tmp_path: Path, text: str, said: str) -> None:
    built = tmp_path / "out"
    run("build", pair_recipe, "--output", built)
    (built / "rollout.json").write_text(text)
    told = run("deploy", pair_recipe, "--output", built, "--dry-run").stderr
    assert said in told
    assert bool(said) == ("roll-out" in told)


def test_a_roll_outs_file_that_is_a_folder_is_told_and_hinders_nobody(
    pair_recipe: Path, tmp_path: Path
) -> None:
    built = tmp_path / "out"
    run("build", pair_recipe, "--output", built)
    (built / "rollout.json").mkdir()
    told = run("deploy", pair_recipe, "--output", built, "--dry-run")
    assert "the roll-out's file cannot be used" in told.stderr
    assert "tritonserver" in told.stdout


def test_a_roll_out_of_another_place_is_told(
    pair_recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built, file = tmp_path / "out", tmp_path / "mounted" / "rollout.json"
    run("build", pair_recipe, "--output", built)
    file.parent.mkdir()
    file.write_text('{"version": 1, "mode": "speculate", "share": 0}')
    monkeypatch.setenv("TRTSPEC_ROLLOUT", str(file))
    said = run("deploy", pair_recipe, "--output", built, "--dry-run")
    assert "the roll-out of this build is at step off" in said.stderr
    assert f"TRTSPEC_ROLLOUT={file}" in said.stdout


def test_the_limit_of_a_start_is_said_once_and_only_where_it_takes_long(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    deployment = Deployment("pair", tmp_path, "pair")
    now = [0.0]
    monkeypatch.setattr("trtspec.cli.deploy.time.monotonic", lambda: now[0])
    with ServerTalk(deployment, None, StartLimit(300, 0.0)).starting() as tell:
        tell("loading")
        assert "may take" not in capsys.readouterr().err
        now[0] = 60.0
        tell("loading")
        tell("loading")
    assert capsys.readouterr().err.count("the start may take 300 s") == 1
