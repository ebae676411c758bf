"""Podman itself, of root and of a user, through trtspec's own code; `make test-podman` sets it up."""

from __future__ import annotations

import json
import os
import shutil
import textwrap
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.e2e.conftest import RECIPE, Until
from tests.e2e.real_podman import IMAGE, RealPodman
from tests.support.command_line import trtspec
from tests.support.ports import free_port, free_ports
from trtspec.pipeline.containers.dialect import PODMAN

pytestmark = pytest.mark.podman
WHOSE = ["user", *(["root"] if os.getuid() == 0 else [])]


@pytest.fixture(scope="module", params=WHOSE)
def podman(request: pytest.FixtureRequest) -> Iterator[RealPodman]:
    podman = RealPodman(request.param)
    podman.load_image()
    yield podman
    assert podman.names() == []
    podman.remove()


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("built") / "build"
    assert trtspec("build", RECIPE, "--output", folder).returncode == 0
    return folder


@pytest.fixture
def build(podman: RealPodman, built: Path) -> Iterator[Path]:
    """A build of theirs."""
    folder = podman.folder / "build"
    shutil.copytree(built, folder)
    podman.give(folder)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def deploy(podman: RealPodman, build: Path) -> Callable[..., tuple[int, str]]:
    """Leaves the build running; returns its HTTP port and what was said."""

    def run(*options: str, status: int = 0) -> tuple[int, str]:
        http, grpc, metrics = free_ports()
        ports = [f"--http-port={http}", f"--grpc-port={grpc}", f"--metrics-port={metrics}"]
        where = ("--output", build, "--container", "--detach")
        said = podman.trtspec("deploy", RECIPE, *where, *ports, *options, status=status)
        return http, said.stdout + said.stderr

    return run


def status_of(podman: RealPodman) -> dict[str, str]:
    (found,) = json.loads(podman.trtspec("deploy", "status", "--json").stdout)
    return dict(found)


def test_a_server_is_left_seen_started_again_and_stopped(
    podman: RealPodman, deploy: Callable[..., tuple[int, str]], build: Path, until: Until
) -> None:
    api = free_port()
    port, said = deploy("--openai-port", str(api))
    (name,) = podman.names()
    assert f"its log: trtspec deploy logs {name} --follow" in said
    found = status_of(podman)
    assert (found["name"], found["state"], found["restarts"]) == (name, "ready", "0")
    assert (found["image"], found["openai_state"]) == (IMAGE, "")
    # Root of the container, who is the user, can read the build, and cannot write it.
    log = podman.run("podman", "logs", name).stdout
    assert log.splitlines()[0] == "0:0 in /tmp: Read-only file system"
    assert not (build / "written").exists()

    with suppress(OSError):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/die", timeout=5)
    until(lambda: (now := status_of(podman))["restarts"] == "1" and now["state"] == "ready", "another run")

    assert podman.trtspec("deploy", "stop").stderr.endswith(f"{name}: stopped\n")
    assert podman.names() == []
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"http://127.0.0.1:{api}/health", timeout=5)


def test_one_that_dies_while_it_starts_is_told_and_gone(
    podman: RealPodman, deploy: Callable[..., tuple[int, str]], build: Path
) -> None:
    (build / "broken").touch()
    begin = time.monotonic()
    _, said = deploy("--no-openai", status=1)
    assert "error: tritonserver: ended with status" in said
    assert "Read-only file system" in (build / "tritonserver.log").read_text()
    assert podman.names() == []
    assert time.monotonic() - begin < 60


LAUNCHED = textwrap.dedent("""
    import time
    from pathlib import Path
    from trtspec.pipeline.containers.engine import find_engine
    from trtspec.pipeline.run.launcher import ContainerLauncher
    folder = Path({folder!r})
    launcher = ContainerLauncher({image!r}, "trtspec-test", (folder,), {gpus!r}, find_engine())
    with (folder / "log").open("wb") as log:
        running = launcher.start(("python3", "-c", {script!r}), log, folder)
    status = running.wait({seconds})
    begin = time.monotonic()
    running.kill()
    print(status, time.monotonic() - begin < 8)
""")


@pytest.fixture
def launch(podman: RealPodman) -> Iterator[Callable[..., list[str]]]:
    """Runs Python in a container as a build does: its exit status, and whether it was ended soon."""
    folder = podman.folder / "launched"
    folder.mkdir()
    podman.give(folder)

    def run(script: str, seconds: float = 60, gpus: tuple[str, ...] = ()) -> list[str]:
        values = {"folder": str(folder), "image": IMAGE, "gpus": gpus, "script": script, "seconds": seconds}
        return podman.python(LAUNCHED.format(**values)).split()

    yield run
    shutil.rmtree(folder)


def test_files_that_a_podman_container_makes_belong_to_the_user(
    podman: RealPodman, launch: Callable[..., list[str]]
) -> None:
    assert launch("import os; os.mkdir('made'); open('made/file', 'w').close()") == ["0", "True"]
    for path in ("made", "made/file"):
        found = (podman.folder / "launched" / path).stat()
        assert (found.st_uid, found.st_gid) == (podman.uid, podman.gid)


def test_how_a_command_ends(launch: Callable[..., list[str]]) -> None:
    assert launch("raise SystemExit(3)")[0] == "3"
    assert launch("import os; os.kill(os.getpid(), 9)")[0] == "-9"


def test_one_that_does_not_end_is_ended_at_once(launch: Callable[..., list[str]]) -> None:
    """Also if it does not heed SIGTERM."""
    script = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"
    assert launch(script, seconds=3) == ["None", "True"]


@pytest.fixture
def gpu() -> Iterator[str]:
    """What CDI says of a GPU of which there is but a variable."""
    file = Path("/etc/cdi/trtspec-test.json")
    try:
        file.parent.mkdir(exist_ok=True)
        edits = {"env": ["SEEN=GPU-0123"]}
        device = {"name": "GPU-0123", "containerEdits": edits}
        file.write_text(json.dumps({"cdiVersion": "0.4.0", "kind": "nvidia.com/gpu", "devices": [device]}))
    except PermissionError:
        pytest.skip("only root may say what devices there are")
    yield "GPU-0123"
    file.unlink()


def test_gpus_come_by_cdi(podman: RealPodman, gpu: str, launch: Callable[..., list[str]]) -> None:
    ask = "from trtspec.pipeline.containers.engine import find_engine as f; print(f().gpus, *f().devices)"
    assert podman.python(ask).split() == ["True", gpu]
    assert launch("import os; assert os.environ['SEEN'] == 'GPU-0123'", gpus=(gpu,)) == ["0", "True"]


ASKED = textwrap.dedent("""
    from trtspec.pipeline.containers.engine import find_engine
    from trtspec.base.errors import UnavailableError
    engine = find_engine()
    try:
        print(engine.program.run(*{words}))
    except UnavailableError as error:
        print(error.problem, error.repair, sep="|")
""")


@pytest.mark.parametrize(
    ("words", "repair"),
    [
        (["--device", "nvidia.com/gpu=7", IMAGE, "sh"], "cdi generate"),
        (["localhost/none:1"], "which pulls it"),
        (["--ulimit", "nofile=1048576", IMAGE, "sh"], "default_ulimits"),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_trtspec_names_the_repair_for_each_failure_of_podman(
    podman: RealPodman, words: list[str], repair: str
) -> None:
    said = podman.python(ASKED.format(words=["run", "--rm", "--pull", "never", *words]))
    assert repair in said


def test_trtspec_reads_the_version_and_user_of_podman(podman: RealPodman) -> None:
    shown = "print(found.version, found.rootless, found.user)"
    ask = f"from trtspec.pipeline.containers.engine import find_engine; found = find_engine(); {shown}"
    version, rootless, user = podman.python(ask).split()
    assert podman.run("podman", "--version").stdout.split()[-1] == version
    assert (rootless, user) == (str(podman.whose == "user"), "0:0")
    said = json.loads(podman.trtspec("doctor", "--json").stdout)["findings"]
    (found,) = [finding for finding in said if finding["subject"] == "podman"]
    assert found["problem"].startswith(version)


def test_trtspec_recognizes_the_layers_in_the_output_of_podman_pull(podman: RealPodman) -> None:
    """From a folder, since there is no registry."""
    folder = f"dir:{podman.folder}/pushed"
    podman.run("podman", "push", IMAGE, folder)
    pulled = podman.run("podman", "pull", folder)
    found = [PODMAN.pulling.match(line) for line in (pulled.stdout + pulled.stderr).splitlines()]
    (layer,) = {match[1] for match in found if match}
    assert len(layer) >= 12


def test_docker_that_speaks_to_podman_is_refused(podman: RealPodman, until: Until) -> None:
    if not shutil.which("docker"):
        pytest.skip("docker's command line is not here")
    socket = podman.folder / "run/podman.sock"
    service = podman.start("podman", "system", "service", "--time", "0", f"unix://{socket}")
    until(socket.exists, "podman's service")
    podman.environment |= {"DOCKER_HOST": f"unix://{socket}", "TRTSPEC_CONTAINERS": "docker"}
    try:
        ask = "from trtspec.pipeline.containers.engine import find_engine as f; print(f().obstacle)"
        assert "its command line talks to podman here" in podman.python(ask)
    finally:
        podman.environment |= {"TRTSPEC_CONTAINERS": "podman"}
        del podman.environment["DOCKER_HOST"]
        service.terminate()
        service.wait(30)
