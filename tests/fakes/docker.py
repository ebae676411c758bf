"""A stand-in for docker's command line and its daemon, strict about what trtspec says to them.

Options are those of docker 28: an unknown one, a mount without a source, a port that is taken or a GPU that
is not there fail with docker's words and status. A container is a process that outlives its client: it gets
no variable that was not passed, and the programs of `image_bin` in place of the image's. Paths must be the
same inside and outside, since there is no namespace here.

The folder `FAKE_DOCKER` is the daemon: `images` (a name a line), `image_bin`, `containers/<name>/`, `calls`
(a JSON list a line), and `trouble`, one of TROUBLES.
"""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(os.environ.get("FAKE_DOCKER", "/nowhere"))
_SOCKET = "unix:///var/run/docker.sock"
TROUBLES = {
    "silent": f"Cannot connect to the Docker daemon at {_SOCKET}. Is the docker daemon running?",
    "locked": f"permission denied while trying to connect to the Docker daemon socket at {_SOCKET}",
}
_HELP = "Run 'docker run --help' for more information"
# Of `docker run`: options with a value, those that may be repeated, and switches.
VALUES = {
    *("--name", "--gpus", "--shm-size", "--user", "--workdir", "--pull", "--log-driver", "--cap-drop"),
    *("--health-cmd", "--health-interval", "--health-timeout", "--health-retries", "--health-start-period"),
}
LISTS = {"--label", "--ulimit", "--env", "--mount", "--publish", "--security-opt", "--log-opt"}
SWITCHES = {"--detach", "--init", "--rm"}


def fail(message: str, status: int = 1) -> NoReturn:
    print(message, file=sys.stderr, flush=True)
    sys.exit(status)


def daemon_error(message: str, status: int = 125) -> NoReturn:
    fail(f"docker: Error response from daemon: {message}\n\n{_HELP}", status)


def parse(words: list[str], command: str, values: set[str], lists: set[str], switches: set[str]) -> Any:
    """Options up to the first other word, as Go's pflag takes them; the rest in "words"."""
    found: dict[str, Any] = {name: [] for name in lists} | dict.fromkeys(switches, False)
    while words and words[0].startswith("-"):
        name, equals, value = words.pop(0).partition("=")
        if name in switches and not equals:
            found[name] = True
        elif name in values | lists:
            if not equals and not words:
                fail(f"flag needs an argument: {name}\n\nUsage:  docker {command} [OPTIONS]", 125)
            value = value if equals else words.pop(0)
            found[name] = [*found[name], value] if name in lists else value
        else:
            fail(f"unknown flag: {name}\n\nUsage:  docker {command} [OPTIONS]", 125)
    return found | {"words": words}


def folder_of(name: str) -> Path:
    """Of a container's name or id."""
    with suppress(ValueError):
        name = bytes.fromhex(name).decode()
    return ROOT / "containers" / name


def state(name: str) -> dict[str, Any]:
    """Of a container; an error of the daemon if there is none."""
    if not exists(name):
        fail(f"Error response from daemon: No such container: {name}")
    found: dict[str, Any] = json.loads((folder_of(name) / "state.json").read_text())
    return found


def exists(name: str) -> bool:
    """One of `--rm` is gone when it has ended."""
    file = folder_of(name) / "state.json"
    return file.is_file() and not (status_of(name) is not None and json.loads(file.read_text())["AutoRemove"])


def status_of(name: str) -> int | None:
    file = folder_of(name) / "status"
    return int(file.read_text()) if file.exists() else None


def info(words: list[str]) -> None:
    assert words == ["--format", "{{json .}}"], words
    print((ROOT / "info.json").read_text())
    if trouble():
        fail(trouble())


def trouble() -> str:
    return TROUBLES.get((ROOT / "trouble").read_text(), "")


def images() -> list[str]:
    return (ROOT / "images").read_text().splitlines()


def image(words: list[str]) -> None:
    shown = {"{{.Id}}": "sha256:0123", "{{range .RepoDigests}}{{println .}}{{end}}": ""}
    inspect, option, template, name = words
    assert (inspect, option) == ("inspect", "--format"), words
    if name not in images():
        fail(f"Error response from daemon: No such image: {name}")
    print(shown[template] or f"{name.rpartition(':')[0]}@sha256:{'4567' * 16}\n")


def pull(words: list[str]) -> None:
    (name,) = words
    if (ROOT / "unknown_image").exists():
        fail(f"Error response from daemon: manifest for {name} not found: manifest unknown")
    print(f"{name.rpartition(':')[2]}: Pulling from nvidia/tritonserver", flush=True)
    for line in ("Pulling fs layer", "Download complete", "Pull complete"):
        for layer in ("aaaaaaaaaaaa", "bbbbbbbbbbbb"):
            print(f"{layer}: {line}", flush=True)
    print(f"Status: Downloaded newer image for {name}", flush=True)
    with (ROOT / "images").open("a") as stream:
        stream.write(f"{name}\n")


def run(words: list[str]) -> None:
    options = parse(words, "run", VALUES, LISTS, SWITCHES)
    name, (image_name, *command) = options["--name"], options["words"]
    if options["--pull"] != "never" and image_name not in images():
        fail("the stand-in pulls with `docker pull` alone", 99)
    if image_name not in images():
        daemon_error(f"No such image: {image_name}")
    folder = folder_of(name)
    if exists(name):
        daemon_error(f'Conflict. The container name "/{name}" is already in use by container "0123".')
    mounts = [mount(text) for text in options["--mount"]]
    gpus = devices(options.get("--gpus"))
    ports = [published(text) for text in options["--publish"]]
    for kind in options["--ulimit"]:
        assert kind.partition("=")[0] in ("memlock", "stack"), kind
    assert options["--shm-size"][-1] in "kmg", options["--shm-size"]
    user = options.get("--user")
    assert user in (None, f"{os.getuid()}:{os.getgid()}"), user
    assert options["--security-opt"] == ["no-new-privileges"], options["--security-opt"]
    assert options["--cap-drop"] == "ALL"
    for option in options["--log-opt"]:
        assert options["--log-driver"] == "json-file", "other drivers do not know max-size"
        assert option.partition("=")[0] in ("max-size", "max-file"), option
    check_paths([*command, options["--workdir"]], mounts)
    variables = dict(item.split("=", 1) for item in options["--env"])
    environment = image_environment() | {"NVIDIA_VISIBLE_DEVICES": ",".join(gpus)} | variables
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    labels = dict(item.split("=", 1) for item in options["--label"])
    content = {
        "Id": name.encode().hex(),
        "Name": f"/{name}",
        "Created": "2026-11-21T07:30:00.123456789Z",
        "Config": {"Image": image_name, "Labels": labels, "Cmd": command, "User": user or ""},
        "Mounts": mounts,
        "Ports": ports,
        "AutoRemove": options["--rm"],
        "Health": options.get("--health-cmd"),
        "folder": options["--workdir"],
        "environment": environment,
    }
    (folder / "state.json").write_text(json.dumps(content))
    # What runs the container, as containerd does, in a session of its own.
    subprocess.Popen(
        [sys.executable, __file__, "shim", name],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    while not (folder / "pid").exists():
        time.sleep(0.005)
    if options["--detach"]:
        print(content["Id"])
        return
    follow(name)
    sys.exit(status_of(name))


def mount(text: str) -> str:
    """The source of a bind mount."""
    (fields,) = csv.reader([text])
    pairs = dict(field.partition("=")[::2] for field in fields)
    unknown = set(pairs) - {"type", "src", "dst", "readonly"}
    if unknown:
        fail(f'invalid argument "{text}" for "--mount" flag: unexpected key in \'{unknown.pop()}\'', 125)
    assert pairs["type"] == "bind"
    source = pairs["src"]
    if not Path(source).exists():
        daemon_error(f'invalid mount config for type "bind": bind source path does not exist: {source}')
    assert source == pairs["dst"], "the stand-in has no namespaces"
    return source


def devices(text: str | None) -> list[str]:
    if text is None:
        return []
    (fields,) = csv.reader([text])
    key, _, value = fields[0].partition("=")
    assert len(fields) == 1, f"{text}: a comma outside of quotes begins another key"
    assert key == "device"
    if json.loads((ROOT / "info.json").read_text())["Runtimes"].get("nvidia") is None:
        daemon_error('could not select device driver "" with capabilities: [[gpu]]')
    rows = [line.split(", ") for line in (ROOT / "gpus.csv").read_text().splitlines()]
    known = [word for row in rows for word in row[:2]]
    for device in value.split(","):
        if device not in known:
            daemon_error(
                "failed to create task for container: OCI runtime create failed: "
                f"nvidia-container-cli: device error: {device}: unknown device: unknown"
            )
    return value.split(",")


def published(text: str) -> int:
    host, outside, inside = text.rsplit(":", 2)
    assert outside == inside, "the stand-in has no network of its own"
    address = host.strip("[]")
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        socket.inet_pton(family, address)
    except OSError:
        fail(f"docker: invalid IP address: {host}", 125)
    try:
        socket.create_server((address, int(outside)), family=family).close()
    except OSError:
        daemon_error(f"Bind for {host}:{outside} failed: port is already allocated")
    return int(inside)


def check_paths(words: list[str], mounts: list[str]) -> None:
    """A container sees nothing of this machine but what is mounted."""
    for word in words:
        path = word.partition("=")[2] if word.startswith("-") else word
        if path.startswith("/") and not path.startswith("/opt/tritonserver/"):
            assert any(Path(path).is_relative_to(mount) for mount in mounts), f"{path} is not mounted"


def image_environment() -> dict[str, str]:
    variables: dict[str, str] = json.loads((ROOT / "image_environment.json").read_text())
    return {"PATH": f"{ROOT / 'image_bin'}:/usr/bin:/bin", **variables}


def shim(words: list[str]) -> None:
    """Runs a container to its end, and again where its policy says so."""
    (name,) = words
    folder = folder_of(name)
    (folder / "restarts").write_text("0")
    while run_once(name):
        (folder / "restarts").write_text(str(int((folder / "restarts").read_text()) + 1))


def run_once(name: str) -> bool:
    """Whether it is to be run again."""
    folder, content = folder_of(name), state(name)
    command = content["Config"]["Cmd"]
    executable = shutil.which(Path(command[0]).name, path=content["environment"]["PATH"])
    with (folder / "log").open("ab") as log:
        if executable is None:
            log.write(f"[FATAL tini (7)] exec {command[0]} failed: No such file or directory\n".encode())
            (folder / "status").write_text("127")
            (folder / "pid").write_text("0")
            return False
        process = subprocess.Popen(
            [executable, *command[1:]],
            cwd=content["folder"],
            env=content["environment"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        (folder / "pid.new").write_text(str(process.pid))
        (folder / "pid.new").rename(folder / "pid")
        status = process.wait()
    # The other processes of a container end with its first.
    kill_group(process.pid, signal.SIGKILL)
    policy = (
        (folder / "policy").read_text().partition(":") if (folder / "policy").exists() else ("no", "", "0")
    )
    restarts = int((folder / "restarts").read_text()) if folder.exists() else 0
    is_failure = status != 0 and not (folder / "stopped").exists()
    if folder.exists() and policy[0] == "on-failure" and is_failure and restarts < int(policy[2]):
        return True
    if folder.exists():
        (folder / "status.new").write_text(str(status if status >= 0 else 128 - status))
        (folder / "status.new").rename(folder / "status")
    return False


def kill_group(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(pid, number)


def follow(name: str) -> None:
    """Writes a log to stdout until the container has ended."""
    with (folder_of(name) / "log").open("rb") as log:
        has_ended = False
        while not has_ended:
            has_ended = status_of(name) is not None or not folder_of(name).exists()
            sys.stdout.buffer.write(log.read())
            sys.stdout.flush()
            time.sleep(0.01)


def logs(words: list[str]) -> None:
    assert words[0] == "--follow", words
    state(words[1])
    follow(words[1])


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


def end(name: str, seconds: float) -> None:
    """SIGTERM to the first process, and after so many seconds SIGKILL to all."""
    folder = folder_of(name)
    pid = int((folder / "pid").read_text())
    (folder / "stopped").touch()
    if status_of(name) is not None:
        return
    deadline = time.monotonic() + seconds
    if seconds:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
        while status_of(name) is None and time.monotonic() < deadline:
            time.sleep(0.01)
    if status_of(name) is None:
        kill_group(pid, signal.SIGKILL)
        while status_of(name) is None:
            time.sleep(0.01)


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
    for command in (info, image, pull, run, logs, ps, container, stop, rm, update, shim)
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
