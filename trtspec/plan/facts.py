"""What is found out about the world before planning, beside the machine that builds."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import trtspec.repository
import trtspec.serving
from trtspec.checkpoint.calibrate.dataset import Dataset, find_dataset
from trtspec.checkpoint.hub import fetch
from trtspec.checkpoint.source import Source, read_source
from trtspec.plan.digests import FileDigests, digest_of
from trtspec.plan.host import Host
from trtspec.plan.outline import digests_of_weights, outline
from trtspec.recipe.loader import LoadedRecipe
from trtspec.recipe.schema import Model
from trtspec.watch import Watch

Bring = Callable[["str", "str | None", Watch], Path]
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

    `serving_code` is the digest of what a repository carries.
    """

    target: ModelFacts
    draft: ModelFacts
    host: Host
    serving_code: str


def gather(
    loaded: LoadedRecipe, host: Host, digests: FileDigests | None, weights: Collection[str], watch: Watch
) -> Facts:
    """Looks at the models, and at what repositories carry.

    `weights` are the roles whose weights are needed, and downloaded if they are not here. Without `digests`
    nothing of the weights is read, and nobody can tell from the facts whether a step is done.
    """
    bring = {role: fetch if role in weights else outline for role in ("target", "draft")}
    return Facts(
        target=_model(loaded, loaded.recipe.target, digests, bring["target"], watch),
        draft=_model(loaded, loaded.recipe.draft, digests, bring["draft"], watch),
        host=host,
        serving_code=_serving_code(),
    )


def _model(
    loaded: LoadedRecipe, model: Model, digests: FileDigests | None, bring: Bring, watch: Watch
) -> ModelFacts:
    location = loaded.model_location(model)
    folder = location if isinstance(location, Path) else bring(location, model.revision, watch)
    source = read_source(folder)
    names = [folder / name for name in TOKENIZER_FILES if (folder / name).is_file()]
    found = None
    if digests:
        known = digests_of_weights(folder)
        files = (*source.files, *names)
        found = {file.name: known.get(file.name) or digests.of(file) for file in files}
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
