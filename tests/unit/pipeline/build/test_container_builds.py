"""`trtspec build --container`, with a stand-in for docker on PATH that runs what it is told."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.fakes.docker_daemon import DockerDaemon
from tests.fakes.gpu_machine import H200, GpuMachine
from tests.support.command_line import trtspec
from tests.support.processes import naming
from trtspec.base.progress import no_progress
from trtspec.pipeline.containers.program import find_program
from trtspec.pipeline.containers.state import ensure_image
from trtspec.recipe.releases import release_of

TRTSPEC = Path(sys.executable).with_name("trtspec")
IMAGE = release_of("1.2.1").image


@pytest.fixture
def docker(machine: GpuMachine) -> DockerDaemon:
    return machine.containers(IMAGE)


class Builds:
    """Runs `trtspec build` of the recipe into `out`."""

    def __init__(self, recipe: Path, machine: GpuMachine) -> None:
        self._recipe, self._environment = recipe, machine.environment
        self.out = recipe.parent / "out"

    def start(self, *options: str) -> subprocess.Popen[str]:
        """A process, which can be interrupted."""
        command = [str(TRTSPEC), "build", self._recipe.name, "--output", "out", *options]
        return subprocess.Popen(
            command,
            cwd=self._recipe.parent,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __call__(self, *options: str) -> subprocess.CompletedProcess[str]:
        command = ("build", self._recipe.name, "--output", "out", *options)
        return trtspec(*command, folder=self._recipe.parent, environment=self._environment)

    def in_container(self, *options: str) -> str:
        """What one that succeeds says."""
        result = self("--container", *options)
        assert result.returncode == 0, result.stderr
        return result.stderr

    def engines(self) -> list[Path]:
        return list(self.out.glob("*/engine*"))


@pytest.fixture
def build(recipe: Path, machine: GpuMachine, docker: DockerDaemon) -> Builds:
    return Builds(recipe, machine)


def value(words: list[str], option: str) -> str:
    return words[words.index(option) + 1]


def test_both_engines_are_built_in_the_image_and_are_the_users(build: Builds, docker: DockerDaemon) -> None:
    build.in_container()
    assert json.loads((build.out / "target/engine/config.json").read_text())["version"] == "1.2.1"
    assert "Total time of building" in (build.out / ".trtspec/logs/build-draft.log").read_text()
    text = (build.out / "manifest.json").read_text()
    manifest = json.loads(text)
    command = manifest["commands"]["build target"]
    assert command[:3] == ["trtllm-build", "--checkpoint_dir", "target/checkpoint"]
    assert (manifest["tools"]["tensorrt_llm"], manifest["tools"]["tensorrt"]) == ("1.2.1", "10.14.1.48")
    assert manifest["image"] == f"{IMAGE.rpartition(':')[0]}@sha256:{'4567' * 16}"
    assert str(build.out) not in text
    words = docker.calls("run")[0]
    assert value(words, "--gpus") == "device=GPU-00"
    assert value(words, "--user") == f"{os.getuid()}:{os.getgid()}"
    assert "nothing to do" in build.in_container()
    assert docker.running() == []


def test_the_dry_run_prints_what_is_run(build: Builds, docker: DockerDaemon) -> None:
    steps = json.loads(build("--container", "--dry-run", "--json").stdout)["steps"]
    (shown,) = (step["command"] for step in steps if step["name"] == "build target")
    build.in_container()
    ran = ["docker", *docker.calls("run")[0]]
    # An engine is made beside its place, and the timing cache is an affair of each run.
    at = shown.index("--output_dir") + 1
    assert ran[:at] == shown[:at]
    assert ran[at + 1 : len(shown)] == shown[at + 1 :]
    assert [word for word in ran[len(shown) :] if word.startswith("-")] == ["--output_timing_cache"]


def test_the_dry_run_fetches_the_image_by_its_digest(build: Builds) -> None:
    shown, image = build("--container", "--dry-run").stdout, re.escape(IMAGE)
    assert len(re.findall(rf"\$ docker pull {image}(@sha256:\w+)?\n", shown)) == 2


def test_a_machine_without_gpu_or_daemon_prints_the_line_of_one_that_has_them(
    build: Builds, machine: GpuMachine
) -> None:
    machine.gpus()
    machine.environment["PATH"] = str(machine.folder / "bin")
    for name in ("docker", "nvidia-smi"):
        (machine.folder / "bin" / name).unlink()
        steps = json.loads(build("--container", "--dry-run", "--json").stdout)["steps"]
        (shown,) = (step["command"] for step in steps if step["name"] == "build target")
        assert shown[0] == "docker"
        assert value(shown, "--gpus") == "device=0"


def test_the_folder_of_an_adapter_is_mounted(build: Builds, docker: DockerDaemon, recipe: Path) -> None:
    adapter = recipe.with_name("adapter")
    adapter.mkdir()
    lora = "{model: ./target, build: {lora_plugin: auto, lora_dir: adapter}}"
    recipe.write_text(recipe.read_text().replace("{model: ./target}", lora))
    build.in_container()
    mounts = [[word for word in words if word.startswith("type=bind")] for words in docker.calls("run")]
    assert [str(adapter) in str(mount) for mount in mounts] == [True, False]


def test_a_build_outside_reuses_engines_that_were_built_in_the_image(
    build: Builds, machine: GpuMachine
) -> None:
    build.in_container()
    machine.tensorrt_llm()
    assert "nothing to do" in build().stderr


def test_the_timing_cache_is_the_users(build: Builds) -> None:
    build.in_container()
    (build.out / "target/engine/rank0.engine").unlink()
    build.in_container()
    log = (build.out / ".trtspec/logs/build-target.log").read_text()
    assert "Loaded 7 bytes of timing cache" in log


def test_an_image_that_is_not_here_is_pulled_before_anything_is_converted(
    build: Builds, docker: DockerDaemon
) -> None:
    docker.images()
    said = build.in_container()
    assert docker.calls("pull") == [["pull", f"{IMAGE}@{release_of('1.2.1').digest}"]]
    assert IMAGE in docker.calls("run")[0]
    assert said.index(f"pull {IMAGE}: done") < said.index("convert target")


def test_an_image_of_the_sites_own_under_the_tag_stays_as_it_is(build: Builds, docker: DockerDaemon) -> None:
    build.in_container()
    assert docker.calls("pull") == docker.calls("tag") == []


def test_an_image_without_a_known_digest_is_pulled_as_it_is_written(
    docker: DockerDaemon, machine: GpuMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_DOCKER", machine.environment["FAKE_DOCKER"])
    monkeypatch.setenv("PATH", machine.environment["PATH"])
    wanted = ("registry.example.org/own:1", release_of("1.1.0").image, f"{IMAGE}-own")
    for image in wanted:
        ensure_image(find_program(), image, no_progress)
    assert docker.calls("pull") == [["pull", image] for image in wanted]


@pytest.mark.parametrize("gpus", [1, 2])
def test_engines_side_by_side_have_gpus_of_their_own(
    build: Builds, docker: DockerDaemon, machine: GpuMachine, gpus: int
) -> None:
    machine.gpus(*[H200] * gpus)
    build.in_container()
    given = [value(words, "--gpus") for words in docker.calls("run")]
    assert sorted(given) == ["device=GPU-00", f"device=GPU-{gpus - 1}{gpus - 1}"]


class TestRefusedBeforeAnythingIsConverted:
    def refused(self, build: Builds) -> str:
        result = build("--container")
        assert result.returncode == 1
        assert not (build.out / "target").exists()
        return result.stderr

    def test_a_container_build_without_docker_is_refused(self, build: Builds, machine: GpuMachine) -> None:
        (machine.folder / "bin/docker").unlink()
        machine.environment["TRTSPEC_CONTAINERS"] = "docker"
        assert "error: docker: is not on PATH" in self.refused(build)

    @pytest.mark.parametrize(
        ("trouble", "problem", "repair"),
        [
            ("silent", "its daemon does not answer", "sudo systemctl start docker"),
            ("locked", "its daemon does not let this user in", "usermod -aG docker"),
        ],
    )
    def test_a_daemon_that_does_not_answer(
        self, build: Builds, docker: DockerDaemon, trouble: str, problem: str, repair: str
    ) -> None:
        docker.info('{"ServerVersion": ""}', trouble)
        said = self.refused(build)
        assert f"error: docker: {problem}" in said
        assert repair in said

    def test_no_gpus_for_containers(self, build: Builds, docker: DockerDaemon) -> None:
        docker.info('{"ServerVersion": "29.0.1", "Runtimes": {"runc": {}}}')
        said = self.refused(build)
        assert "error: docker: containers get no GPUs here" in said
        assert "nvidia-ctk runtime configure" in said

    def test_a_container_build_on_another_gpu_than_the_recipes_is_refused(
        self, build: Builds, machine: GpuMachine
    ) -> None:
        machine.gpus("NVIDIA L40S, 8.9, 590, Default, Disabled, 46068, 46000")
        assert "has SM 89, but the recipe's h200 has SM 90" in self.refused(build)

    def test_a_container_build_refuses_an_image_that_docker_cannot_pull(
        self, build: Builds, docker: DockerDaemon
    ) -> None:
        docker.images()
        (docker.folder / "unknown_image").touch()
        said = self.refused(build)
        assert f"error: {IMAGE}: cannot be pulled: Error response from daemon: manifest" in said

    def test_the_torch_backend_has_none(self, build: Builds) -> None:
        result = build("--container", "--backend", "torch")
        assert result.returncode == 2
        assert "the torch backend builds without a container" in result.stderr


class TestFailures:
    def failed(self, build: Builds, docker: DockerDaemon, **variables: str) -> str:
        docker.in_image(**variables)
        result = build("--container")
        assert result.returncode == 1
        assert build.engines() == []
        assert docker.running() == []
        return result.stderr

    def test_a_container_build_reports_a_gpu_without_free_memory(
        self, build: Builds, docker: DockerDaemon
    ) -> None:
        said = self.failed(build, docker, FAKE_FAILURE="gpu memory")
        assert "failed with status 1: the GPU has too little free memory" in said
        assert "out/.trtspec/logs/build-target.log" in said

    def test_a_container_build_reports_a_machine_without_free_memory(
        self, build: Builds, docker: DockerDaemon
    ) -> None:
        said = self.failed(build, docker, FAKE_FAILURE="host memory")
        assert "was killed by SIGKILL: the system kills processes when its memory is full" in said

    def test_an_image_with_another_release(self, build: Builds, docker: DockerDaemon) -> None:
        said = self.failed(build, docker, FAKE_RELEASE="1.1.0")
        assert "was built by TensorRT-LLM 1.1.0, but the recipe's release is 1.2.1" in said

    def test_an_image_without_trtllm_build(self, build: Builds, docker: DockerDaemon) -> None:
        (docker.folder / "image_bin/trtllm-build").unlink()
        assert "failed with status 127: it is not in this image" in self.failed(build, docker)

    def test_gpus_that_the_toolkit_does_not_find(self, build: Builds, docker: DockerDaemon) -> None:
        (docker.folder / "gpus.csv").unlink()
        (docker.folder / "gpus.csv").touch()
        said = self.failed(build, docker)
        assert "failed with status 125: the container cannot have its GPUs: device error: GPU-00" in said

    def test_in_the_middle(self, build: Builds, docker: DockerDaemon) -> None:
        said = self.failed(build, docker, FAKE_FAILURE="middle")
        assert "error: trtllm-build: failed with status 1: RuntimeError: Failed to set weight" in said
        assert (
            "RuntimeError: Failed to set weight" in (build.out / ".trtspec/logs/build-target.log").read_text()
        )


class TestWithPodman:
    """Of a user, where docker is not."""

    @pytest.fixture
    def docker(self, machine: GpuMachine, monkeypatch: pytest.MonkeyPatch) -> DockerDaemon:
        podman = machine.podman(IMAGE)
        self.knows(podman, monkeypatch, "0", "GPU-00", "all")
        return podman

    def knows(self, podman: DockerDaemon, monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
        """The devices of the machine's CDI specification."""
        (podman.folder / "cdi").write_text("".join(f"{name}\n" for name in names))
        monkeypatch.setattr("trtspec.pipeline.containers.engine.find_devices", lambda: frozenset(names))

    def test_both_engines_are_built(self, build: Builds, docker: DockerDaemon) -> None:
        docker.images()
        said = build.in_container()
        assert f"pull {IMAGE}: done" in said
        manifest = json.loads((build.out / "manifest.json").read_text())
        assert manifest["image"] == f"{IMAGE.rpartition(':')[0]}@sha256:{'4567' * 16}"
        words = docker.calls("run")[0]
        assert value(words, "--device") == "nvidia.com/gpu=GPU-00"
        assert (value(words, "--user"), value(words, "--userns")) == ("0:0", "host")
        assert "nothing to do" in build.in_container()
        assert docker.running() == []

    def test_a_specification_that_has_no_uuids(
        self, build: Builds, docker: DockerDaemon, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.knows(docker, monkeypatch, "gpu0", "all")
        build.in_container()
        assert value(docker.calls("run")[0], "--device") == "nvidia.com/gpu=gpu0"

    def test_one_that_lacks_the_gpu(
        self, build: Builds, docker: DockerDaemon, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.knows(docker, monkeypatch, "GPU-99")
        result = build("--container")
        assert result.returncode == 1
        assert "containers get no GPUs here" in result.stderr
        assert "nvidia-ctk cdi generate" in result.stderr

    def test_none(self, build: Builds, docker: DockerDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
        self.knows(docker, monkeypatch)
        result = build("--container")
        assert result.returncode == 1
        assert "error: podman: containers get no GPUs here" in result.stderr
        assert not (build.out / "target").exists()

    def test_one_that_fails_is_removed_at_once(self, build: Builds, docker: DockerDaemon) -> None:
        docker.in_image(FAKE_FAILURE="gpu memory")
        result = build("--container")
        assert "failed with status 1: the GPU has too little free memory" in result.stderr
        # Otherwise podman gives it ten seconds.
        assert ["rm", "--force", "--time", "0"] in [words[:4] for words in docker.calls("rm")]


def hanging(build: Builds, docker: DockerDaemon) -> subprocess.Popen[str]:
    """A build whose container does nothing more."""
    mark = build.out / "hanging"
    docker.in_image(FAKE_FAILURE="hang", FAKE_HANGING=str(mark))
    process = build.start("--container")
    deadline = time.monotonic() + 240
    while not mark.exists():
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.02)
    assert naming(build.out) != []
    return process


def test_ctrl_c_ends_the_container_too(build: Builds, docker: DockerDaemon) -> None:
    process = hanging(build, docker)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=600)
    assert process.returncode == 130
    assert [path.name for path in (build.out / "target").iterdir()] == ["checkpoint"]
    assert naming(build.out) == []
    assert docker.running() == []


def test_a_container_that_was_left_behind_is_ended_by_the_next_build(
    build: Builds, docker: DockerDaemon
) -> None:
    process = hanging(build, docker)
    process.kill()
    process.communicate(timeout=600)
    assert len(docker.running()) == 1
    docker.in_image(FAKE_FAILURE="")
    build.in_container()
    assert docker.running() == []
    assert naming(build.out) == []
