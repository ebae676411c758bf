"""Describes a pod of another engine's server, as far as it follows from its launch; pure.

It is the vendor's image with another entry point, as any user, on a root file system that can only be read.
All that these servers write is below the home folder: kernels that they compile or download (vLLM's,
FlashInfer's, Triton's, PyTorch's). PyTorch also asks for the name of a user that `/etc/passwd` has not;
`USER` answers. vLLM's image is made for this (vllm-project/vllm#40275), and SGLang's has all that the server
reads where everybody may (docker/Dockerfile). None of the images has run so here.
"""

from __future__ import annotations

import math
from pathlib import PurePosixPath

from trtspec.backends.servers.launch import ServerLaunch
from trtspec.deploy.one_container import ANY
from trtspec.deploy.patience import with_models
from trtspec.deploy.pod import STARTUP_S
from trtspec.deploy.vendor.command import options
from trtspec.gateway.ports import OPENAI

MODELS = PurePosixPath("/models")
"""The volume of the models; a folder of the node is at its own path instead."""

_FILES = PurePosixPath("/etc/trtspec/launch")


def arguments(launch: ServerLaunch, grace_s: int) -> tuple[str, ...]:
    """Returns the server's arguments, in which Kubernetes is to replace no variables."""
    found = options(launch, _FILES, ANY, OPENAI, grace_s)
    return tuple(word.replace("$(", "$$(") for word in found)


def startup_failures(launch: ServerLaunch) -> int:
    """Returns how often the startup probe may fail before it gives up."""
    return math.ceil(with_models(launch).seconds / STARTUP_S)
