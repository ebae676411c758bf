"""The scripts of the workflows in a real shell, on a machine with NVIDIA's tools."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from ruamel.yaml import YAML

from tests.fakes.gpu_machine import H200, GpuMachine
from trtspec.cluster.commands.ci import GITHUB, GITLAB

ROOT = Path(__file__).parents[4]
TRTSPEC = Path(sys.executable).with_name("trtspec")
# As GitHub starts bash, and as GitLab's runner does where bash is there.
BASH = ("bash", "--noprofile", "--norc", "-eo", "pipefail", "-c")
EXPRESSION = re.compile(r"\$\{\{ (.*?) \}\}")


@pytest.fixture
def machine(tmp_path: Path) -> GpuMachine:
    """Its `python3` makes the environment that is asked for, with this trtspec in it."""
    machine = GpuMachine(tmp_path / "machine")
    machine.gpus(H200)
    machine.tensorrt_llm()
    machine.environment["PYTHONPATH"] += f":{ROOT}"
    calls = tmp_path / "python3.calls"
    venv = f"mkdir -p .venv/bin && ln -s {TRTSPEC} .venv/bin/trtspec"
    machine.command("python3", f'echo "$*" >> {calls}\n[ "$2" != venv ] || {{ {venv}; }}')
    return machine


@pytest.fixture
def no_gpu(pair_recipe: Path) -> None:
    """A recipe that needs no GPU, and whose name has a blank."""
    text = pair_recipe.read_text().replace("name: pair", "name: no-gpu")
    pair_recipe.with_name("no gpu.yaml").write_text(text)


@pytest.fixture
def checkout(no_gpu: None, h200_recipe: Path) -> Path:
    """A repository with a recipe for an H200 and the one that needs no GPU."""
    return h200_recipe.parent


class Steps:
    """Runs the steps of a job of the GitHub workflow, with the values of their expressions."""

    def __init__(self, folder: Path, machine: GpuMachine, values: Mapping[str, str]) -> None:
        self._folder, self._machine, self._values = folder, machine, values
        self._outputs = {name: folder / name.lower() for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}

    def run(self, job: Mapping[str, Any]) -> list[int]:
        """The exit status of each; as on GitHub, what is not `!cancelled()` ends with the first failure."""
        codes: list[int] = []
        for step in job["steps"]:
            if "run" not in step or (any(codes) and step.get("if") != "${{ !cancelled() }}"):
                continue
            given = {
                name: EXPRESSION.sub(lambda found: self._values[found[1]], value)
                for name, value in (job.get("env", {}) | step.get("env", {})).items()
            }
            codes.append(self._shell(step["run"], given))
        return codes

    def _shell(self, script: str, given: dict[str, str]) -> int:
        outputs = {name: str(path) for name, path in self._outputs.items()}
        environment = self._machine.environment | outputs | given
        command = [*BASH, script]
        return subprocess.run(command, cwd=self._folder, env=environment, timeout=240, check=False).returncode

    def output(self, name: str) -> str:
        return self._outputs[name].read_text()


@pytest.fixture
def jobs() -> dict[str, Any]:
    document: dict[str, Any] = YAML(typ="safe").load(GITHUB.workflow)["jobs"]
    return document


class TestGithub:
    def inputs(self, **values: str) -> dict[str, str]:
        return {"inputs.trtspec": ".", "inputs.recipes": "*.yaml", "inputs.store": "", **values}

    def test_the_matrix(self, checkout: Path, machine: GpuMachine, jobs: dict[str, Any]) -> None:
        steps = Steps(checkout, machine, self.inputs())
        assert steps.run(jobs["matrix"]) == [0, 0]
        name, _, value = steps.output("GITHUB_OUTPUT").partition("=")
        assert name == "matrix"
        assert [entry["recipe"] for entry in json.loads(value)["include"]] == ["pair.yaml"]
        assert (checkout / "python3.calls").read_text().splitlines() == [
            "-m venv --system-site-packages --without-pip .venv",
            "-m pip --python .venv/bin/python install --quiet .",
        ]

    @pytest.mark.parametrize(
        ("trtspec", "store", "matrix", "build"),
        [
            (".", "", ".", ".[fp8]"),
            ("wheels/t.whl", "s3://a", "wheels/t.whl[s3]", "wheels/t.whl[fp8,s3]"),
            (
                "git+https://h/t",
                "gs://a",
                "trtspec[gcs] @ git+https://h/t",
                "trtspec[fp8,gcs] @ git+https://h/t",
            ),
        ],
    )
    def test_trtspec_comes_from_where_the_input_says(
        self,
        checkout: Path,
        machine: GpuMachine,
        jobs: dict[str, Any],
        trtspec: str,
        store: str,
        matrix: str,
        build: str,
    ) -> None:
        steps = Steps(checkout, machine, self.inputs(**{"inputs.trtspec": trtspec, "inputs.store": store}))
        for name, wanted in (("matrix", matrix), ("build", build)):
            (install,) = (step for step in jobs[name]["steps"] if step.get("name") == "Install trtspec")
            assert steps.run({"steps": [install]}) == [0]
            call = (checkout / "python3.calls").read_text().splitlines()[-1]
            assert call == f"-m pip --python .venv/bin/python install --quiet {wanted}"
            if "://" in trtspec:
                assert Requirement(wanted).url == trtspec
            (checkout / ".venv/bin/trtspec").unlink()

    def test_a_matrix_that_cannot_be_made_fails_the_job(
        self, checkout: Path, machine: GpuMachine, jobs: dict[str, Any]
    ) -> None:
        (checkout / "wrong.yaml").write_text("name: wrong\n")
        assert Steps(checkout, machine, self.inputs()).run(jobs["matrix"]) == [0, 1]

    def test_workflow_inputs_are_never_run_as_shell_commands(
        self, checkout: Path, machine: GpuMachine, jobs: dict[str, Any]
    ) -> None:
        evil = "*.yaml; touch pwned $(touch pwned) `touch pwned` --system=gitlab"
        values = self.inputs(**{"inputs.recipes": evil, "inputs.trtspec": "$(touch pwned); touch pwned"})
        assert Steps(checkout, machine, values).run(jobs["matrix"]) == [0, 1]
        assert not (checkout / "pwned").exists()

    def build(self, checkout: Path, machine: GpuMachine, job: dict[str, Any], **more: str) -> Steps:
        # The folder of the runner is not mounted at /cache here.
        job["env"]["OUTPUT"] = re.sub("^/cache", str(checkout / "cache"), job["env"]["OUTPUT"])
        values = self.inputs(
            **{"matrix.recipe": "pair.yaml", "matrix.name": "pair", "secrets.HF_TOKEN": "", **more}
        )
        return Steps(checkout, machine, self.inputs(**values))

    def test_the_build(self, checkout: Path, machine: GpuMachine, jobs: dict[str, Any]) -> None:
        steps = self.build(checkout, machine, jobs["build"])
        assert steps.run(jobs["build"]) == [0, 0, 0]
        assert (checkout / "cache/build/pair/target/engine/rank0.engine").is_file()
        assert steps.output("GITHUB_STEP_SUMMARY").startswith("### pair: done in ")
        report = sorted(path.relative_to(checkout).as_posix() for path in (checkout / "report").iterdir())
        expected = ["build.json", "junit.xml", "logs", "manifest.json", "summary.md"]
        assert report == [f"report/{name}" for name in expected]
        assert (checkout / "report/logs/build-target.log").is_file()

    def test_a_second_runner_pulls_the_engines_from_the_store(
        self, checkout: Path, machine: GpuMachine, jobs: dict[str, Any]
    ) -> None:
        store = {"inputs.store": str(checkout / "the store")}
        assert self.build(checkout, machine, jobs["build"], **store).run(jobs["build"]) == [0, 0, 0]
        (checkout / "cache").rename(checkout / "cache of another")
        (checkout / ".venv/bin/trtspec").unlink()
        machine.environment["FAKE_FAILURE"] = "gpu memory"
        steps = self.build(checkout, machine, jobs["build"], **store)
        assert steps.run(jobs["build"]) == [0, 0, 0]
        assert "| pull target | run |" in steps.output("GITHUB_STEP_SUMMARY")
        assert (checkout / "cache/build/pair/target/engine/rank0.engine").is_file()

    def test_a_build_that_fails_is_reported(
        self, checkout: Path, machine: GpuMachine, jobs: dict[str, Any]
    ) -> None:
        machine.environment["FAKE_FAILURE"] = "gpu memory"
        steps = self.build(checkout, machine, jobs["build"])
        assert steps.run(jobs["build"]) == [0, 1, 0]
        assert steps.output("GITHUB_STEP_SUMMARY").startswith("### pair: failed in ")
        assert json.loads((checkout / "report/build.json").read_text())["failure"]["step"] == "build target"
        assert (checkout / "report/logs/build-target.log").is_file()


def test_the_scripts_of_gitlab_build_a_pair_and_report_on_it(checkout: Path, machine: GpuMachine) -> None:
    template = YAML(typ="safe").load(GITLAB.workflow)
    variables = template["variables"] | {"RECIPES": "*.yaml"}

    def shell(lines: list[str], **more: str) -> None:
        command, environment = [*BASH, "\n".join(lines)], machine.environment | variables | more
        subprocess.run(command, cwd=checkout, env=environment, timeout=240, check=True)

    shell(template["engine-matrix"]["script"])
    (artifact,) = template["engine-matrix"]["artifacts"]["paths"]
    ((name, job),) = json.loads((checkout / artifact).read_text()).items()
    assert name == "engine-build pair"
    trigger = template["engine-build"]["trigger"]
    assert trigger["include"] == [{"artifact": artifact, "job": "engine-matrix"}]
    # STORE of a schedule is for those that build, too: GitLab Docs, trigger:forward, which is off by default.
    assert trigger["forward"]["pipeline_variables"] is True
    output = job["variables"]["OUTPUT"].replace("/cache", str(checkout / "cache"))
    (checkout / ".venv/bin/trtspec").unlink()  # each job has a checkout of its own
    shell(job["script"] + job["after_script"], **job["variables"] | {"OUTPUT": output})
    assert (checkout / job["artifacts"]["reports"]["junit"]).is_file()
    assert (checkout / "report/manifest.json").is_file()
