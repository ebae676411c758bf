"""Gathers what a plan depends on beside the recipe."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection
from pathlib import Path

import trtspec.repository
import trtspec.serving
from trtspec.checkpoint.calibrate.dataset import find_dataset
from trtspec.digest import digest_of
from trtspec.machine.host import Host
from trtspec.models.headers_only import digests_of_weights, fetch_headers
from trtspec.models.heads.head import HEADS
from trtspec.models.heads.reading import read_head
from trtspec.models.hub import fetch
from trtspec.models.source import read_source
from trtspec.plan.facts import TOKENIZER_FILES, DatasetFacts, Facts, HeadFacts, ModelFacts
from trtspec.progress import Progress
from trtspec.recipe.loader import LoadedRecipe
from trtspec.recipe.schema import Model
from trtspec.roles import Role
from trtspec.run.digests import FileDigests

Bring = Callable[["str", "str | None", Progress], Path]


def gather(
    loaded: LoadedRecipe, host: Host, digests: FileDigests | None, weights: Collection[Role], watch: Progress
) -> Facts:
    """Reads the models and the code that repositories carry, and returns the facts.

    `weights` are the roles whose weights are needed, and downloaded if they are not here. Without `digests`
    no file of a model is hashed, and the facts do not tell whether a step is done. Raises ModelError,
    TensorError or DatasetError for what cannot be read, and UnavailableError for a disk without room.
    """
    has_head = loaded.recipe.speculation.method.kind in HEADS
    models = {
        role: _model(loaded, model, digests, fetch if role in weights else fetch_headers, watch)
        for role, model in loaded.recipe.models.items()
        if role is Role.TARGET or not has_head
    }
    draft = loaded.recipe.draft
    head = _head(loaded, draft, digests, watch) if draft and has_head else None
    return Facts(models, host, _serving_code(), head)


def _head(loaded: LoadedRecipe, draft: Model, digests: FileDigests | None, watch: Progress) -> HeadFacts:
    """Reads a head, which is downloaded whole: its mapping of the vocabulary is among its weights."""
    location = loaded.model_location(draft)
    folder = location if isinstance(location, Path) else fetch(location, draft.revision, watch)
    head = read_head(folder)
    files = (folder / "config.json", *sorted(folder.glob("*.safetensors")))
    found = {file.name: digests.of(file) for file in files} if digests else None
    return HeadFacts(draft.model, None if folder == location else folder.name, head, found)


def _model(
    loaded: LoadedRecipe, model: Model, digests: FileDigests | None, bring: Bring, watch: Progress
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
    """Returns the digest of the Python files that `write_repository` copies or generates from."""
    rooms = [Path(room) for package in (trtspec.serving, trtspec.repository) for room in package.__path__]
    files = sorted(file for room in rooms for file in room.rglob("*.py"))
    return digest_of([[file.name, hashlib.sha256(file.read_bytes()).hexdigest()] for file in files])
