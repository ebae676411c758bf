"""The workflows, against the schemas of GitHub and GitLab and the rules of safe ones."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click.testing
import pytest
from check_jsonschema import main as check
from ruamel.yaml import YAML
from typer.testing import CliRunner

from trtspec.base.errors import TrtspecError
from trtspec.cli.app import app
from trtspec.cluster.commands.ci import GITHUB, GITLAB, CiJob, CiSystem

ROOT = Path(__file__).parents[4]
BIN = Path(sys.executable).parent
EXPRESSION = re.compile(r"\$\{\{.*?\}\}")


@pytest.fixture
def workflow() -> dict[str, Any]:
    """As GitHub reads it: YAML 1.2."""
    document: dict[str, Any] = YAML(typ="safe").load(GITHUB.workflow)
    return document


def template(name: str) -> str:
    return (ROOT / "trtspec/cluster/ci" / name).read_text()


def steps(workflow: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for job in workflow["jobs"].values():
        yield from job["steps"]


class TestInit:
    @pytest.mark.parametrize(("system", "file"), [("github", str(GITHUB.file)), ("gitlab", str(GITLAB.file))])
    def test_writes_one_file(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, system: str, file: str
    ) -> None:
        monkeypatch.chdir(tmp_path)
        result = CliRunner().invoke(app, ["ci", "init", system])
        assert (result.exit_code, result.stdout) == (0, "")
        assert [path.as_posix() for path in Path().rglob("*") if path.is_file()] == [file]

    @pytest.mark.parametrize(("project", "is_told"), [(None, True), ("other", True), ("trtspec", False)])
    def test_who_installs_from_another_repository_says_where_trtspec_is(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, project: str | None, is_told: bool
    ) -> None:
        monkeypatch.chdir(tmp_path)
        if project:
            Path("pyproject.toml").write_text(f'[project]\nname = "{project}"\n')
        said = CliRunner().invoke(app, ["ci", "init", "gitlab"]).stderr
        assert ("say in its variable TRTSPEC where pip finds it" in said) is is_told

    def test_init_replaces_an_existing_workflow_only_when_forced(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        GITHUB.file.parent.mkdir(parents=True)
        GITHUB.file.write_text("mine")
        result = CliRunner().invoke(app, ["ci", "init", "github"])
        assert isinstance(result.exception, TrtspecError)
        assert result.exception.repair == "to replace it: trtspec ci init github --force"
        assert GITHUB.file.read_text() == "mine"
        assert CliRunner().invoke(app, ["ci", "init", "github", "--force"]).exit_code == 0
        assert GITHUB.file.read_text() == GITHUB.workflow


def test_the_workflow_of_this_repository_is_what_init_writes() -> None:
    assert (ROOT / GITHUB.file).read_text() == GITHUB.workflow


class TestProofs:
    """The workflows that prove a pull request's recipe, and the action that they use."""

    @pytest.mark.parametrize("system", [GITHUB, GITLAB], ids=lambda system: system.name)
    def test_init_writes_them(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, system: CiSystem
    ) -> None:
        monkeypatch.chdir(tmp_path)
        assert CliRunner().invoke(app, ["ci", "init", system.name, "prove"]).exit_code == 0
        written = {path: path.read_text() for path in Path().rglob("*") if path.is_file()}
        assert written == system.written("prove")
        again = CliRunner().invoke(app, ["ci", "init", system.name, "prove"])
        assert isinstance(again.exception, TrtspecError)
        assert again.exception.repair == f"to replace it: trtspec ci init {system.name} prove --force"

    @pytest.mark.parametrize(
        ("name", "schema"),
        [
            ("prove-github.yml", "vendor.github-workflows"),
            ("action.yml", "vendor.github-actions"),
            ("prove-gitlab.yml", "vendor.gitlab-ci"),
        ],
    )
    def test_each_follows_its_schema(self, tmp_path: Path, name: str, schema: str) -> None:
        (tmp_path / name).write_text(template(name))
        TestSchemas().check(schema, tmp_path / name)

    def test_the_action_of_this_repository_is_what_init_writes(self) -> None:
        assert (ROOT / ".github/actions/prove/action.yml").read_text() == template("action.yml")

    def test_nothing_from_outside_is_in_a_script_and_actions_are_commits(self) -> None:
        action = YAML(typ="safe").load(template("action.yml"))
        workflow = YAML(typ="safe").load(template("prove-github.yml"))
        both = [*action["runs"]["steps"], *steps(workflow)]
        assert [step["run"] for step in both if EXPRESSION.search(step.get("run", ""))] == []
        uses = [step["uses"] for step in both if not step.get("uses", "./").startswith("./")]
        assert len(uses) == 3
        assert all(re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40}", action) for action in uses)
        assert set(uses) <= set(re.findall(r"actions/[\w-]+@[0-9a-f]{40}", GITHUB.workflow))

    def test_a_fork_runs_nothing_and_one_job_alone_may_comment(self) -> None:
        workflow = YAML(typ="safe").load(template("prove-github.yml"))
        (job,) = workflow["jobs"].values()
        assert job["if"] == "${{ github.event.pull_request.head.repo.full_name == github.repository }}"
        assert workflow["permissions"] == {"contents": "read"}
        assert job["permissions"] == {"contents": "read", "pull-requests": "write"}
        checkouts = [step for step in job["steps"] if step.get("uses", "").startswith("actions/checkout@")]
        assert all(step["with"]["persist-credentials"] is False for step in checkouts)

    def test_shellcheck(self, tmp_path: Path) -> None:
        loaded = [YAML(typ="safe").load(template(name)) for name in ("action.yml", "prove-github.yml")]
        scripts = [step["run"] for step in (*loaded[0]["runs"]["steps"], *steps(loaded[1])) if "run" in step]
        job = YAML(typ="safe").load(template("prove-gitlab.yml"))["prove"]
        scripts += ["\n".join(job["script"]), "\n".join(job["after_script"])]
        for number, script in enumerate(scripts):
            (tmp_path / f"{number}.sh").write_text(f"#!/bin/bash\n{script}\n")
        # SC2086: options are words, unquoted on purpose.
        command: list[str | Path] = [BIN / "shellcheck", "--exclude", "SC2086", *tmp_path.glob("*.sh")]
        result = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
        assert result.returncode == 0, result.stdout


class TestSchemas:
    def check(self, schema: str, file: Path) -> None:
        result = click.testing.CliRunner().invoke(check, ["--builtin-schema", schema, str(file)])
        assert result.exit_code == 0, result.output

    def test_github(self, tmp_path: Path) -> None:
        (tmp_path / "workflow.yml").write_text(GITHUB.workflow)
        self.check("vendor.github-workflows", tmp_path / "workflow.yml")

    @pytest.mark.parametrize("name", ["ci.yml", "release.yml"])
    def test_the_workflows_of_trtspec_itself(self, name: str) -> None:
        self.check("vendor.github-workflows", ROOT / ".github/workflows" / name)

    def test_the_forms_of_issues(self) -> None:
        self.check("vendor.github-issue-config", ROOT / ".github/ISSUE_TEMPLATE/config.yml")
        for name in ("bug", "gpu", "idea"):
            self.check("vendor.github-issue-forms", ROOT / f".github/ISSUE_TEMPLATE/{name}.yml")

    def test_the_workflow_of_gitlab_follows_the_schema_of_gitlab(self, tmp_path: Path) -> None:
        (tmp_path / "template.yml").write_text(GITLAB.workflow)
        self.check("vendor.gitlab-ci", tmp_path / "template.yml")

    @pytest.mark.parametrize("recipes", [["llama-3.1-405b-8xh200.yaml"], ["tiny/recipe.yaml"]])
    def test_child_pipelines(self, tmp_path: Path, recipes: list[str]) -> None:
        files = [str(ROOT / "recipes" / recipe) for recipe in recipes]
        result = CliRunner().invoke(app, ["ci", "matrix", "--system", "gitlab", *files])
        (tmp_path / "child.json").write_text(result.stdout)
        self.check("vendor.gitlab-ci", tmp_path / "child.json")

    def test_a_schema_refuses_what_is_wrong(self, tmp_path: Path) -> None:
        (tmp_path / "workflow.yml").write_text(GITHUB.workflow.replace("runs-on", "run-on"))
        with pytest.raises(AssertionError):
            self.check("vendor.github-workflows", tmp_path / "workflow.yml")


def found_by_zizmor(*files: Path) -> str:
    """What zizmor says of workflows and actions, offline; nothing where it finds no fault."""
    least = ("--min-severity=medium", "--min-confidence=medium")
    command: list[str | Path] = [BIN / "zizmor", "--offline", "--no-progress", "--quiet", *least, *files]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode in (0, 13, 14), done.stderr
    return done.stdout if done.returncode else ""


class TestSafety:
    def test_zizmor_finds_nothing(self) -> None:
        shipped = (
            ROOT / "trtspec/cluster/ci" / name for name in ("action.yml", "github.yml", "prove-github.yml")
        )
        assert found_by_zizmor(ROOT / ".github", *shipped) == ""

    def test_zizmor_finds_what_is_wrong(self, tmp_path: Path) -> None:
        text = re.sub(r"(actions/checkout)@\w+", r"\1@main", template("prove-github.yml"))
        file = tmp_path / ".github/workflows/prove.yml"
        file.parent.mkdir(parents=True)
        file.write_text(text.replace("run: |", "run: |\n          echo ${{ github.head_ref }}", 1))
        found = found_by_zizmor(file)
        assert "unpinned-uses" in found
        assert "template-injection" in found

    def test_nothing_from_outside_is_in_a_script(self, workflow: dict[str, Any]) -> None:
        scripts = [step["run"] for step in steps(workflow) if "run" in step]
        assert len(scripts) == 5
        assert [script for script in scripts if EXPRESSION.search(script)] == []

    def test_the_token_reads_and_stays_in_no_checkout(self, workflow: dict[str, Any]) -> None:
        assert workflow["permissions"] == {"contents": "read"}
        assert not any("permissions" in job for job in workflow["jobs"].values())
        checkouts = [step for step in steps(workflow) if step.get("uses", "").startswith("actions/checkout@")]
        assert [step["with"] for step in checkouts] == [{"persist-credentials": False}] * 2

    def test_a_secret_is_given_to_the_build_alone(self, workflow: dict[str, Any]) -> None:
        have = [step.get("name") for step in steps(workflow) if "secrets." in json.dumps(step)]
        assert have == ["Build"]
        assert not any("secrets." in json.dumps(job.get("env", {})) for job in workflow["jobs"].values())

    def test_actions_are_commits_with_their_version_beside(self, workflow: dict[str, Any]) -> None:
        uses = [step["uses"] for step in steps(workflow) if "uses" in step]
        assert len(uses) == 3
        for action in uses:
            assert re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40}", action)
            assert re.search(rf"{action}  # v\d+\.\d+\.\d+\n", GITHUB.workflow)

    def test_a_release_uses_commits_too_and_writes_in_one_job_alone(self) -> None:
        text = (ROOT / ".github/workflows/release.yml").read_text()
        release = YAML(typ="safe").load(text)
        for action in (step["uses"] for step in steps(release) if "uses" in step):
            assert re.search(rf"{action}  # v\d+\.\d+\.\d+\n", text)
            assert re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40}", action)
        assert release["permissions"] == {"contents": "read"}
        assert [name for name, job in release["jobs"].items() if "permissions" in job] == ["publish"]
        assert not any(EXPRESSION.search(step.get("run", "")) for step in steps(release))

    def test_every_job_ends(self, workflow: dict[str, Any]) -> None:
        assert all("timeout-minutes" in job for job in workflow["jobs"].values())
        assert workflow["on"]["workflow_call"]["inputs"]["timeout_minutes"]["default"] == 720

    def test_one_build_of_a_recipe_at_a_time_and_none_is_cancelled(self, workflow: dict[str, Any]) -> None:
        assert workflow["jobs"]["build"]["concurrency"] == {
            "group": "engine-build-${{ matrix.name }}",
            "cancel-in-progress": False,
            "queue": "max",
        }

    def test_both_systems_run_the_same_lines(self, workflow: dict[str, Any]) -> None:
        child = GITLAB.jobs([CiJob("a", "a.yaml", "h200", 1, "1.2.1", "image")])
        (job,) = child.values()
        lines = [line for step in steps(workflow) for line in step.get("run", "").splitlines()]
        assert set(job["script"]) | set(job["after_script"]) <= set(lines)

    def test_shellcheck(self, workflow: dict[str, Any], tmp_path: Path) -> None:
        template = YAML(typ="safe").load(GITLAB.workflow)
        child = GITLAB.jobs([CiJob("a", "a.yaml", "h200", 1, "1.2.1", "image")])
        scripts = [step["run"] for step in steps(workflow) if "run" in step]
        for job in (template["engine-matrix"], *child.values()):
            scripts += ["\n".join(job["script"]), "\n".join(job.get("after_script", ()))]
        files = []
        for number, script in enumerate(scripts):
            files.append(tmp_path / f"{number}.sh")
            files[-1].write_text(f"#!/bin/bash\n{script}\n")
        # SC2086: recipes are file names with wildcards, unquoted on purpose.
        command: list[str | Path] = [BIN / "shellcheck", "--exclude", "SC2086", *files]
        result = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
        assert result.returncode == 0, result.stdout


class TestNotesOfARelease:
    @pytest.fixture
    def notes(self, tmp_path: Path) -> Any:
        (tmp_path / ".ci").mkdir()
        (tmp_path / ".ci/notes").write_text((ROOT / ".ci/notes").read_text())
        (tmp_path / "pyproject.toml").write_text('[project]\nversion = "0.2.0"\n')

        def run(version: str, changelog: str) -> tuple[int, str, str]:
            (tmp_path / "CHANGELOG.md").write_text(changelog)
            words = ["bash", str(tmp_path / ".ci/notes"), version]
            done = subprocess.run(words, capture_output=True, text=True, check=False)
            made = tmp_path / "dist/notes.md"
            return done.returncode, made.read_text() if done.returncode == 0 else "", done.stderr

        return run

    def test_are_those_of_the_version(self, notes: Any) -> None:
        text = "# Changelog\n\n## [Unreleased]\n- new\n\n## [0.2.0] - today\n- fixed\n\n## [0.1.0]\n- old\n"
        assert notes("0.2.0", text) == (0, "- fixed\n\n", "")

    @pytest.mark.parametrize(
        ("version", "said"),
        [("0.2.0", "CHANGELOG.md says nothing of 0.2.0\n"), ("0.3.0", "pyproject.toml has another version")],
    )
    def test_are_missing(self, notes: Any, version: str, said: str) -> None:
        status, _, error = notes(version, "# Changelog\n\n## [Unreleased]\n- new\n")
        assert (status, error.startswith(said)) == (1, True)
