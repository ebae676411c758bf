"""Gathers what a plan depends on beside the recipe."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import trtspec.pipeline.repository
import trtspec.serving
from trtspec.base.digest import digest_of
from trtspec.base.errors import TrtspecError, UnavailableError
from trtspec.base.progress import Progress
from trtspec.base.roles import Role
from trtspec.checkpoint.calibrate.dataset import Dataset, find_dataset
from trtspec.models.common import num_common
from trtspec.models.headers_only import digests_of_blobs, digests_of_weights, fetch_headers, has_headers
from trtspec.models.heads.reading import head_tensors, read_head
from trtspec.models.hub import cached_folder, check_access, fetch
from trtspec.models.layers import draft_of
from trtspec.models.published import published
from trtspec.models.source import Source, read_source
from trtspec.models.tokenizer import TOKENIZER_FILES
from trtspec.pipeline.machine.host import Host
from trtspec.pipeline.plan.facts import DatasetFacts, HeadFacts, ModelFacts, PlanFacts, SearchFacts
from trtspec.pipeline.run.digests import FileDigests
from trtspec.recipe.layers import AUTO
from trtspec.recipe.loader import LoadedRecipe
from trtspec.recipe.schema import Draft, RecipeModel

Bring = Callable[["str", "str | None", Progress], Path]
_HUB_TIMEOUT_S = 1.5


def gather(
    loaded: LoadedRecipe,
    host: Host,
    digests: FileDigests | None,
    weights: Collection[Role],
    watch: Progress,
    *,
    offline: bool = False,
) -> PlanFacts:
    """Reads the models and the code that repositories carry, and returns the facts.

    `weights` are the roles whose weights are needed, and downloaded if they are not here. Without `digests`
    no file of a model is hashed, and the facts do not tell whether a step is done. With `offline`, which goes
    with neither, a published model that the Hub does not give is what trtspec's table says of it. Raises
    ModelError, TensorError or DatasetError for what cannot be read, and UnavailableError for a disk without
    room.
    """
    has_head, models = loaded.recipe.speculation.method.is_head, dict[Role, ModelFacts]()
    not_given = refused(loaded, offline=offline)
    for role, model in loaded.recipe.models.items():
        known = published(model.model, model.revision) if offline and role in not_given else None
        if known:
            models[role] = _of_table(loaded, model, known, not_given[role])
        elif role in not_given and not isinstance(not_given[role], UnavailableError):
            raise not_given[role]
        elif role is Role.TARGET or not has_head:
            bring = fetch if role in weights else fetch_headers
            models[role] = _model(loaded, model, digests, bring, watch)
    draft, head = loaded.recipe.draft, None
    if draft and has_head:
        head = _head(loaded, draft, models[Role.TARGET].source, digests, watch)
    elif draft:
        facts = _of_layers(loaded, draft, models[Role.DRAFT], digests)
        is_read = not (models[Role.TARGET].not_read or facts.not_read)
        common = num_common(models[Role.TARGET].source, facts.source) if is_read else 0
        models[Role.DRAFT] = replace(facts, num_common=common)
    return PlanFacts(models, host, _serving_code(), head)


def refused(loaded: LoadedRecipe, *, offline: bool = False) -> dict[Role, TrtspecError]:
    """Returns why the Hub does not give those models that this machine lacks; it is asked for all at once."""
    lacking = {
        role: model
        for role, model in loaded.recipe.models.items()
        if isinstance(loaded.model_location(model), str) and _is_lacking(model, offline=offline)
    }
    with ThreadPoolExecutor(len(Role)) as pool:
        found = {role: pool.submit(_refusal, model) for role, model in lacking.items()}
        return {role: error for role, future in found.items() if (error := future.result())}


def _is_lacking(model: RecipeModel, *, offline: bool) -> bool:
    if cached_folder(model.model, model.revision) is None:
        return True
    known = offline and published(model.model, model.revision)
    return bool(known) and not has_headers(model.model, model.revision)


def _refusal(model: RecipeModel) -> TrtspecError | None:
    try:
        check_access(model.model, model.revision, _HUB_TIMEOUT_S)
    except TrtspecError as error:
        return error
    return None


def _of_table(loaded: LoadedRecipe, model: RecipeModel, source: Source, error: TrtspecError) -> ModelFacts:
    """Returns the facts about a published model that cannot be had; its texts are not asked for either."""
    calibration = None if source.scheme else loaded.recipe.calibration(model)
    texts = Dataset(calibration.dataset, Path(calibration.dataset), None) if calibration else None
    dataset = DatasetFacts(texts, None) if texts else None
    return ModelFacts(model.model, None, source, None, dataset, not_read=error)


def _model(
    loaded: LoadedRecipe, model: RecipeModel, digests: FileDigests | None, bring: Bring, watch: Progress
) -> ModelFacts:
    location = loaded.model_location(model)
    folder = location if isinstance(location, Path) else bring(location, model.revision, watch)
    source = read_source(folder)
    names = [folder / name for name in TOKENIZER_FILES if (folder / name).is_file()]
    # A server of others gets a model of the Hub by its commit: nothing here reads its weights.
    is_told = folder != location and not loaded.recipe.runner.builds_engines
    told = {**digests_of_weights(folder), **(digests_of_blobs(folder) if is_told else {})}
    found = _digests(model.model, (*source.files, *names), digests, told)
    dataset = None if source.scheme else _dataset(loaded, model, digests)
    return ModelFacts(model.model, None if folder == location else folder.name, source, found, dataset)


def _digests(
    name: str, files: Iterable[Path], digests: FileDigests | None, known: Mapping[str, str]
) -> dict[str, str] | None:
    """Returns the digests of a model's files by their names; `known` are those that need no reading."""
    if digests is None:
        return None
    named = {file.name: file for file in files}
    read = digests.of_all([file for each, file in named.items() if each not in known], name)
    return {each: known[each] if each in known else read[file] for each, file in named.items()}


def _head(
    loaded: LoadedRecipe,
    draft: Draft,
    target: Source,
    digests: FileDigests | None,
    watch: Progress,
) -> HeadFacts:
    """Returns the facts of a head, which goes on with the target's states: its sizes are the target's.

    It is downloaded whole: it is small, and which tokens it knows is among its tensors.
    """
    location = loaded.model_location(draft)
    folder = location if isinstance(location, Path) else fetch(location, draft.revision, watch)
    head = read_head(folder)
    tensors, layer = head_tensors(head), head.layer or {"num_hidden_layers": 0}
    source = replace(
        target,
        folder=folder,
        vocab_size=head.draft_vocab_size,
        num_hidden_layers=layer["num_hidden_layers"],
        num_attention_heads=layer.get("num_attention_heads", target.num_attention_heads),
        num_key_value_heads=layer.get("num_key_value_heads", target.num_key_value_heads),
        head_size=layer.get("head_dim", target.head_size),
        scheme=None,
        tensors=tensors,
    )
    files = {folder / "config.json", *(tensor.file for tensor in tensors.values())}
    found = _digests(draft.model, sorted(files), digests, {})
    return HeadFacts(draft.model, None if folder == location else folder.name, head, source, found)


def _of_layers(
    loaded: LoadedRecipe, draft: Draft, facts: ModelFacts, digests: FileDigests | None
) -> ModelFacts:
    """Returns the facts of the layers of the target that the draft is, if it is."""
    kept = replace(facts, source=draft_of(facts.source, draft))
    if draft.layers_of_target != AUTO:
        return kept
    texts = loaded.recipe.layer_texts
    dataset = find_dataset(texts, loaded.path.parent) if texts else None
    digest = digests.of(dataset.file) if digests and dataset else None
    return replace(kept, search=SearchFacts(DatasetFacts(dataset, digest) if dataset else None))


def _dataset(loaded: LoadedRecipe, model: RecipeModel, digests: FileDigests | None) -> DatasetFacts | None:
    calibration = loaded.recipe.calibration(model)
    if calibration is None:
        return None
    dataset = find_dataset(calibration.dataset, loaded.path.parent)
    return DatasetFacts(dataset, digests.of(dataset.file) if digests else None)


def _serving_code() -> str:
    """Returns the digest of the Python files that `write_repository` copies or generates from."""
    rooms = [
        Path(room) for package in (trtspec.serving, trtspec.pipeline.repository) for room in package.__path__
    ]
    files = sorted(file for room in rooms for file in room.rglob("*.py"))
    return digest_of([[file.name, hashlib.sha256(file.read_bytes()).hexdigest()] for file in files])
