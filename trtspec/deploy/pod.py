"""Holds the facts about a pod that other rooms need; the Helm chart has all else; pure."""

from __future__ import annotations

import math
from pathlib import PurePosixPath

from trtspec.deploy.patience import with_engines
from trtspec.gateway.ports import OPENAI, Ports
from trtspec.pipeline.store.entry import Entry

TEMPORARY, SHARED_MEMORY = PurePosixPath("/tmp"), PurePosixPath("/dev/shm")  # noqa: S108
"""All that a pod writes to, beside the volume of its engines: each can be an emptyDir."""

RECIPE = PurePosixPath("/etc/trtspec/recipe/recipe.yaml")
"""The recipe as the build was made from it."""

PORTS = Ports(openai=OPENAI)

STARTUP_S = 5
"""The seconds between two looks at a server that loads its engines."""

_START_S = 30


def startup_failures(entry: Entry) -> int:
    """Returns how often the startup probe may fail before it gives up.

    It does after `trtspec deploy` does, which then ends by itself and says why.
    """
    loading = with_engines(file.size for name, file in entry.files.items() if "/engine/" in name)
    return math.ceil((loading.seconds + _START_S) / STARTUP_S)
