"""`trtspec build --on kubernetes`: what is printed, what is refused, and what becomes of Ctrl-C."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from tests.fakes.kubernetes.emulator import Emulator
from tests.fakes.kubernetes.scripts import failing, finishing
from tests.support.policies import complaints
from tests.unit.cluster.kubernetes.jobs import scripted
from trtspec.base.errors import JobError, RecipeError
from trtspec.cli.app import app
from trtspec.cluster.kubernetes import jobs as scheduler
from trtspec.cluster.kubernetes.jobs import KubernetesJobs

IMAGE = "kubernetes:\n  image: registry.example.org/trtspec:0.1.0-torch\n"
MOUNTED = IMAGE + "  build: {volume: {kind: claim, name: work}}\n"


@pytest.fixture
def pair(pair_recipe: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A recipe whose models pods find on a claim, which is mounted here as well."""
    text = pair_recipe.read_text().replace("./", f"{pair_recipe.parent}/")
    pair_recipe.write_text(text + MOUNTED)
    monkeypatch.setattr(scheduler, "WORK", str(pair_recipe.parent))
    monkeypatch.chdir(pair_recipe.parent)
    return pair_recipe


def build(*words: object) -> Result:
    args = ["build", *words, "--on", "kubernetes", "--store", "memory://kubernetes"]
    return CliRunner().invoke(app, list(map(str, args)))


def test_the_dry_run_prints_objects_and_asks_nobody(pair: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", "/nowhere")
    result = build(pair, "--dry-run")
    assert result.exit_code == 0, result.exception
    objects = list(yaml.safe_load_all(result.stdout))
    jobs = [each for each in objects if each["kind"] == "Job"]
    assert [job["metadata"]["annotations"]["trtspec/title"] for job in jobs] == [
        "pair target: build",
        "pair draft: build",
        "pair pair",
    ]
    assert complaints(objects) == []
    printed = json.loads(build(pair, "--dry-run", "--json").stdout)
    assert [job["name"] for job in printed["jobs"]] == [job["metadata"]["name"] for job in jobs]


def test_paths_that_pods_cannot_see_are_refused_with_their_lines(pair_recipe: Path) -> None:
    pair_recipe.write_text(pair_recipe.read_text() + IMAGE)
    args = ["build", pair_recipe, "--on", "kubernetes", "--store", "store", "--dry-run"]
    error = CliRunner().invoke(app, list(map(str, args))).exception
    assert isinstance(error, RecipeError)
    assert {finding.subject for finding in error.findings} == {
        "target.model",
        "draft.model",
        "kubernetes.store",
    }
    assert all(finding.line and finding.repair for finding in error.findings)


def test_a_secret_in_the_recipes_store_is_for_no_job(pair: Path) -> None:
    pair.write_text(pair.read_text() + "  store: 'sftp://me:geheim@host/engines'\n")
    result = build(pair, "--dry-run")
    assert isinstance(result.exception, RecipeError)
    (finding,) = result.exception.findings
    assert finding.subject == "kubernetes.store"
    assert finding.line
    assert "sftp://me:***@host/engines contains a secret" in finding.problem
    assert "geheim" not in result.output


def test_options_that_do_not_go_together(pair: Path) -> None:
    assert build(pair, "--only", "target").exit_code == 2
    slurm = ["build", str(pair), "--on", "slurm", "--store", "s", "--namespace", "x"]
    assert CliRunner().invoke(app, slurm).exit_code == 2
    other = pair.with_name("other.yaml")
    other.write_text(pair.read_text().replace("name: pair", "name: other") + "  namespace: b\n")
    assert "several namespaces" in build(pair, other, "--dry-run").stderr


def test_a_job_that_fails_is_told_with_its_reason_and_its_log(
    pair: Path, emulator: Emulator, scheduler: KubernetesJobs, kubeconfig: Path
) -> None:
    scripted(emulator, failing(1, "error: no room on the device\n"))
    result = build(pair)
    assert isinstance(result.exception, JobError)
    assert "pair target: build: failed on gpu-1: ended with status 1" in result.stderr
    assert "  error: no room on the device" in result.stderr
    assert "the store lacks pair" in str(result.exception)


@pytest.mark.parametrize(("chosen", "left"), [("leave", 2), ("cancel", 0)])
def test_ctrl_c_leaves_the_jobs_or_cancels_them(
    pair: Path,
    emulator: Emulator,
    scheduler: KubernetesJobs,
    kubeconfig: Path,
    chosen: str,
    left: int,
) -> None:
    scripted(emulator, finishing(after=1000.0))

    def interrupt(now: float) -> None:
        if now > 20:
            raise KeyboardInterrupt

    emulator.at_time = interrupt
    result = build(pair, "--on-interrupt", chosen)
    assert result.exit_code == 130
    assert len(emulator.names("jobs")) == left
    if chosen == "leave":
        assert "kubectl --context lab --namespace serving delete job trtspec-build-" in result.stderr
        emulator.at_time = lambda now: None
        again = build(pair)
        assert again.stderr.count("which an earlier call has submitted") == 2
        assert len(emulator.controllers.pods) == 3
