"""What runs in a pod that serves: its two command lines, where they write, how they are asked; pure.

The init container pulls the engines into a folder that pods may share, and the server serves from it. Both
run as any user on a root file system that can only be read, and write to `ENGINES` (the first alone),
`TEMPORARY` and `SHARED_MEMORY`, which can be an emptyDir each. Both take their arguments behind the image's
own entry point, which is `tini`: the first process of a container must reap what nobody waits for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import PurePosixPath

from trtspec.deploy.launch import ENGINE_VARIABLES
from trtspec.deploy.patience import with_engines
from trtspec.deploy.ports import OPENAI, Ports
from trtspec.store.entry import Entry

ENGINES = PurePosixPath("/engines")
"""The volume of the engines, which the server need not write to."""

TEMPORARY, SHARED_MEMORY = PurePosixPath("/tmp"), PurePosixPath("/dev/shm")  # noqa: S108

RECIPE = PurePosixPath("/etc/trtspec/recipe/recipe.yaml")
"""The recipe as the build was made from it."""

ROLLOUT = PurePosixPath("/etc/trtspec/rollout/rollout.json")
"""Where a roll-out stands; the file need not be there. Its folder is mounted whole, so that it changes."""

API_KEYS = PurePosixPath("/etc/trtspec/api-keys/keys")
"""The keys of OpenAI's API, where the recipe names a secret that has them."""

ENVIRONMENT = {"HOME": str(TEMPORARY), "TRTSPEC_ROLLOUT": str(ROLLOUT), **ENGINE_VARIABLES}
"""The variables of the server. JIT compilers of CUDA and Triton keep what they make in the home folder.

`trtspec deploy` sets those of the engines itself; servers that span hosts are started by a recipe's commands.
"""

PORTS = Ports(openai=OPENAI)
HEALTH, ALIVE, OPENAI_HEALTH = "/v2/health/ready", "/v2/health/live", "/health"
PRE_STOP_S = 10
"""The seconds from the pod's end, as it is announced, to SIGTERM: until then nobody may have heard of it."""

GRACE_S = 60
"""The seconds that requests in flight have, by default."""

STARTUP_S = 5
"""The seconds between two looks at a server that loads its engines."""

_END_S = 20
_START_S = 30


@dataclass(frozen=True, slots=True)
class Probe:
    """A look by HTTP at a `port`, `http` or `openai`: every `period_s` seconds, `failures` in a row count."""

    path: str
    port: str
    period_s: int
    failures: int
    timeout_s: int = 5


def folder(platform: str, digest: str) -> PurePosixPath:
    """Returns the folder of an entry in the volume: by what loads it, and by its digest."""
    return ENGINES / platform / digest


def pull_arguments(url: str, digest: str, into: PurePosixPath) -> tuple[str, ...]:
    """Returns the init container's arguments; credentials come from its environment."""
    return ("trtspec", "store", "pull", url, digest, "--output", str(into), "--reuse")


def serve_arguments(
    build: PurePosixPath, grace_s: int = GRACE_S, *, has_keys: bool = False
) -> tuple[str, ...]:
    """Returns the server's arguments; with `has_keys` OpenAI's API asks for a key."""
    keys = ("--api-keys", str(API_KEYS)) if has_keys else ()
    return (
        *("trtspec", "deploy", str(RECIPE), "--output", str(build), "--host", "0.0.0.0"),  # noqa: S104
        *("--grace", str(grace_s), "--log-format", "json", "--log-to", "stdout", *keys),
    )


def startup_failures(entry: Entry) -> int:
    """Returns how often the startup probe may fail before it gives up.

    It does after `trtspec deploy` does, which then ends by itself and says why.
    """
    loading = with_engines(file.size for name, file in entry.files.items() if "/engine/" in name)
    return math.ceil((loading.seconds + _START_S) / STARTUP_S)


def startup_probe(failures: int) -> Probe:
    """Returns the probe that waits for the engines."""
    return Probe(HEALTH, "http", period_s=STARTUP_S, failures=failures)


READINESS = Probe(OPENAI_HEALTH, "openai", period_s=5, failures=1)
"""OpenAI's API is ready when the model is, and not while it drains or has lost its engines."""

LIVENESS = Probe(ALIVE, "http", period_s=10, failures=3)
"""The front has Triton itself answer, once it has been ready."""


def termination_grace_s(grace_s: int = GRACE_S) -> int:
    """Returns the seconds after which a pod that is to end is killed."""
    return PRE_STOP_S + grace_s + _END_S
