"""Holds the facts about a pod that other rooms need; the Helm chart has all else; pure.

A pod of another engine's server is the vendor's image with another entry point, as any user, on a root file
system that can only be read. All that these servers write is below the home folder: kernels that they compile
or download (vLLM's, FlashInfer's, Triton's, PyTorch's). PyTorch also asks for the name of a user that
`/etc/passwd` has not; `USER` answers. vLLM's image is made for this (vllm-project/vllm#40275), and SGLang's
has all that the server reads where everybody may (docker/Dockerfile). None of the images has run so here.
"""

from __future__ import annotations

import math
from pathlib import PurePosixPath

from trtspec.backends.launch import ServerLaunch
from trtspec.deployment.patience import with_engines, with_models
from trtspec.deployment.site import ANY
from trtspec.deployment.vendor_launch import options
from trtspec.gateway.ports import OPENAI, Ports
from trtspec.pipeline.store.entry import Entry

TEMPORARY, SHARED_MEMORY = PurePosixPath("/tmp"), PurePosixPath("/dev/shm")  # noqa: S108
"""All that a pod writes to, beside the volume of its engines: each can be an emptyDir."""

RECIPE = PurePosixPath("/etc/trtspec/recipe/recipe.yaml")
"""The recipe as the build was made from it."""

MODELS = PurePosixPath("/models")
"""The volume of the models that another engine's server loads; a folder of the node is at its own path
instead.
"""

PORTS = Ports(openai=OPENAI)

STARTUP_S = 5
"""The seconds between two looks at a server that loads its engines."""

_START_S = 30
_FILES = PurePosixPath("/etc/trtspec/launch")


def startup_failures(entry: Entry) -> int:
    """Returns how often the startup probe of engines may fail before it gives up.

    It does after `trtspec deploy` does, which then ends by itself and says why.
    """
    loading = with_engines(file.size for name, file in entry.files.items() if "/engine/" in name)
    return math.ceil((loading.seconds + _START_S) / STARTUP_S)


def startup_failures_of_server(launch: ServerLaunch) -> int:
    """Returns how often the startup probe of another engine's server may fail before it gives up."""
    return math.ceil(with_models(launch).seconds / STARTUP_S)


def server_arguments(launch: ServerLaunch, grace_s: int) -> tuple[str, ...]:
    """Returns another engine's server's arguments, in which Kubernetes is to replace no variables."""
    found = options(launch, _FILES, ANY, OPENAI, grace_s)
    return tuple(word.replace("$(", "$$(") for word in found)
