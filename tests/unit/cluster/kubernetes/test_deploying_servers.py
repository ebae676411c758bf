"""Servers of others on a cluster, from the build to the end of the deployment, against an API server."""

from __future__ import annotations

import json
import re
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from tests.fakes.kubernetes import scripts
from tests.fakes.kubernetes.emulator import NAMESPACE, Emulator
from tests.support.command_line import trtspec

SECTION = "kubernetes:\n  name: code\n  replicas: 2\n  cache: {{kind: host_path, path: {folder}}}\n"


class Cli:
    """Calls `trtspec` in the folder of a recipe for vLLM, whose models are on the nodes too."""

    def __init__(self, recipe: Path) -> None:
        self._recipe = recipe
        text = recipe.read_text().replace("backend: torch", "backend: vllm").replace("gpu: none", "gpu: h100")
        self._text = text.replace(", dtype: float32", "")
        self.write()

    def write(self, more: str = "", plan: str = "") -> None:
        self._recipe.write_text(self._text + plan + SECTION.format(folder=self._recipe.parent) + more)

    def __call__(self, *words: str, status: int = 0) -> CompletedProcess[str]:
        done = trtspec(*words, folder=self._recipe.parent)
        assert done.returncode == status, done.stdout + done.stderr
        return done

    def deploy(self, *options: str, status: int = 0) -> CompletedProcess[str]:
        return self("kubernetes", "deploy", self._recipe.name, *options, status=status)


@pytest.fixture
def cli(kubeconfig: Path, pair_recipe: Path) -> Cli:
    return Cli(pair_recipe)


@pytest.fixture
def built(cli: Cli) -> Cli:
    cli("build", "pair.yaml")
    return cli


def test_a_vllm_deployment_becomes_ready_and_stop_removes_all_its_objects(
    built: Cli, emulator: Emulator
) -> None:
    done = built.deploy()
    assert "0 of 2 ready (2 loading)" in done.stderr
    assert "./target is ready; trtspec kubernetes stop code" in done.stderr
    assert done.stdout.splitlines() == [
        f"OpenAI   http://code.{NAMESPACE}.svc:9000/v1",
        f"kubectl port-forward -n {NAMESPACE} service/code 9000:9000",
    ]
    (container,) = emulator.pods()[0].spec["containers"]
    (row,) = json.loads(built("kubernetes", "status", "--json").stdout)
    assert (row["state"], row["ready"]) == ("ready", "2 of 2")
    assert row["image"] == container["image"] == "vllm/vllm-openai:v0.33.0"
    template = emulator.manifest("deployments", "code")["spec"]["template"]
    assert template["metadata"]["annotations"]["trtspec/digest"].startswith(row["build"])
    assert "code: stopped" in built("kubernetes", "stop", "--namespace", NAMESPACE).stderr
    assert emulator.stored == {}


def test_deploy_refuses_a_build_made_before_the_recipe_changed_its_options(built: Cli) -> None:
    """A recipe that was changed is built first, which takes a second; of other replicas nothing is built."""
    built.write("  grace_seconds: 5\n")
    assert "--shutdown-timeout" in built.deploy("--dry-run").stdout
    built.write(plan="speculation: {num_draft_tokens: 2}\n")
    said = built.deploy("--dry-run", status=1).stderr
    assert "was built before pair.yaml changed\nhint: trtspec build pair.yaml" in said
    built("build", "pair.yaml", "--output", "other")
    assert '"num_speculative_tokens": 2' in built.deploy("--dry-run", "--output", "other").stdout


def test_no_build_is_named_with_what_makes_it(cli: Cli) -> None:
    said = cli.deploy(status=1).stderr
    assert re.search("there is no build here, in /.*\nhint: trtspec build pair.yaml", said)


def test_a_store_is_refused_for_a_server_that_has_no_engine_in_one(built: Cli) -> None:
    assert "no engine is in a store" in built.deploy("--store", "s3://engines", status=1).stderr


def test_the_same_server_without_drafts_beside_it(built: Cli, emulator: Emulator) -> None:
    built.deploy()
    assert f"http://code-plain.{NAMESPACE}.svc:9000/v1" in built.deploy("--plain").stdout
    assert emulator.names("deployments") == ["code", "code-plain"]
    lines = [pod.spec["containers"][0]["args"] for pod in emulator.pods()]
    assert sum("--speculative-config" in line for line in lines) == 2
    assert "code-plain: stopped" in built("kubernetes", "stop", "code-plain").stderr
    assert emulator.names("deployments") == ["code"]


def test_why_a_server_ends_is_found_in_its_log(built: Cli, emulator: Emulator) -> None:
    """vLLM's engine says it, and then its API says that the engine has ended."""
    lines = ["torch.OutOfMemoryError: CUDA out of memory.", *["  File api_server.py"] * 30]
    emulator.script = lambda template: scripts.crashing("\n".join(lines))
    said = built.deploy(status=1).stderr
    assert "container server ended with 1, 3 times so far: the GPU has too little free memory" in said
    assert "lower engine.max_batch_size or engine.max_seq_len" in said
