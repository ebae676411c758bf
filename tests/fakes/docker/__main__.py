"""A stand-in for docker's command line and its daemon, strict about what trtspec says to them.

Options are those of docker 28: an unknown one, a mount without a source, a port that is taken or a GPU that
is not there fail with docker's words and status. A container is a process that outlives its client: it gets
no variable that was not passed, and the programs of `image_bin` in place of the image's. Paths must be the
same inside and outside, since there is no namespace here.

The folder `FAKE_DOCKER` is the daemon: `images` (a name a line), `image_bin`, `containers/<name>/`, `calls`
(a JSON list a line), and `trouble`, one of TROUBLES.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from typing import Any

from tests.fakes.docker.images import image, pull, tag
from tests.fakes.docker.life import end, exists, folder_of, follow, shim, state, status_of
from tests.fakes.docker.run import run
from tests.fakes.docker.words import ROOT, fail, parse

_SOCKET = "unix:///var/run/docker.sock"
TROUBLES = {
    "silent": f"Cannot connect to the Docker daemon at {_SOCKET}. Is the docker daemon running?",
    "locked": f"permission denied while trying to connect to the Docker daemon socket at {_SOCKET}",
}


def info(words: list[str]) -> None:
    assert words == ["--format", "{{json .}}"], words
    print((ROOT / "info.json").read_text())
    if trouble():
        fail(trouble())


def trouble() -> str:
    return TROUBLES.get((ROOT / "trouble").read_text(), "")


def logs(words: list[str]) -> None:
    assert words[0] == "--follow", words
    since = words[1] == "--since"
    assert not since or 0 <= time.time() - float(words[2]) < 60, words
    state(words[-1])
    follow(words[-1], from_end=since)


def ps(words: list[str]) -> None:
    options = parse(words, "ps", {"--filter", "--format"}, set(), {"--all", "--quiet", "--no-trunc"})
    assert options["--all"]
    assert options["--quiet"]
    key = options["--filter"].removeprefix("label=")
    for folder in sorted((ROOT / "containers").glob("*")):
        if exists(folder.name) and key in state(folder.name)["Config"]["Labels"]:
            print(folder.name)


def container(words: list[str]) -> None:
    assert words[0] == "inspect", words
    print(json.dumps([inspected(name) for name in words[1:]]))


def inspected(name: str) -> dict[str, Any]:
    content, status = state(name), status_of(name)
    condition = {
        "Status": "running" if status is None else "exited",
        "Running": status is None,
        "ExitCode": status or 0,
        "OOMKilled": (folder_of(name) / "oom").exists(),
        "StartedAt": content["Created"],
        "Restarting": False,
    }
    if content["Health"]:
        condition["Health"] = {"Status": health(content)}
    restarts = {"RestartCount": int((folder_of(name) / "restarts").read_text())}
    return {
        **{key: content[key] for key in ("Id", "Name", "Created", "Config")},
        **restarts,
        "State": condition,
    }


def health(content: dict[str, Any]) -> str:
    """What the check says now; docker asks every ten seconds."""
    command = ["/bin/sh", "-c", content["Health"]]
    checked = subprocess.run(command, env=content["environment"], capture_output=True, check=False)
    return "healthy" if checked.returncode == 0 else "unhealthy"


def update(words: list[str]) -> None:
    options = parse(words, "update", {"--restart"}, set(), set())
    (name,) = options["words"]
    state(name)
    (folder_of(name) / "policy").write_text(options["--restart"])
    print(name)


def execute(words: list[str]) -> None:
    """`docker exec`."""
    name, *command = words
    content = state(name)
    if status_of(name) is not None:
        fail(f"Error response from daemon: container {name} is not running")
    sys.exit(subprocess.run(command, env=content["environment"], check=False).returncode)


def stop(words: list[str]) -> None:
    options = parse(words, "stop", {"-t"}, set(), set())
    (name,) = options["words"]
    state(name)
    end(name, float(options["-t"]))
    print(name)


def rm(words: list[str]) -> None:
    options = parse(words, "rm", set(), set(), {"--force"})
    (name,) = options["words"]
    state(name)
    if status_of(name) is None:
        if not options["--force"]:
            fail(f"Error response from daemon: cannot remove container {name}: container is running")
        end(name, 0)
    shutil.rmtree(folder_of(name), ignore_errors=True)
    print(name)


COMMANDS = {
    command.__name__: command
    for command in (info, image, pull, tag, run, logs, ps, container, stop, rm, update, shim)
} | {"exec": execute}


def main() -> None:
    command, *words = sys.argv[1:]
    if command != "shim":
        with (ROOT / "calls").open("a") as stream:
            stream.write(json.dumps(sys.argv[1:]) + "\n")
    if command not in ("info", "shim") and trouble():
        fail(trouble(), 125 if command == "run" else 1)
    if command not in COMMANDS:
        fail(f"docker: unknown command: docker {command}")
    COMMANDS[command](words)


if __name__ == "__main__":
    main()
