"""`docker run`: what it takes and refuses."""

from __future__ import annotations

import csv
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.fakes.docker.images import image_environment, images
from tests.fakes.docker.life import exists, folder_of, follow, status_of
from tests.fakes.docker.words import ROOT, daemon_error, fail, parse

# Of `docker run`: options with a value, those that may be repeated, and switches.
VALUES = {
    *("--name", "--gpus", "--shm-size", "--user", "--userns", "--workdir", "--pull", "--log-driver"),
    *("--cap-drop", "--entrypoint"),
    *("--health-cmd", "--health-interval", "--health-timeout", "--health-retries", "--health-start-period"),
}
LISTS = {"--label", "--ulimit", "--env", "--mount", "--publish", "--security-opt", "--log-opt"}
SWITCHES = {"--detach", "--init", "--rm"}


def run(words: list[str]) -> None:
    options = parse(words, "run", VALUES, LISTS, SWITCHES)
    name, (image_name, *command) = options["--name"], options["words"]
    if options["--pull"] != "never" and image_name not in images():
        fail("the stand-in pulls with `docker pull` alone", 99)
    if image_name not in images():
        daemon_error(f"No such image: {image_name}")
    if exists(name):
        daemon_error(f'Conflict. The container name "/{name}" is already in use by container "0123".')
    mounts = [mount(text) for text in options["--mount"]]
    gpus = devices(options.get("--gpus"))
    ports = [published(text) for text in options["--publish"]]
    for kind in options["--ulimit"]:
        assert kind.partition("=")[0] in ("memlock", "stack"), kind
        if kind.startswith("memlock") and "name=rootless" in security_options():
            daemon_error("error setting rlimit type 8: operation not permitted: unknown", 126)
    assert options["--shm-size"][-1] in "kmg", options["--shm-size"]
    check_security(options)
    for option in options["--log-opt"]:
        assert options["--log-driver"] == "json-file", "other drivers do not know max-size"
        assert option.partition("=")[0] in ("max-size", "max-file"), option
    check_paths([*command, options["--workdir"]], mounts)
    launch(options, mounts, gpus, ports)


def launch(
    options: dict[str, Any], mounts: list[str], gpus: list[str], ports: list[int], policy: str = "no"
) -> None:
    """Starts a container whose options were found to be right, and does what `--detach` says then."""
    name, (image_name, *command) = options["--name"], options["words"]
    user, folder = options.get("--user"), folder_of(name)
    command = [*filter(None, [options.get("--entrypoint")]), *command]
    given = dict(item.partition("=")[::2] for item in options["--env"] if "=" in item)
    # A name alone has the value that it has for the client, if any.
    named = {item: os.environ[item] for item in options["--env"] if "=" not in item and item in os.environ}
    variables = given | named
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
    (folder / "policy").write_text(policy)
    # What runs the container, as containerd does, in a session of its own.
    subprocess.Popen(
        [sys.executable, "-m", "tests.fakes.docker", "shim", name],
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


def security_options() -> set[str]:
    options = json.loads((ROOT / "info.json").read_text()).get("SecurityOptions", [])
    return {option.partition(",")[0] for option in options}


def check_security(options: dict[str, Any]) -> None:
    """What is mounted is read by who owns it, and where SELinux is heeded by what has no label."""
    kinds = security_options()
    owner = "0:0" if "name=rootless" in kinds else f"{os.getuid()}:{os.getgid()}"
    assert options["--user"] == owner, options["--user"]
    assert options.get("--userns") == ("host" if "name=userns" in kinds else None)
    label = ["label=disable"] if "name=selinux" in kinds else []
    assert options["--security-opt"] == ["no-new-privileges", *label], options["--security-opt"]
    assert options["--cap-drop"] == "ALL"


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
