"""Collects the facts for `trtspec doctor`: this machine, and which of a recipe's models it has."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import KW_ONLY, dataclass
from itertools import chain
from pathlib import Path

from trtspec.backends.table import backends
from trtspec.base.errors import TrtspecError
from trtspec.base.roles import Role
from trtspec.models.download import cached_folder, check_access, check_connection
from trtspec.models.source import read_source
from trtspec.pipeline.containers.engine import ContainerEngine, find_engine
from trtspec.pipeline.machine.devices import Gpu, find_gpus
from trtspec.pipeline.machine.host import COMMAND, Disk, engine_versions, find_disk, installed
from trtspec.recipe.loader import LoadedRecipe

_HUB_TIMEOUT_S = 1.5
_TRITON = Path("/opt/tritonserver")


@dataclass(frozen=True, slots=True)
class TritonImage:
    """The Triton of NVIDIA's image, if this is inside it."""

    version: str
    tag: str | None
    """The image's tag (YY.MM); None if it is not known."""
    tensorrt_llm_backend: bool


@dataclass(frozen=True, slots=True)
class ModelState:
    """The state of a recipe's model on this machine."""

    name: str
    _: KW_ONLY
    here: bool = False
    """True if its folder is on this machine."""
    parameters: int | None = None
    """None if its headers are not on this machine."""
    problem: TrtspecError | None = None
    """The reason why it cannot be read or downloaded."""


@dataclass(frozen=True, slots=True)
class Machine:
    """The facts about this machine; `doctor.py` judges them."""

    python: str
    versions: Mapping[str, str]
    gpus: tuple[Gpu, ...]
    trtllm_build: str | None
    triton: TritonImage | None
    wheel: TrtspecError | None
    """The reason why the wheel's tritonserver cannot be used; None if it can."""
    container_engine: ContainerEngine
    hub: TrtspecError | None
    """The reason why the Hub cannot be used; None if it can."""
    disk: Disk
    """The disk of the build directory."""
    models: Mapping[Role, ModelState]


def look(loaded: LoadedRecipe | None, output: Path, wheel: TrtspecError | None) -> Machine:
    """Collects everything in parallel; `output` is the folder of a build, which need not be there.

    `wheel` becomes part of the result.
    """
    roles = loaded.recipe.models if loaded else {}
    servers = chain.from_iterable(backend.packages for backend in backends())
    with ThreadPoolExecutor(8) as pool:
        models = {role: pool.submit(_model, loaded, role) for role in roles if loaded}
        gpus, containers = pool.submit(find_gpus), pool.submit(find_engine)
        versions = pool.submit(engine_versions)
        hub = pool.submit(_hub) if loaded is None else None
        return Machine(
            python=platform.python_version(),
            versions=installed(("trtspec", "torch", "numba", *servers)) | versions.result(),
            gpus=gpus.result(),
            trtllm_build=shutil.which(COMMAND),
            triton=_triton(_TRITON),
            wheel=wheel,
            container_engine=containers.result(),
            hub=hub.result() if hub else None,
            disk=find_disk(output),
            models={role: model.result() for role, model in models.items()},
        )


def _model(loaded: LoadedRecipe, role: Role) -> ModelState:
    location, model = loaded.locations[role], loaded.recipe.models[role]
    folder = cached_folder(location, model.revision)
    try:
        if folder is not None:
            return ModelState(model.model, here=True, parameters=read_source(folder).parameters)
    except TrtspecError as error:
        if folder == location:
            return ModelState(model.model, problem=error)
    try:
        check_access(str(location), model.revision, _HUB_TIMEOUT_S)
    except TrtspecError as error:
        return ModelState(model.model, problem=error)
    return ModelState(model.model)


def _hub() -> TrtspecError | None:
    try:
        check_connection(_HUB_TIMEOUT_S)
    except TrtspecError as error:
        return error
    return None


def _triton(root: Path) -> TritonImage | None:
    if not (root / "bin/tritonserver").is_file():
        return None
    version = root / "TRITON_VERSION"
    return TritonImage(
        version=version.read_text().strip() if version.is_file() else "unknown",
        tag=os.environ.get("NVIDIA_TRITON_SERVER_VERSION"),
        tensorrt_llm_backend=(root / "backends/tensorrtllm").is_dir(),
    )
