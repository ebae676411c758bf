"""Builds in the jobs of a real Slurm: `make test-slurm`.

Jobs are held where a test wants them by the lease of an engine: who builds waits for it.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from tests.fakes.gpu_machine import H200, GpuMachine
from tests.slurm.calls import ROOT, Call
from tests.slurm.cluster import RealSlurm, running, wait_for
from tests.support.command_line import trtspec
from tests.unit.cluster.kubernetes.jobs import job_of
from trtspec.base.progress import no_progress
from trtspec.base.roles import Role
from trtspec.cluster.jobs import look
from trtspec.cluster.slurm import sbatch_script
from trtspec.pipeline.build.plan import make_plan
from trtspec.pipeline.store.lease import leased
from trtspec.pipeline.store.store import Store

pytestmark = pytest.mark.slurm

TEXT = """
name: {name}
target: {{model: ./target, dtype: {target}}}
draft: {{model: ./draft, dtype: {draft}}}
engine: {{max_batch_size: 4, max_seq_len: 256}}
hardware: {{gpu: none}}
"""


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealSlurm]:
    with running(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three recipes of the tiny pair; the second and the third have the same target."""
    for name in ("target", "draft"):
        shutil.copytree(ROOT / "recipes/tiny" / name, tmp_path / name)
    for name, target, draft in (
        ("stored", "float32", "float32"),
        ("one", "bfloat16", "float32"),
        ("two", "bfloat16", "float16"),
    ):
        (tmp_path / f"{name}.yaml").write_text(TEXT.format(name=name, target=target, draft=draft))
    return tmp_path


@pytest.fixture
def call(slurm: RealSlurm, folder: Path) -> Iterator[Callable[..., Call]]:
    """Begins a build on the cluster, into `store`."""
    begun: list[Call] = []

    def begin(*words: str) -> Call:
        environment = {**slurm.environment, "OMP_NUM_THREADS": "1"}
        begun.append(Call(folder, environment, *words, "--on", "slurm", "--store", "store"))
        return begun[-1]

    yield begin
    for each in begun:
        each.process.kill()
        each.process.wait()
    slurm("scancel", "--user", os.environ.get("USER", "root"))
    wait_for(lambda: not slurm.queue())


@pytest.fixture
def held(folder: Path) -> Callable[[str, Role], AbstractContextManager[None]]:
    """Keeps jobs from building an engine of a recipe: they run, and wait for it."""

    @contextmanager
    def hold(name: str, role: Role) -> Iterator[None]:
        store = Store(str(folder / "store"))
        made = make_plan(folder / f"{name}.yaml", output=folder / "nowhere", store=store)
        product = look(store, made).engines[role]
        with leased(store, product.platform, product.key, "it", no_progress):
            yield

    return hold


def keys(store: Path) -> dict[tuple[str, str], list[dict[str, str]]]:
    """The digests of the files of each entry, by its role and key; the manifest says who made them."""
    found: dict[tuple[str, str], list[dict[str, str]]] = {}
    for entry in Store(str(store)).entries():
        files = {name: file.sha256 for name, file in entry.files.items() if name != "manifest.json"}
        found.setdefault((entry.role, entry.key), []).append(files)
    return found


def test_three_recipes_a_drained_node_a_killed_job_and_ctrl_c(
    slurm: RealSlurm,
    folder: Path,
    call: Callable[..., Call],
    held: Callable[[str, Role], AbstractContextManager[None]],
) -> None:
    recipes = ("stored.yaml", "one.yaml", "two.yaml")
    built = trtspec("build", "stored.yaml", "--store", "store", folder=folder)
    assert built.returncode == 0, built.stderr
    (before,) = (entry.digest for entry in Store(str(folder / "store")).entries() if entry.role == "pair")

    with held("one", Role.TARGET):
        # Nobody can run: that is told, and what the store has gets no job.
        slurm.drain("n1", "n2")
        first = call(*recipes)
        first.hears("one target: build: waits: its nodes are drained, down or reserved (n[1-2])")
        assert set(slurm.queue()) == {"one target: build", "one pair", "two draft: build", "two pair"}
        assert f"stored: the store has it, {before[:12]}" in first.said

        # A node is back, and is drained again while a job runs on it, which goes on.
        slurm.resume("n1")
        first.hears("one target: build: runs on n1")
        first.hears("two draft: build: done on n1")
        slurm.drain("n1")
        slurm.resume("n2")
        job = first.id_of("one target: build")
        log = folder / "build/one/.trtspec/logs/job-target-build.log"
        wait_for(lambda: "wait for target of one" in log.read_text())
        assert slurm.queue()["one target: build"] == "RUNNING"

        # It is killed: the call says so and ends, and what needs it does not run.
        (process,) = slurm.processes(job)
        os.kill(process, signal.SIGKILL)
        assert first.ends(1) == f"stored  {before}\n"
        for line in (
            "one target: build: failed on n1: was killed by SIGKILL",
            "one pair: cancelled: needs one target: build, which has failed",
            "two pair: cancelled: needs one target: build, which has failed",
            "error: Slurm: the store lacks one, two",
        ):
            assert line in first.said
        wait_for(lambda: not slurm.queue())

        # The same command goes on, on the other node; Ctrl-C leaves the jobs.
        second = call(*recipes)
        second.hears("one target: build: runs on n2")
        assert "two draft" not in second.said
        second.press_ctrl_c()
        second.ends(130)
        assert "the jobs go on; the same command shows them again" in second.said
        assert set(slurm.queue()) == {"one target: build", "one pair", "two pair"}

        # A third call finds them.
        third = call(*recipes, "--json")
        third.hears(f"job {second.id_of('one target: build')}, which an earlier call has submitted")
        third.hears(f"job {second.id_of('two pair')}, which an earlier call has submitted")
        slurm.resume("n1")
    result = json.loads(third.ends(0))

    entries = Store(str(folder / "store")).entries()
    pairs = {entry.name: entry.digest for entry in entries if entry.role == "pair"}
    assert result["pairs"] == pairs
    assert pairs["stored"] == before
    assert {job["state"] for job in result["jobs"]} == {"done"}

    # The store has just what builds on this machine make, and each engine was built once.
    for name in recipes:
        alone = trtspec("build", name, "--output", f"alone/{name}", "--store", "alone-store", folder=folder)
        assert alone.returncode == 0, alone.stderr
    found = keys(folder / "store")
    assert found == keys(folder / "alone-store")
    assert {role: len([1 for key in found if key[0] == role]) for role in ("target", "draft", "pair")} == {
        "target": 2,
        "draft": 2,
        "pair": 3,
    }
    assert all(len(made) == 1 for made in found.values())
    logs = "".join(log.read_text() for log in folder.glob("build/*/.trtspec/logs/job-*.log"))
    assert logs.count("build target: done in ") == logs.count("build draft: done in ") == 1
    assert len(re.findall(r"^pushed (\w+)", logs, re.MULTILINE)) == 4

    order = ("stored", "one", "two")
    assert call(*recipes).ends(0).splitlines() == [f"{name}  {pairs[name]}" for name in order]


def test_ctrl_c_cancels_where_it_is_asked_to(
    slurm: RealSlurm,
    folder: Path,
    call: Callable[..., Call],
    held: Callable[[str, Role], AbstractContextManager[None]],
) -> None:
    with held("stored", Role.TARGET), held("stored", Role.DRAFT):
        build = call("stored.yaml", "--on-interrupt", "cancel")
        build.hears("stored target: build: runs on ")
        build.press_ctrl_c()
        build.ends(130)
        ids = ", ".join(build.id_of(f"stored {what}") for what in ("target: build", "draft: build", "pair"))
        assert f"cancelled: {ids}" in build.said
        wait_for(lambda: not slurm.queue())
    assert not (folder / "store/entries").exists()


def test_a_job_that_is_cancelled_or_requeued_by_others(
    slurm: RealSlurm,
    call: Callable[..., Call],
    held: Callable[[str, Role], AbstractContextManager[None]],
) -> None:
    with held("stored", Role.TARGET), held("stored", Role.DRAFT):
        build = call("stored.yaml")
        build.hears("stored target: build: runs on ")
        build.hears("stored draft: build: runs on ")
        slurm("scontrol", "requeue", build.id_of("stored target: build"))
        build.hears("stored target: build: waits: is requeued, and starts soon")
        slurm("scancel", build.id_of("stored draft: build"))
        build.hears("stored draft: build: cancelled")
        build.hears("stored pair: cancelled: needs stored draft: build, which was cancelled")
        slurm("scancel", build.id_of("stored target: build"))
        build.ends(1)


def test_a_gpu_is_held_by_what_needs_one(slurm: RealSlurm, h200_recipe: Path, tmp_path: Path) -> None:
    """NVIDIA's tools are stand-ins, and find what Slurm has given them: a node is chosen by its GPU."""
    machine = GpuMachine(tmp_path / "machine")
    machine.gpus(H200, H200)
    machine.tensorrt_llm()
    environment = {**slurm.environment, **machine.environment, "SLURM_CONF": slurm.environment["SLURM_CONF"]}
    words = (h200_recipe.name, "--on", "slurm", "--store", "gpu-store")
    build = Call(h200_recipe.parent, environment, *words)
    assert build.ends(0).startswith("pair  ")
    for role in Role:
        converted, built = (slurm.job(build.id_of(f"pair {role}: {stage}")) for stage in ("convert", "build"))
        assert "gres:gpu" not in converted
        assert "TresPerNode=gres:gpu:h200:1 " in built
        assert " NodeList=n2 " in built

    h200_recipe.write_text(h200_recipe.read_text().replace("gpu: h200", "gpu: l40s").replace("pair", "other"))
    refused = Call(h200_recipe.parent, environment, *words)
    refused.ends(1)
    assert "error: sbatch: no node of the partition has what the job requests" in refused.said
    slurm("scancel", "--user", os.environ.get("USER", "root"))


def test_a_controller_that_is_not_there(slurm: RealSlurm, folder: Path) -> None:
    conf = Path(slurm.environment["SLURM_CONF"]).read_text()
    for line in conf.splitlines():
        if line.startswith("SlurmctldPort="):
            conf = conf.replace(line, "SlurmctldPort=1")
    (folder / "slurm.conf").write_text(f"{conf}\nMessageTimeout=2\n")
    environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
    build = Call(folder, environment, "stored.yaml", "--on", "slurm", "--store", "store")
    build.ends(1)
    assert "error: Slurm: its controller does not answer" in build.said


def test_mpi_begins_in_a_step_of_one_rank(slurm: RealSlurm, h200_recipe: Path) -> None:
    """Open MPI ends a step of srun's that has no PMI server, unless the step is no rank of MPI's."""
    with h200_recipe.open("a") as recipe:
        recipe.write("slurm: {container_image: registry#image, options: {mem: 1G, cpus-per-task: 2}}\n")
    job = job_of(h200_recipe)
    line = shlex.split(sbatch_script(job, "python", {}).splitlines()[-1].removeprefix("exec "))
    begin = "import ctypes; ctypes.CDLL('libmpi.so.40', ctypes.RTLD_GLOBAL).MPI_Init(None, None)"
    # No pyxis is here, which has the options of containers.
    step = [word for word in line[: line.index("trtspec")] if not word.startswith("--container-")]
    usual = [word for word in step if not word.startswith(("--mpi=", "--unset="))]
    for words, status in ((step, 0), (usual, 1)):
        said = subprocess.run(
            [*words, sys.executable, "-c", begin], env=slurm.environment, capture_output=True, text=True
        )
        assert said.returncode == status, said.stderr
    assert 'direct launched using "srun"' in said.stderr
