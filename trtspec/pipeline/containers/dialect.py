"""Describes where docker and podman differ; pure.

Of podman's command line: docs/source/markdown in its repository, held to release 4.3 and 5.8.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from trtspec.base.causes import Cause

TOOLKIT = "install nvidia-container-toolkit, then: sudo nvidia-ctk runtime configure --runtime=docker"
CDI = "install nvidia-container-toolkit, then: sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"


@dataclass(frozen=True, slots=True)
class Dialect:
    """One of the two command lines."""

    name: str
    install: str
    """The repair where the program is missing."""
    causes: tuple[Cause, ...]
    """The words of the program for known failures."""
    gone: re.Pattern[str]
    """The words of the program for a thing that is no longer there."""
    is_daemon: bool
    """True if a daemon keeps the containers, and limits, user and network are the daemon's."""
    takes_cdi: bool
    """True if GPUs have the names of CDI, and not NVIDIA's."""
    remove: tuple[str, ...]
    """The words that end and remove a container at once."""
    log: tuple[str, ...]
    """The options that bound what is kept of a container's output."""
    restarts_later: bool
    """True if a container that runs can get another restart policy."""
    pulling: re.Pattern[str]
    """Finds a layer in what a pull says."""
    pulled: re.Pattern[str] | None
    """Finds what a pull says of a layer that is there; None if it does not tell."""

    @property
    def no_gpus(self) -> str:
        """The repair where containers get no GPUs."""
        return CDI if self.takes_cdi else TOOLKIT


_FULL = r"no space left on device"
_GPU = Cause(
    r"nvidia-container-cli: (.+)",
    "the container cannot have its GPUs: {0}",
    "trtspec doctor shows what this machine has",
)

DOCKER = Dialect(
    name="docker",
    install="install Docker Engine: docs.docker.com/engine/install, or podman",
    causes=(
        Cause(
            r"permission denied while trying to connect",
            "its daemon does not let this user in",
            "sudo usermod -aG docker $USER, and log in again",
        ),
        Cause(
            r"Cannot connect to the Docker daemon|error during connect|failed to connect to the docker API",
            "its daemon does not answer",
            "start it: sudo systemctl start docker",
        ),
        Cause(
            r"could not select device driver|unresolvable CDI devices", "containers get no GPUs here", TOOLKIT
        ),
        Cause(
            r"nvidia-container-cli: .*(?:bpf_prog_query|cgroup|device rules)",
            "rootless docker may not give a container its GPUs",
            "sudo nvidia-ctk config --set nvidia-container-cli.no-cgroups --in-place",
        ),
        _GPU,
        Cause(
            r'mount config for type "bind": .*permission denied',
            "its daemon runs as root and cannot read a folder, perhaps because of NFS with root_squash",
            "put the build and TRTSPEC_CACHE on a local disk, or use rootless podman",
        ),
        Cause(_FULL, "docker's disk is full", "docker system df shows what uses it"),
        Cause(r"No such image: (\S+)", "it has no {0}", "run the same command again, which pulls it"),
    ),
    gone=re.compile(
        r"No such (container|image|object)|is not running|removal of container .* already in progress"
    ),
    is_daemon=True,
    takes_cdi=False,
    remove=("rm", "--force"),
    log=("--log-driver", "json-file", "--log-opt", "max-size=50m", "--log-opt", "max-file=3"),
    restarts_later=True,
    # What it says of a layer where no terminal shows how much of it is there.
    pulling=re.compile(
        r"^(\w+): (?:Pulling fs layer|Waiting|Verifying Checksum|Download complete|Already exists"
        r"|Pull complete)"
    ),
    pulled=re.compile(r": (?:Already exists|Pull complete)$"),
)

_SUBORDINATE = (
    "sudo usermod --add-subuids 100000-165535 --add-subgids 100000-165535 $USER && podman system migrate"
)
NO_SUBORDINATES = (
    "this user has no subordinate ids, which podman needs for the users of images",
    _SUBORDINATE,
)
NO_SESSION = (
    "podman finds no systemd of this user, which runs its health checks",
    "log in as this user, and not with su or sudo; or: loginctl enable-linger, and export XDG_RUNTIME_DIR",
)

PODMAN = Dialect(
    name="podman",
    install="install podman: podman.io/docs/installation",
    causes=(
        Cause(
            r"newuidmap.*(?:not found|[Pp]ermission denied|not permitted)",
            "rootless podman lacks newuidmap",
            "install it: uidmap of Debian and Ubuntu, shadow-utils of Fedora and RHEL",
        ),
        Cause(r"insufficient UIDs or GIDs|no sub[ug]id ranges found", *NO_SUBORDINATES),
        Cause(
            r"stat nvidia\.com/gpu\S+: no such file",
            "it has no CDI, which podman needs for GPUs",
            "podman 4.1 or newer",
        ),
        Cause(r"CDI device", "containers get no GPUs here", CDI),
        _GPU,
        Cause(
            r"container-init binary not found|could not find \"catatonit|finding catatonit binary",
            "it lacks catatonit, which runs as a container's first process",
            "install catatonit",
        ),
        Cause(
            r"could not find \"?(slirp4netns|pasta)",
            "rootless podman has no network for containers: {0} is missing",
            "install slirp4netns, or passt for podman 5",
        ),
        Cause(r"systemd connection to \w+ healthchecks|dial unix .*/systemd/private", *NO_SESSION),
        Cause(
            r"'overlay' is not supported over (\S+)",
            "podman cannot store images on a file system of this kind, {0}",
            "name a local folder as graphroot in ~/.config/containers/storage.conf",
        ),
        Cause(
            r"rlimit.*[Oo]peration not permitted",
            "the limits in containers.conf exceed those of this user",
            "lower default_ulimits in containers.conf, or raise the user's in /etc/security/limits.conf",
        ),
        Cause(_FULL, "podman's disk is full", "podman system df shows what uses it"),
        Cause(r"(\S+): image not known", "it has no {0}", "run the same command again, which pulls it"),
    ),
    gone=re.compile(
        r"no such (container|object)|no container with (name or )?ID|image not known|is not running"
        r"|only create exec sessions on running containers|container state improper"
    ),
    is_daemon=False,
    takes_cdi=True,
    # It would give a container ten seconds to end by itself.
    remove=("rm", "--force", "--time", "0"),
    # Its json-file is another name of this, which knows no number of files.
    log=("--log-driver", "k8s-file", "--log-opt", "max-size=150mb"),
    # `podman update` knows --restart from 5.1 on.
    restarts_later=False,
    pulling=re.compile(r"^Copying blob (?:sha256:)?(\w+)"),
    pulled=None,
)
