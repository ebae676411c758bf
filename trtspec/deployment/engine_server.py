"""The command line that starts another engine's own server, and the models that it loads."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath

from trtspec.backends.launch import ServerLaunch
from trtspec.backends.table import backend_named
from trtspec.base.errors import UnavailableError
from trtspec.base.files import write_atomically
from trtspec.deployment.build import DeployedBuild
from trtspec.deployment.deployment import Deployment, ServerKind, kind_of
from trtspec.deployment.place import ANY, LaunchCommand
from trtspec.gateway.openai.keys import check_keys
from trtspec.pipeline.containers.container import Container, Mount
from trtspec.pipeline.machine.host import installed_beside, installed_in

_BUILD = "{build}"


@dataclass(frozen=True, slots=True)
class EngineServerLaunch:
    """The start of a server that loads the models itself: folders here, or the Hub's."""

    launch: ServerLaunch
    hub: Path | None = None
    """The cache of the Hugging Face Hub; None where all models have folders."""
    key: str | None = field(default=None, repr=False)
    """Opens the server's API. Without a key the API is open."""

    def installed(self, deployment: Deployment, python: Path | None) -> LaunchCommand:
        """Returns the command for this machine, with a Python or a program of PATH.

        Raises `UnavailableError` where neither is there.
        """
        argv = (*self._program(python), *self._options(deployment, deployment.host))
        return LaunchCommand(argv, self.launch.environment, self._secrets)

    def in_container(self, deployment: Deployment, gpus: int) -> LaunchCommand:
        """Returns the command for a container of the vendor's image."""
        argv = (*self.launch.program, *self._options(deployment, ANY))
        return LaunchCommand(argv, self.launch.environment, self._secrets)

    def mounted(self, made: Container) -> Container:
        """Returns a container that sees the models; the Hub's token is that of whoever runs its line. Pure.

        What is in the build it sees already.
        """
        # In the Hub's cache the files of a snapshot are links to what is beside it.
        models = map(Path, self.launch.models)
        found = [path for path in models if not path.is_relative_to(made.folder)]
        folders = {path.parents[1] if path.parent.name == "snapshots" else path: None for path in found}
        mounts = (*made.mounts, *(Mount(folder, read_only=True) for folder in folders))
        if self.hub is None:
            return replace(made, mounts=mounts)
        return replace(
            made,
            mounts=(*mounts, Mount(self.hub)),
            environment={**made.environment, "HF_HUB_CACHE": str(self.hub)},
            secrets=(*made.secrets, "HF_TOKEN"),
        )

    def check_image(self, build: DeployedBuild) -> None:
        self.prepare(build.folder)

    def prepare(self, build: Path) -> None:
        """Writes what the build lacks of the launch's files; raises `UnavailableError` without a folder."""
        if self.hub:
            self.hub.mkdir(parents=True, exist_ok=True)
        for name, text in self.launch.files.items():
            if not (build / name).exists():
                write_atomically(build / name, text)
        for model in map(Path, self.launch.models):
            if not model.is_dir():
                raise UnavailableError(model, "the folder of a model is missing", "trtspec build RECIPE")

    @property
    def kind(self) -> ServerKind:
        return kind_of(self.launch.backend)

    @property
    def hub_variables(self) -> Mapping[str, str]:
        """The variables that a server on this machine needs to load them: where the Hub is, and a token."""
        return {name: value for name, value in os.environ.items() if self.hub and name.startswith("HF_")}

    @property
    def _secrets(self) -> dict[str, str]:
        variable = backend_named(self.launch.backend).key_variable
        return {variable: self.key} if self.key and variable else {}

    def _options(self, deployment: Deployment, host: str) -> tuple[str, ...]:
        assert deployment.ports.openai is not None, "another engine's server has only OpenAI's API"
        return server_options(
            self.launch, deployment.build, host, deployment.ports.openai, deployment.grace_s
        )

    def _program(self, python: Path | None) -> tuple[str, ...]:
        """Returns what stands before the options: the module of a Python, or a program of PATH."""
        launch, name = self.launch, backend_named(self.launch.backend).title
        if python is not None:
            if shutil.which(python) is None:
                raise UnavailableError(python, "is no program", f"name the Python of {name}")
            # The server runs in the build's folder; a name alone is one of PATH.
            named = python if python.parent == Path() else python.absolute()
            return (str(named), "-m", launch.module, *launch.module_words)
        if shutil.which(launch.program[0]) is None:
            repair = f"install {name} {launch.release} in an environment, and name its Python:"
            image = "trtspec deploy RECIPE --container serves it in the vendor's image"
            raise UnavailableError(launch.program[0], "is not on PATH", f"{repair} --python PATH; or {image}")
        return launch.program


def engine_server_launch(
    build: DeployedBuild, launch: ServerLaunch, *, plain: bool = False, api_keys: Path | None = None
) -> EngineServerLaunch:
    """Returns how a build's server is started, with `plain` without drafts.

    What has no folder here is the Hub's. Raises `UnavailableError` where the server takes no such keys.
    """
    from huggingface_hub.constants import HF_HUB_CACHE

    key = _key(launch, api_keys) if api_keys else None
    hub = Path(HF_HUB_CACHE) if len(launch.models) < len(build.recipe.models) else None
    return EngineServerLaunch(launch.without_drafts() if plain else launch, hub, key)


def server_options(
    launch: ServerLaunch, build: PurePath, host: str, port: int, grace_s: float
) -> tuple[str, ...]:
    """Returns the server's options, of which those of the build name the folder of its files."""
    drain = backend_named(launch.backend).drain_option
    own = (argument.replace(_BUILD, str(build)) for argument in launch.arguments)
    waits = (drain, f"{max(grace_s, 1):.0f}") if drain else ()
    return (*own, *waits, launch.host_option, host, launch.port_option, str(port))


def difference(launch: ServerLaunch, started: Sequence[str]) -> str | None:
    """Returns what to say where the release that `started` runs is another than the launch's.

    None where they are the same, or where its Python does not tell. It is no error: most arguments are those
    of other releases too, and one that the server does not know it refuses itself, by name.
    """
    backend = backend_named(launch.backend)
    found = _installed(backend.packages, started)
    if found in (None, launch.release):
        return None
    known = found in backend.versions
    repair = f"write release: {found}, and build again" if known else f"install {launch.release}"
    return f"{backend.title} {found} is installed, but the build is for {launch.release}: {repair}"


def _installed(packages: Sequence[str], started: Sequence[str]) -> str | None:
    """Returns the version of the first of these packages that a command's Python has, without a build's mark.

    The command is a console script, or a Python with `-m`.
    """
    program, option, *_ = *started, ""
    path = shutil.which(program)
    if path is None:
        return None
    ask = installed_in if option == "-m" else installed_beside
    versions = ask(Path(path), packages)
    return next((version.partition("+")[0] for version in versions.values()), None)


def _key(launch: ServerLaunch, file: Path) -> str:
    """Returns the key with which a server is to be asked; raises `UnavailableError` where it takes none."""
    keys, backend = check_keys(file), backend_named(launch.backend)
    if backend.key_variable is None:
        problem = (
            f"{backend.title} takes its key only on the command line, which every user of this machine can "
            "read"
        )
        raise UnavailableError(file, problem, "put a proxy that asks for keys in front of it")
    if len(keys) > 1:
        problem = f"has {len(keys)} keys, but {backend.title} takes only one"
        raise UnavailableError(file, problem, "write one API key")
    return keys[0]
