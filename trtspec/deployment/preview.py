"""Commands of a shell, or a Compose file, that serve a deployment, to be pasted.

Neither has a secret in it: each is a variable, which the first lines tell how to make.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

from trtspec.base import yaml11
from trtspec.deployment.build import DeployedBuild, default_image
from trtspec.deployment.deployment import Deployment
from trtspec.deployment.place import ANY, LaunchCommand
from trtspec.gateway.ports import address_of, in_url
from trtspec.pipeline.containers.compose import service
from trtspec.pipeline.containers.container import Container, Mount
from trtspec.pipeline.containers.engine import ContainerEngine
from trtspec.pipeline.containers.state import pull_commands
from trtspec.serving.triton.agreement import NAMING

_KEY = "TRTSPEC_KEY"
SHOWN_KEY = f"${{{_KEY}}}"
"""Stands for the key of a deployment that is only shown: a shell, and Compose, put the variable there."""

_BREAK = " \\\n    "


def local_commands(deployment: Deployment, launch: Callable[[Deployment], LaunchCommand]) -> str:
    """Returns the commands that serve on this machine."""
    deployment = replace(deployment, key=SHOWN_KEY)
    command = launch(deployment)
    variables = (f"{name}={_quoted(value)}" for name, value in command.environment.items())
    folder = f"cd {shlex.quote(str(deployment.build))} &&"
    server = _BREAK.join([folder, *variables, *_broken(command.argv)])
    api = ["# in another shell, with the same variables:"] if deployment.has_api_process else []
    return "\n".join([*_variables(deployment), server, *api, *_api(deployment)])


def container_commands(
    deployment: Deployment,
    make: Callable[[Deployment], Container],
    engine: ContainerEngine,
    how: Sequence[str],
) -> str:
    """Returns the commands that serve in a container, whose image they fetch first."""
    deployment = replace(deployment, key=SHOWN_KEY)
    made = make(deployment)
    program = engine.program.name
    options = (" ".join(map(_quoted, option)) for option in made.options(engine))
    ran = (shlex.join((program, "run", *how)), *options, *_broken((made.image, *made.command)))
    pulls = (shlex.join((program, *words)) for words in pull_commands(made.image))
    return "\n".join([*_variables(deployment), *pulls, _BREAK.join(ran), *_api(deployment)])


def compose_file(
    deployment: Deployment,
    make: Callable[[Deployment], Container],
    engine: ContainerEngine,
    build: DeployedBuild,
) -> str:
    """Returns a Compose file; OpenAI's API in front of Triton is in an image that has trtspec."""
    deployment = replace(deployment, key=SHOWN_KEY)
    made = make(deployment)
    stop_s = deployment.grace_s + deployment.kind.stop_s
    server = {**service(made, engine), "restart": "on-failure:5", "stop_grace_period": f"{stop_s:.0f}s"}
    services, notes = {"server": server}, [f"# {line}" for line in _variables(deployment)]
    if deployment.has_api_process:
        image = build.recipe.kubernetes.image or default_image(build.recipe, version("trtspec"))
        keys = [Mount(deployment.api_keys.resolve(), read_only=True)] if deployment.api_keys else []
        own = Container(
            image,
            f"{made.name}-openai",
            deployment.serve_words(f"http://server:{deployment.ports.http}", ANY),
            Path("/tmp"),  # noqa: S108
            (Mount(deployment.build, read_only=True), *keys),
            secrets=(NAMING,),
            publish=published(deployment, deployment.ports.openai),
        )
        ready = "service_healthy" if "healthcheck" in server else "service_started"
        after = {"depends_on": {"server": {"condition": ready}}}
        services["openai"] = {**service(own, engine), "restart": "unless-stopped", **after}
        notes.append(f"# {image} has trtspec in it: make image IMAGE={image}")
    # A project has a name of its own, without dots.
    text = yaml11.dump({"name": re.sub(r"[^a-z0-9_-]", "-", made.name), "services": services})
    # Compose puts variables in place of each `$` that is not doubled.
    text = text.replace("$", "$$").replace(f"${SHOWN_KEY}", SHOWN_KEY.replace("}", ":?}"))
    return "\n".join([*notes, text]).rstrip()


def published(deployment: Deployment, *ports: int | None) -> tuple[str, ...]:
    """Returns the values of `--publish` for ports that are the same in a container, on the host's address."""
    outside = in_url(address_of(deployment.host))
    return tuple(f"{outside}:{port}:{port}" for port in ports)


def _api(deployment: Deployment) -> Iterator[str]:
    if deployment.has_api_process:
        yield _BREAK.join(_broken(deployment.serve_words()))


def _variables(deployment: Deployment) -> Iterator[str]:
    """Yields the lines that make the variables of a deployment's secrets."""
    if deployment.is_triton:
        yield from (f"export {name}=$(openssl rand -hex 32)" for name in (_KEY, NAMING))
    elif deployment.api_keys and deployment.kind.key_variable:
        file = shlex.quote(str(deployment.api_keys.resolve()))
        yield f'export {deployment.kind.key_variable}="$(cat {file})"'


def _broken(words: Sequence[str]) -> Iterator[str]:
    """Yields the lines of a command, of which each but the first begins with an option."""
    line: list[str] = []
    for word in words:
        if word.startswith("--") and line:
            yield " ".join(line)
            line = []
        line.append(_quoted(word))
    yield " ".join(line)


def _quoted(word: str) -> str:
    """Returns a word for a shell, which puts the variable in place of `SHOWN_KEY`."""
    if SHOWN_KEY not in word:
        return shlex.quote(word)
    return '"' + SHOWN_KEY.join(re.sub(r'([\\"`$])', r"\\\1", part) for part in word.split(SHOWN_KEY)) + '"'
