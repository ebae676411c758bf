"""A stand-in for podman 4, strict about what trtspec says to it; `tests/podman` asks the real one.

It has podman's words and statuses, which differ from docker's, and what podman lacks: a daemon, other restart
policies for what runs already, GPUs but those of CDI. The rest, and the folder `FAKE_DOCKER`, is the stand-in
for docker's. `cdi` has the names of devices, a line each, and `no_systemd` is there where health checks have
nobody to run them.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from contextlib import suppress

from tests.fakes.docker import life
from tests.fakes.docker.__main__ import inspected, ps
from tests.fakes.docker.images import add, images, tag
from tests.fakes.docker.words import ROOT, fail, parse
from tests.fakes.podman.run import run


def info(words: list[str]) -> None:
    assert words == ["--format", "{{json .}}"], words
    print((ROOT / "info.json").read_text())


def image(words: list[str]) -> None:
    inspect, option, template, name = words
    assert (inspect, option) == ("inspect", "--format"), words
    if name not in images():
        fail(f"Error: inspecting object: {name}: image not known", 125)
    digest = f"{name.rpartition(':')[0]}@sha256:{'4567' * 16}\n"
    print({"{{.Id}}": "0123", "{{range .RepoDigests}}{{println .}}{{end}}": digest}[template])


def pull(words: list[str]) -> None:
    (name,) = words
    print(f"Trying to pull {name}...\nGetting image source signatures", file=sys.stderr)
    if (ROOT / "unknown_image").exists():
        fail(f"Error: initializing source docker://{name}: reading manifest: manifest unknown", 125)
    for layer in ("aaaa", "bbbb"):
        print(f"Copying blob sha256:{layer * 16}", file=sys.stderr, flush=True)
    print(f"Copying config sha256:{'cccc' * 16}\nWriting manifest to image destination", file=sys.stderr)
    add(name)
    print("0123" * 16)


def needs(name: str, status: int = 125) -> None:
    if not life.exists(name):
        fail(f'Error: no container with name or ID "{name}" found: no such container', status)


def logs(words: list[str]) -> None:
    """Until the end of this run, also of a container that is started again then."""
    follow, name = words
    assert follow == "--follow"
    needs(name)
    folder = life.folder_of(name)
    begin, has_ended = life.restarts_of(name), False
    with (folder / "log").open("rb") as log:
        while not has_ended:
            is_over = life.status_of(name) is not None or not folder.exists()
            has_ended = is_over or life.restarts_of(name) != begin
            sys.stdout.buffer.write(log.read())
            sys.stdout.flush()
            time.sleep(0.01)


def container(words: list[str]) -> None:
    inspect, name = words
    assert inspect == "inspect"
    if not life.exists(name):
        print("[]")
        fail(f"Error: inspecting object: no such container {name}", 125)
    found = inspected(name)
    found["Name"] = found["Name"].removeprefix("/")
    found["State"].setdefault("Health", {"Status": "", "FailingStreak": 0, "Log": None})
    print(json.dumps([found]))


def update(words: list[str]) -> None:
    fail("Error: unknown flag: --restart\nSee 'podman update --help'", 125)


def execute(words: list[str]) -> None:
    """`podman exec`."""
    name, *command = words
    needs(name)
    if life.status_of(name) is not None:
        fail("Error: can only create exec sessions on running containers: container state improper", 255)
    sys.exit(subprocess.run(command, env=life.state(name)["environment"], check=False).returncode)


def stop(words: list[str]) -> None:
    options = parse(words, "stop", {"-t"}, set(), set())
    (name,) = options["words"]
    needs(name)
    life.end(name, float(options["-t"]))
    print(name)


def rm(words: list[str]) -> None:
    options = parse(words, "rm", {"--time"}, set(), {"--force"})
    (name,) = options["words"]
    assert options["--force"]
    if not life.exists(name):
        # Podman 4.3 says so, and that all is well.
        print(f'Error: no container with name or ID "{name}" found: no such container', file=sys.stderr)
        return
    with suppress(FileNotFoundError):
        life.end(name, float(options.get("--time", 10)))
    shutil.rmtree(life.folder_of(name), ignore_errors=True)
    print(name)


COMMANDS = {
    command.__name__: command
    for command in (info, image, pull, tag, run, logs, ps, container, stop, rm, update)
} | {"exec": execute}


def main() -> None:
    command, *words = sys.argv[1:]
    if command == "--version":
        print("podman version 4.3.1")
        return
    with (ROOT / "calls").open("a") as stream:
        stream.write(json.dumps(sys.argv[1:]) + "\n")
    if command not in COMMANDS:
        fail(f"Error: unrecognized command `podman {command}`", 125)
    COMMANDS[command](words)


if __name__ == "__main__":
    main()
