"""Puts the peculiarities of docker or podman on this machine into words; pure."""

from __future__ import annotations

from collections.abc import Iterator

from trtspec.base.findings import Finding, note
from trtspec.pipeline.containers.dialect import NO_SESSION
from trtspec.pipeline.containers.engine import ContainerEngine


def describe(engine: ContainerEngine) -> str:
    """Describes the program: its version, and whether root runs containers."""
    return f"{engine.version}{', rootless' if engine.rootless else ''}, with GPUs for containers"


def oddities(engine: ContainerEngine) -> Iterator[Finding]:
    """Yields what one should know of it, and the repair of what is wrong."""
    name = engine.program.name
    if engine.labels:
        yield note(
            "SELinux",
            f"{name} denies containers files without their SELinux label; trtspec runs its own with "
            "label=disable",
            effect="no label of a file is changed",
        )
    if engine.may_remap and engine.program.dialect.is_daemon:
        yield note(
            "user namespaces",
            f"{name} remaps the users of containers (userns-remap); trtspec runs its own with --userns host",
            effect="their files belong to this user",
        )
    if not engine.checks_health:
        yield note("health checks", "left out: " + NO_SESSION[0], NO_SESSION[1])
    if engine.ends_at_logout:
        yield logout(engine)
    if engine.store == "vfs":
        yield note(
            "image store",
            f"{name} uses vfs, which copies the whole image for each container",
            "install fuse-overlayfs, or name overlay in storage.conf; then: podman system reset"
            if not engine.program.dialect.is_daemon
            else "choose overlay2: docs.docker.com/engine/storage/drivers",
        )
    if engine.cgroups == "1" and engine.rootless:
        yield note(
            "cgroups",
            f"version 1, with which rootless {name} cannot limit resources; podman will stop supporting it",
        )


def logout(engine: ContainerEngine) -> Finding:
    """Returns the warning that what is left running does not outlive this user's sessions."""
    problem = f"rootless {engine.program.name}'s containers end when this user has logged out"
    return note("logout", problem, "loginctl enable-linger")
