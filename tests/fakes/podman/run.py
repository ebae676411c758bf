"""`podman run`: what it takes and refuses."""

from __future__ import annotations

import json
import resource
from typing import Any

from tests.fakes.docker.images import images
from tests.fakes.docker.life import exists
from tests.fakes.docker.run import LISTS as DOCKER_LISTS
from tests.fakes.docker.run import SWITCHES, check_paths, launch, mount, published
from tests.fakes.docker.run import VALUES as DOCKER_VALUES
from tests.fakes.docker.words import ROOT, fail, parse

# Before release 5 it takes --gpus without a word, and gives no GPU.
VALUES = DOCKER_VALUES - {"--gpus"} | {"--userns", "--restart"}
LISTS = DOCKER_LISTS | {"--device"}
_OCI = (
    "Error: runc: runc create failed: unable to start container process: error during container init: error"
)


def run(words: list[str]) -> None:
    options = parse(words, "run", VALUES, LISTS, SWITCHES)
    name, (image, *command) = options["--name"], options["words"]
    assert options["--pull"] == "never", "the stand-in pulls with `podman pull` alone"
    if image not in images():
        fail(f"Error: {image}: image not known", 125)
    if exists(name):
        fail(f'Error: creating container storage: the container name "{name}" is already in use by 0123', 125)
    info = json.loads((ROOT / "info.json").read_text())
    mounts = [mount(text) for text in options["--mount"]]
    gpus = [device(text) for text in options["--device"]]
    ports = [published(text) for text in options["--publish"]]
    rootless = info["host"]["security"]["rootless"]
    check_limits(options["--ulimit"], rootless=rootless)
    check_security(options, mounts, labels=info["host"]["security"]["selinuxEnabled"])
    if "--health-cmd" in options and (ROOT / "no_systemd").exists():
        bus = "dial unix /run/user/1000/systemd/private: connect: no such file or directory"
        fail(f"Error: unable to get systemd connection to add healthchecks: {bus}", 126)
    check_paths([*command, options["--workdir"]], mounts)
    policy = options.get("--restart", "no")
    assert policy == "no" or not options["--rm"]
    launch(options, mounts, gpus, ports, policy)


def device(text: str) -> str:
    kind, _, name = text.partition("=")
    assert kind == "nvidia.com/gpu", text
    if name not in (ROOT / "cdi").read_text().splitlines():
        known = f"failed to inject devices: unresolvable CDI devices {text}"
        fail(f"Error: setting up CDI devices: {known}", 126)
    return name


def check_limits(limits: list[str], *, rootless: bool) -> None:
    """A process of a user cannot have more than its parent; root can, here as elsewhere."""
    for limit in limits:
        kind, _, value = limit.partition("=")
        number = {"memlock": resource.RLIMIT_MEMLOCK, "stack": resource.RLIMIT_STACK}[kind]
        own = resource.getrlimit(number)[1]
        is_more = own != resource.RLIM_INFINITY and (value == "-1" or int(value) > own)
        if rootless and is_more:
            fail(f"{_OCI} setting rlimits for ready process: operation not permitted", 126)


def check_security(options: dict[str, Any], mounts: list[str], *, labels: bool) -> None:
    wanted = ["no-new-privileges", "label=disable"] if labels else ["no-new-privileges"]
    assert options["--security-opt"] == wanted, "SELinux: what is mounted cannot be read"
    assert options["--cap-drop"] == "ALL"
    # Root of the user's own namespace is the user; any other would not own what is mounted.
    assert (options["--user"], options["--userns"]) == ("0:0", "host"), mounts
    assert options["--log-driver"] in ("k8s-file", "json-file")
    assert [option.partition("=")[0] for option in options["--log-opt"]] == ["max-size"], "it knows no other"
    assert options["--shm-size"][-1] in "kmg", options["--shm-size"]
