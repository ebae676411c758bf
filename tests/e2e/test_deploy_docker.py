"""`trtspec deploy --container`, with a stand-in for docker that runs a real Triton."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
from pathlib import Path

import openai
import pytest

from tests.e2e.conftest import BLS, IN_PROCESS, TRTSPEC, Deploy, Deployer, Until, refused
from tests.e2e.in_docker import IMAGE, Deploying, Docker
from tests.e2e.openai_requests import complete
from tests.e2e.test_deploy_death import target_process
from tests.e2e.test_tensorrt_llm import write_recipe
from tests.fakes.bindings import BINDINGS
from tests.fakes.docker_daemon import INFO
from tests.fakes.gpu_machine import H200
from tests.support.processes import command_lines
from trtspec.pipeline.containers.container import name_for


@pytest.mark.sweep
@BLS
def test_real_tokens_from_a_container_and_nothing_left_of_it(
    docker: Docker, deploy: Deploying, server: Deploy, build_copy: Path, tiny_build: Path, until: Until
) -> None:
    deployed = deploy()
    until(lambda: deployed.is_ready, "the server ready")
    (name,) = docker.names()
    assert deployed.generate("import ", max_tokens=8) == server.generate("import ", max_tokens=8)
    (words,) = docker.daemon.calls("run")
    assert not any("hf_secret" in word for word in words)

    assert deployed.stop(signal.SIGINT) == 0
    assert deployed.said.read_text().splitlines()[-1] == "stopped"
    assert docker.names() == []
    assert not deployed.server_pids()
    assert "Started HTTPService" in (build_copy / "tritonserver.log").read_text()
    # The build was mounted read-only, and would have served so.
    command: list[str | Path] = ["diff", "-rq", "--exclude=*.log", tiny_build, build_copy]
    assert subprocess.run(command, capture_output=True, text=True).stdout == ""
    assert f"src={build_copy},dst={build_copy},readonly" in words[words.index("--mount") + 1]
    assert name.startswith("trtspec-tiny-")


@pytest.mark.sweep
@IN_PROCESS
def test_one_that_is_left_running_is_seen_and_stopped(
    docker: Docker, deploy: Deploying, until: Until
) -> None:
    deployed = deploy("--detach", with_api=True)
    assert deployed.ended() == 0
    (name,) = docker.names()
    assert f"trtspec deploy stop {name} stops it" in deployed.said.read_text()
    assert complete(deployed.api, "import ") == deployed.generate("import ", max_tokens=2)

    (found,) = json.loads(docker.trtspec("deploy", "status", "--json").stdout)
    assert (found["name"], found["state"], found["image"]) == (name, "ready", IMAGE)
    assert found["url"] == f"http://127.0.0.1:{deployed.ports[0]}/v2/models/speculative_llm"
    assert (found["openai"], found["openai_state"]) == (deployed.api, "")
    assert name in docker.trtspec("deploy", "status").stdout

    again = deploy()
    assert again.ended() == 1
    assert f"error: {name}: is running already" in again.said.read_text()

    other = docker.trtspec("deploy", "stop", "another")
    assert other.returncode == 1
    assert f"another: is not deployed here\nhint: deployed are {name}" in other.stderr

    assert docker.trtspec("deploy", "stop").returncode == 0
    assert docker.names() == []
    until(lambda: not deployed.server_pids(), "the end of the server")
    with pytest.raises(openai.APIConnectionError):
        complete(deployed.api, "import ")
    assert json.loads(docker.trtspec("deploy", "status", "--json").stdout) == []
    assert docker.trtspec("deploy", "stop").returncode == 1


@IN_PROCESS
@pytest.mark.sweep
def test_requests_in_flight_end_before_the_container_does(
    docker: Docker, deploy: Deploying, until: Until
) -> None:
    deployed = deploy()
    until(lambda: deployed.is_ready, "the server ready")
    client = deployed.client()
    responses = client.generate({"text_input": "class A:\n", "max_tokens": 200, "end_id": -1, "stream": True})
    texts = [next(responses)["text_output"]]

    deployed.process.send_signal(signal.SIGTERM)
    texts += [response["text_output"] for response in responses]
    client.close()

    assert len("".join(texts)) > 200
    assert deployed.ended() == 0
    assert docker.names() == []


@pytest.mark.sweep
@IN_PROCESS
def test_one_that_dies_while_it_starts_is_an_error_with_its_last_lines(
    docker: Docker, deploy: Deploying, build_copy: Path
) -> None:
    (build_copy / "target" / "engine" / "rank0.safetensors").write_bytes(b"broken")
    deployed = deploy("--detach")

    assert deployed.ended() == 1
    said = deployed.said.read_text()
    assert "did not load: " in said
    assert f"{build_copy}/target/engine/rank0.safetensors: " in said
    assert docker.names() == []


@BLS
@pytest.mark.sweep
def test_one_that_is_left_running_is_started_again_when_its_engines_die(
    docker: Docker, deploy: Deploying, until: Until
) -> None:
    deployed = deploy("--detach")
    assert deployed.ended() == 0
    (found,) = json.loads(docker.trtspec("deploy", "status", "--json").stdout)
    assert (found["state"], found["restarts"]) == ("ready", "0")
    first = deployed.server_pids()

    os.kill(target_process(deployed), signal.SIGKILL)

    until(lambda: not first & deployed.server_pids(), "the end of the first server")
    until(
        lambda: json.loads(docker.trtspec("deploy", "status", "--json").stdout)[0]["state"] == "ready",
        "ready",
    )
    (found,) = json.loads(docker.trtspec("deploy", "status", "--json").stdout)
    assert found["restarts"] == "1"
    assert deployed.generate("import ", max_tokens=2)
    assert docker.trtspec("deploy", "stop").returncode == 0
    assert docker.names() == []


@pytest.mark.sweep
@IN_PROCESS
def test_one_whose_engines_die_says_so_and_is_started_again_if_asked(
    docker: Docker, deploy: Deploying, until: Until
) -> None:
    deployed = deploy("--restart")
    until(lambda: deployed.is_ready, "the server ready")

    os.kill(target_process(deployed), signal.SIGKILL)

    until(lambda: "starting again in 1 s" in deployed.said.read_text(), "the restart")
    assert "was killed by SIGKILL" in deployed.said.read_text()
    until(lambda: deployed.said.read_text().count("is ready") == 2, "the server ready again")
    assert deployed.generate("import ", max_tokens=2)
    assert deployed.stop() == 0
    assert docker.names() == []


@IN_PROCESS
@pytest.mark.sweep
def test_an_inspect_that_fails_is_no_death(docker: Docker, deploy: Deploying, until: Until) -> None:
    deployed = deploy("--detach")
    assert deployed.ended() == 0
    (name,) = docker.names()
    docker.daemon.info('{"ServerVersion": "29.0.1"}', "silent")

    stopped = docker.trtspec("deploy", "stop", name)

    assert stopped.returncode == 1
    assert "its daemon does not answer" in stopped.stderr
    docker.daemon.info(INFO)
    assert docker.names() == [name]
    assert deployed.generate("import ", max_tokens=2)
    assert docker.trtspec("deploy", "stop", name).returncode == 0


@IN_PROCESS
def test_a_container_of_the_same_name_that_is_not_ours_is_left_alone(
    docker: Docker, deploy: Deploying, build_copy: Path
) -> None:
    name = name_for("tiny", build_copy)
    theirs = docker.daemon.folder / "containers" / name
    theirs.mkdir()
    state = {
        "Id": name.encode().hex(),
        "Name": f"/{name}",
        "Created": "",
        "AutoRemove": False,
        "Health": None,
    }
    config = {"Image": "theirs", "Labels": {}, "Cmd": [], "User": ""}
    (theirs / "state.json").write_text(json.dumps({**state, "Config": config}))
    for file in ("status", "restarts", "log"):
        (theirs / file).write_text("0")

    deployed = deploy()

    assert deployed.ended() == 1
    assert f"error: {name}: a container of this name was not started by trtspec" in deployed.said.read_text()
    assert docker.names() == [name]


@IN_PROCESS
@pytest.mark.sweep
def test_one_that_is_killed_says_so(docker: Docker, deploy: Deploying, until: Until) -> None:
    deployed = deploy()
    until(lambda: deployed.is_ready, "the server ready")
    (name,) = docker.names()
    pid = int((docker.daemon.folder / "containers" / name / "pid").read_text())
    memory = f"trtspec_container_{pid}_*"
    assert list(Path("/dev/shm").glob(memory))

    os.kill(pid, signal.SIGKILL)

    assert deployed.ended() == 1
    assert "error: tritonserver: was killed by SIGKILL" in deployed.said.read_text()
    assert docker.names() == []
    assert not list(Path("/dev/shm").glob(memory))


@IN_PROCESS
@pytest.mark.sweep
def test_its_log_goes_on_after_the_daemon_began_anew(
    docker: Docker, deploy: Deploying, build_copy: Path, until: Until
) -> None:
    """With docker's live-restore containers go on, while the commands that follow them end."""
    deployed = deploy()
    until(lambda: deployed.is_ready, "the server ready")
    (name,) = docker.names()
    (copying,) = [pid for pid, line in command_lines() if "--follow" in line and name.encode().hex() in line]

    os.kill(copying, signal.SIGTERM)

    until(lambda: len(docker.daemon.calls("logs")) == 2, "another")
    with (docker.daemon.folder / "containers" / name / "log").open("a") as log:
        log.write("said later\n")
    until(lambda: "said later\n" in (build_copy / "tritonserver.log").read_text(), "the line in the log")
    assert deployed.stop() == 0


@IN_PROCESS
@pytest.mark.sweep
def test_ctrl_c_during_loading_stops_the_container_with_status_130(
    docker: Docker, deploy: Deploying, until: Until
) -> None:
    deployed = deploy()
    until(lambda: deployed.is_ready or deployed.server_pids(), "a tritonserver")

    assert deployed.stop(signal.SIGINT) == 130
    assert docker.names() == []
    assert not deployed.server_pids()


@IN_PROCESS
@pytest.mark.sweep
def test_the_triton_on_path_is_run_rather_than_the_wheels(
    docker: Docker, deployer: Deployer, build_copy: Path, tiny_recipe: Path, tmp_path: Path, until: Until
) -> None:
    """As inside of NVIDIA's image."""
    folder = tmp_path / "bin"
    folder.mkdir()
    script = (docker.daemon.folder / "image_bin/tritonserver").read_text()
    (folder / "tritonserver").write_text(script.replace("exec", f'echo "$@" > {tmp_path}/ran\nexec'))
    (folder / "tritonserver").chmod(0o755)
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    dry = subprocess.run(
        [TRTSPEC, "deploy", tiny_recipe, "--output", build_copy, "--dry-run"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )

    deployed = deployer(build_copy, recipe=tiny_recipe, environment=environment)
    until(lambda: deployed.is_ready, "the server ready")

    assert deployed.generate("import ", max_tokens=2)
    ran = (tmp_path / "ran").read_text().split()
    shown = shlex.split(dry.stdout.split(" &&")[1].split("\n#")[0].replace("\\\n", ""))
    program = shown.index(str(folder / "tritonserver"))
    variables, shown = shown[:program], shown[program:]
    assert f"TRTSPEC_ROLLOUT={build_copy.resolve()}/rollout.json" in variables
    assert all("=" in variable for variable in variables)
    changing = ("port=", "shm-region-prefix-name=", "trtspec-key=")
    assert [word for word in ran if not any(part in word for part in changing)] == [
        word for word in shown[1:] if not any(part in word for part in changing)
    ]


@IN_PROCESS
class TestRefusals:
    def test_deploy_in_a_container_is_refused_without_docker_on_path(
        self, docker: Docker, build_copy: Path
    ) -> None:
        (docker.daemon.client).unlink()
        # A machine may have a docker or a podman of its own.
        docker.environment["PATH"] = str(docker.daemon.folder / "empty")
        assert "error: docker: is not on PATH" in refused(
            build_copy, "--container", environment=docker.environment
        )

    def test_a_silent_daemon(self, docker: Docker, build_copy: Path) -> None:
        docker.daemon.info('{"ServerVersion": ""}', "silent")
        assert "error: docker: its daemon does not answer" in refused(
            build_copy, "--container", environment=docker.environment
        )

    def test_deploy_is_refused_when_its_image_cannot_be_pulled(
        self, docker: Docker, build_copy: Path
    ) -> None:
        docker.daemon.images()
        (docker.daemon.folder / "unknown_image").touch()
        assert f"error: {IMAGE}: cannot be pulled" in refused(
            build_copy, "--container", environment=docker.environment
        )
        assert docker.names() == []


@pytest.mark.sweep
def test_engines_of_tensorrt_llm_are_built_and_served_in_containers(
    docker: Docker, deployer: Deployer, tmp_path: Path, until: Until
) -> None:
    """`trtllm-build` and the bindings in the image are stand-ins."""
    recipe = write_recipe(tmp_path, "gpu: h200", "release: 1.2.1")
    docker.machine.gpus(H200)
    build = tmp_path / "build"
    made = docker.trtspec("build", str(recipe), "--container", "--output", str(build))
    assert made.returncode == 0, made.stderr
    # Triton's Python looks for packages in the working folder.
    (build / "tensorrt_llm").symlink_to(BINDINGS / "tensorrt_llm")

    deployed = deployer(build, "--container", recipe=recipe, environment=docker.environment)
    until(lambda: deployed.is_ready, "the server ready")

    assert deployed.generate("import ", max_tokens=8)
    assert deployed.stop() == 0
    given = [words[words.index("--gpus") + 1] for words in docker.daemon.calls("run")]
    assert given == ["device=GPU-00"] * 3


def test_engines_of_another_gpu_are_refused(docker: Docker, tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, "gpu: h200", "release: 1.2.1")
    docker.machine.gpus(H200)
    build = tmp_path / "build"
    docker.trtspec("build", str(recipe), "--container", "--output", str(build))
    docker.machine.gpus("NVIDIA L40S, 8.9, 590, Default, Disabled, 46068, 46000")

    said = refused(build, "--container", recipe=recipe, environment=docker.environment)

    assert "was built for SM 90, but this GPU has SM 89" in said


@pytest.mark.parametrize(
    ("settings", "problem", "repair"),
    [
        ("Exclusive_Process, Disabled", "compute mode Exclusive_Process", "nvidia-smi -i 0 -c DEFAULT"),
        pytest.param(
            *("Default, Enabled", "is divided (MIG)", "nvidia-smi -i 0 -mig 0"), marks=pytest.mark.sweep
        ),
    ],
)
def test_a_gpu_that_would_let_the_server_wait_for_ever(
    docker: Docker, tmp_path: Path, settings: str, problem: str, repair: str
) -> None:
    """Its compute mode was changed after the build."""
    recipe = write_recipe(tmp_path, "gpu: h200", "release: 1.2.1")
    docker.machine.gpus(H200)
    build = tmp_path / "build"
    docker.trtspec("build", str(recipe), "--container", "--output", str(build))
    docker.machine.gpus(f"NVIDIA H200, 9.0, 590.44.01, {settings}, 143771, 143000")

    said = refused(build, "--container", recipe=recipe, environment=docker.environment)

    assert problem in said
    assert repair in said
    assert not docker.daemon.calls("run")[2:]
