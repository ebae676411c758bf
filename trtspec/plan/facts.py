"""What is found out about the world before planning; the only part of planning that looks at it."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import trtspec.repository
import trtspec.serving
from trtspec.checkpoint.calibrate.calibrate import PACKAGES as CALIBRATE_PACKAGES
from trtspec.checkpoint.calibrate.dataset import Dataset, find_dataset
from trtspec.checkpoint.hub import fetch
from trtspec.checkpoint.source import Source, read_source
from trtspec.docker.daemon import Daemon, find_daemon
from trtspec.engine.trtllm import COMMAND
from trtspec.plan.devices import Gpu, find_gpus
from trtspec.plan.digests import FileDigests, digest_of
from trtspec.plan.installed import engine_versions, installed
from trtspec.recipe import releases
from trtspec.recipe.loader import LoadedRecipe
from trtspec.recipe.schema import Model
from trtspec.watch import Watch

PACKAGES = ("trtspec", "torch", "numpy", "tokenizers", *CALIBRATE_PACKAGES)
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
)


@dataclass(frozen=True, slots=True)
class DatasetFacts:
    """What a model is calibrated with; `digest` is the file's SHA-256, None if it was not asked for."""

    dataset: Dataset
    digest: str | None


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """One model: `name` as the recipe has it, `revision` the commit of a Hub model.

    `digests` has the SHA-256 of each file that a build reads, by its name; None if they were not asked for.
    `dataset` is None for what is not calibrated.
    """

    name: str
    revision: str | None
    source: Source
    digests: Mapping[str, str] | None
    dataset: DatasetFacts | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """What planning depends on beside the recipe.

    `versions` has the packages that are installed, here or with trtllm-build; `serving_code` is the digest of
    what a repository carries. `trtllm_build` is None where there is none. `container` says whether engines
    are built in one; `daemon` is then docker's, None where there is none.
    """

    target: ModelFacts
    draft: ModelFacts
    versions: Mapping[str, str]
    serving_code: str
    trtllm_build: str | None
    gpus: tuple[Gpu, ...]
    container: bool = False
    daemon: Daemon | None = None


def gather(loaded: LoadedRecipe, digests: FileDigests | None, watch: Watch, container: bool = False) -> Facts:
    """Looks at the models (a Hub model is downloaded if need be) and at this machine.

    Without `digests` no weights are read, and nobody can tell from the facts whether a step is done.
    """
    trtllm_build = shutil.which(COMMAND)
    return Facts(
        target=_model(loaded, loaded.recipe.target, digests, watch),
        draft=_model(loaded, loaded.recipe.draft, digests, watch),
        versions=installed(PACKAGES) | (_versions_in_image(loaded) if container else engine_versions()),
        serving_code=_serving_code(),
        trtllm_build=trtllm_build,
        gpus=find_gpus() if container or trtllm_build else (),
        container=container,
        daemon=find_daemon() if container else None,
    )


def _versions_in_image(loaded: LoadedRecipe) -> dict[str, str]:
    release = releases.release_of(loaded.recipe.engine.release)
    return {"tensorrt_llm": release.version, "tensorrt": release.tensorrt}


def _model(loaded: LoadedRecipe, model: Model, digests: FileDigests | None, watch: Watch) -> ModelFacts:
    location = loaded.model_location(model)
    folder = location if isinstance(location, Path) else fetch(location, model.revision, watch)
    source = read_source(folder)
    names = [folder / name for name in TOKENIZER_FILES if (folder / name).is_file()]
    found = {file.name: digests.of(file) for file in (*source.files, *names)} if digests else None
    dataset = None if source.scheme else _dataset(loaded, model, digests)
    return ModelFacts(model.model, None if folder == location else folder.name, source, found, dataset)


def _dataset(loaded: LoadedRecipe, model: Model, digests: FileDigests | None) -> DatasetFacts | None:
    calibration = loaded.recipe.calibration(model)
    if calibration is None:
        return None
    dataset = find_dataset(calibration.dataset, loaded.path.parent)
    return DatasetFacts(dataset, digests.of(dataset.file) if digests else None)


def _serving_code() -> str:
    """The digest of the Python files that `write_repository` copies or generates from."""
    rooms = [Path(room) for package in (trtspec.serving, trtspec.repository) for room in package.__path__]
    files = sorted(file for room in rooms for file in room.rglob("*.py"))
    return digest_of([[file.name, hashlib.sha256(file.read_bytes()).hexdigest()] for file in files])
