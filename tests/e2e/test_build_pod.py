"""The pods of `trtspec build --on kubernetes`, as their Jobs say: from a recipe to a build in S3."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from tests.e2e.conftest import RECIPE, TINY
from tests.fakes.kubelet import Pod, needs_sandbox
from tests.support import s3
from trtspec.base.progress import no_progress
from trtspec.cli.app import app
from trtspec.cluster.kubernetes import jobs as scheduler
from trtspec.pipeline.store.store import Store
from trtspec.pipeline.store.upkeep import verify

pytestmark = pytest.mark.sweep

NODE = "/var/lib/builds"
SECTION = f"""
kubernetes:
  image: registry.example/trtspec:0.1.0-torch
  build: {{secret: writer, volume: {{kind: host_path, path: {NODE}}}}}
"""


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, dict[str, str]]]:
    """The URL of a store, and the content of the Secret that opens it."""
    with s3.serve() as server:
        secret = s3.credentials(server)
        for name, value in secret.items():
            monkeypatch.setenv(name, value)
        yield s3.new_bucket(server), secret


def test_its_pods_put_the_build_into_the_store(
    bucket: tuple[str, dict[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs_sandbox()
    url, secret = bucket
    node = tmp_path / "node"
    work = node / NODE.lstrip("/")
    for role in ("target", "draft"):
        shutil.copytree(TINY / role, work / role)
    # The models are at the same path here and in the pods.
    monkeypatch.setattr(scheduler, "WORK", str(work))
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(RECIPE.read_text().replace("./", f"{work}/") + SECTION)
    monkeypatch.chdir(tmp_path)

    def planned() -> list[dict[str, Any]]:
        args = ["build", str(recipe), "--on", "kubernetes", "--store", url, "--dry-run", "--json"]
        result = CliRunner().invoke(app, args)
        assert result.exit_code == 0, result.exception
        jobs: list[dict[str, Any]] = json.loads(result.stdout)["jobs"]
        return jobs

    jobs = planned()
    assert [job["title"] for job in jobs] == ["tiny target: build", "tiny draft: build", "tiny pair"]
    for number, job in enumerate(jobs, start=1):
        folder = tmp_path / f"pod-{number}"
        folder.mkdir()
        documents = list(yaml.safe_load_all(job["script"]))
        pod = Pod(documents, {"writer": secret}, node, "127.0.0.1", folder)
        try:
            status = pod.run_to_its_end(pod.server_spec)
            assert status == 0, (folder / "build.log").read_text()
        finally:
            pod.close()
    store = Store(url)
    assert {entry.role for entry in store.entries()} == {"target", "draft", "pair"}
    assert not verify(store, no_progress).findings
    assert store.files.find("building") == {}
    assert "pull target" in (tmp_path / "pod-3/build.log").read_text()
    assert planned() == []
