"""Which of docker and podman it is, and what their failures mean."""

from __future__ import annotations

from pathlib import Path

import pytest

from trtspec.base.causes import find_cause
from trtspec.base.errors import UnavailableError
from trtspec.deployment.server import how_ended
from trtspec.pipeline.containers.dialect import DOCKER, PODMAN, Dialect
from trtspec.pipeline.containers.program import CHOICE, find_program, signalled
from trtspec.pipeline.containers.state import ensure_image

VERSIONS = {
    "docker": "Docker version 28.2.2, build e6534b4",
    "podman": "podman version 4.3.1",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """All that PATH has."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv(CHOICE, raising=False)
    return tmp_path


def install(folder: Path, name: str, says: str) -> None:
    command = folder / name
    command.write_text(f"#!/bin/sh\necho '{says}'\n")
    command.chmod(0o755)


@pytest.mark.parametrize(
    ("there", "choice", "name", "dialect"),
    [
        ({"docker": "docker"}, None, "docker", DOCKER),
        ({"podman": "podman"}, None, "podman", PODMAN),
        ({"docker": "docker", "podman": "podman"}, None, "docker", DOCKER),
        ({"docker": "docker", "podman": "podman"}, "podman", "podman", PODMAN),
        ({"docker": "docker", "podman": "podman"}, "docker", "docker", DOCKER),
        # The package podman-docker, beside podman or alone.
        ({"docker": "podman", "podman": "podman"}, None, "podman", PODMAN),
        ({"docker": "podman"}, None, "docker", PODMAN),
        ({"docker": "podman", "podman": "podman"}, "docker", "podman", PODMAN),
        # What is asked for is missed, and not replaced.
        ({"podman": "podman"}, "docker", "docker", DOCKER),
        ({"docker": "docker"}, "podman", "podman", PODMAN),
        ({}, None, "docker", DOCKER),
    ],
)
def test_which(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    there: dict[str, str],
    choice: str | None,
    name: str,
    dialect: Dialect,
) -> None:
    for command, truly in there.items():
        install(folder, command, VERSIONS[truly])
    if choice:
        monkeypatch.setenv(CHOICE, choice)
    program = find_program()
    assert (program.name, program.dialect) == (name, dialect)


def test_an_unknown_choice(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CHOICE, "lxc")
    with pytest.raises(UnavailableError, match="neither docker nor podman"):
        find_program()


def test_one_that_is_missing(folder: Path) -> None:
    with pytest.raises(UnavailableError, match="docker: is not on PATH"):
        find_program().run("ps")


# Each line is one that the program has said in a public issue, or that its source says.
SAID = [
    (
        DOCKER,
        "nvidia-container-cli: mount error: failed to add device rules: unable to find any existing device"
        " filters attached to the cgroup: bpf_prog_query(BPF_CGROUP_DEVICE) failed: operation not permitted",
        "no-cgroups",
    ),
    (DOCKER, "nvidia-container-cli: device error: GPU-1: unknown device: unknown", "trtspec doctor"),
    (
        DOCKER,
        'docker: Error response from daemon: invalid mount config for type "bind": stat /nfs/b:'
        " permission denied",
        "rootless podman",
    ),
    (
        PODMAN,
        "Error: copying system image from manifest list: writing blob: adding layer with blob"
        ' "sha256:61c8": processing tar file(potentially insufficient UIDs or GIDs available in user'
        " namespace (requested 0:42 for /etc/gshadow)",
        "usermod --add-subuids",
    ),
    (PODMAN, 'time="2026" level=error msg="finding newuidmap: exec: not found in $PATH"', "uidmap of Debian"),
    (PODMAN, "Error: stat nvidia.com/gpu=0: no such file or directory", "podman 4.1"),
    (
        PODMAN,
        "Error: setting up CDI devices: failed to inject devices: unresolvable CDI devices nvidia.com/gpu=7",
        "nvidia-ctk cdi generate",
    ),
    (
        PODMAN,
        "Error: container-init binary not found on the host: stat /x: no such file",
        "install catatonit",
    ),
    (PODMAN, "Error: could not find pasta, the network namespace can't be configured: exec: ...", "passt"),
    (
        PODMAN,
        "Error: unable to get systemd connection to add healthchecks: dial unix"
        " /run/user/1000/systemd/private: connect: no such file or directory",
        "enable-linger",
    ),
    (
        PODMAN,
        "Error: 'overlay' is not supported over nfs, a mount_program is required: backing file system is"
        " unsupported for this graph driver",
        "graphroot",
    ),
    (
        PODMAN,
        "Error: runc: runc create failed: unable to start container process: error during container init:"
        " error setting rlimits for ready process: error setting rlimit type 8: operation not permitted",
        "default_ulimits",
    ),
    (PODMAN, "Error: write /var/tmp/storage1: no space left on device", "podman system df"),
    (PODMAN, "Error: nvcr.io/nvidia/tritonserver:26.06: image not known", "which pulls it"),
]


@pytest.mark.parametrize(("dialect", "said", "repair"), SAID)
def test_causes(dialect: Dialect, said: str, repair: str) -> None:
    found = find_cause(dialect.causes, said)
    assert found
    assert repair in found[1]


@pytest.mark.parametrize(
    ("dialect", "said"),
    [
        (DOCKER, "Error response from daemon: No such container: x"),
        (DOCKER, "Error response from daemon: container 0123 is not running"),
        (PODMAN, "Error: inspecting object: no such container x"),
        (PODMAN, 'Error: no container with name or ID "x" found: no such container'),
        (PODMAN, "Error: inspecting object: x: image not known"),
        (PODMAN, "Error: can only create exec sessions on running containers: container state improper"),
    ],
)
def test_a_message_that_a_container_is_gone_is_recognized(dialect: Dialect, said: str) -> None:
    assert dialect.gone.search(said)


def test_the_error_of_podman_is_not_what_it_tried_first(folder: Path) -> None:
    command = folder / "podman"
    command.write_text(
        "#!/bin/sh\necho 'Trying to pull x...' >&2\n"
        "echo 'Error: reading manifest: unauthorized' >&2\nexit 125\n"
    )
    command.chmod(0o755)
    with pytest.raises(UnavailableError) as caught:
        find_program().run("pull", "x")
    assert caught.value.problem == "reading manifest: unauthorized"


PULLS = {
    # Docker 28 and podman 4.3 where no terminal looks on.
    "docker": [
        "24.04: Pulling from nvidia/tritonserver",
        "aaaaaaaaaaaa: Pulling fs layer",
        "bbbbbbbbbbbb: Already exists",
        "aaaaaaaaaaaa: Download complete",
        "aaaaaaaaaaaa: Pull complete",
        "Status: Downloaded newer image",
    ],
    "podman": [
        "Trying to pull nvcr.io/nvidia/tritonserver:26.06...",
        "Getting image source signatures",
        "Copying blob sha256:aaaa",
        "Copying blob sha256:bbbb",
        "Copying config sha256:cccc",
        "Writing manifest to image destination",
    ],
}


@pytest.mark.parametrize(
    ("name", "shown"),
    [("docker", ["0 of 1 layers", "1 of 2 layers", "1 of 2 layers", "2 of 2 layers"]),
     ("podman", ["1 layers", "2 layers"])],
)  # fmt: skip
def test_how_far_a_pull_is(folder: Path, name: str, shown: list[str]) -> None:
    from collections.abc import Iterator
    from contextlib import contextmanager

    from trtspec.base.progress import Advance

    lines = "".join(f"echo '{line}'\n" for line in PULLS[name])
    gone = {"docker": "No such image: x", "podman": "Error: x: image not known"}[name]
    command = folder / name
    command.write_text(
        f"#!/bin/sh\ncase $1 in\n--version) echo '{VERSIONS[name]}' ;;\nimage) echo '{gone}' >&2; exit 1 ;;\n"
        f"pull) {lines} ;;\nesac\n"
    )
    command.chmod(0o755)
    notes: list[str] = []

    @contextmanager
    def watch(what: str, total: int | None) -> Iterator[Advance]:
        yield lambda _, note="": notes.append(note)

    ensure_image(find_program(), "x", watch)
    assert notes == shown


@pytest.mark.parametrize(
    ("status", "how"),
    [
        (0, "ended with status 0"),
        (3, "ended with status 3"),
        (137, "was killed by SIGKILL"),
        (128 + 35, "was killed by signal 35"),
        (128, "ended with status 128"),
        (200, "ended with status 200"),
        (255, "ended with status 255"),
    ],
)
def test_the_status_of_a_container_is_that_of_its_process(status: int, how: str) -> None:
    """Docker says 255 of a container that it lost, and a program may end with any number."""
    assert how_ended(signalled(status)) == how
