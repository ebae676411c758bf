"""The facts that a plan depends on beside the recipe, and how they are gathered."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import trtspec.pipeline.repository
import trtspec.serving
from trtspec.base.digest import digest_of
from trtspec.base.errors import TrtspecError, UnavailableError
from trtspec.base.progress import Progress
from trtspec.base.roles import Role
from trtspec.checkpoint.calibrate.texts import Dataset, find_dataset
from trtspec.models.download import (
    cached_folder,
    check_access,
    digests_of_blobs,
    digests_of_weights,
    fetch,
    headers_of,
    is_whole,
    local_folder,
)
from trtspec.models.heads.head import HeadDescription
from trtspec.models.heads.reading import read_head, read_model
from trtspec.models.layers import draft_of, num_common
from trtspec.models.published import published
from trtspec.models.source import CONFIGS, INDEX, Source, has_file
from trtspec.models.tokenizer import TOKENIZER_FILES, tokenizer_files
from trtspec.pipeline.machine.host import Host
from trtspec.pipeline.run.records import FileDigests
from trtspec.recipe.layers import AUTO
from trtspec.recipe.loader import LoadedRecipe
from trtspec.recipe.schema import Draft, Recipe, RecipeModel


@dataclass(frozen=True, slots=True)
class DatasetFacts:
    """The texts that a model is calibrated with, or that the layers of a draft are chosen by."""

    dataset: Dataset
    digest: str | None
    """The SHA-256 of the file; None if it was not asked for."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """The facts about one model."""

    name: str
    """The model's name in the recipe."""
    revision: str | None
    """The commit of a Hub model; None for a folder."""
    source: Source
    """If the layers of a draft are searched, the source has as many layers as the draft will have; the build
    finds out which.
    """
    digests: Mapping[str, str] | None
    """The SHA-256 of each file that a build reads, by its name; None if they were not asked for."""
    dataset: DatasetFacts | None = None
    """None for a model that is not calibrated."""
    search: DatasetFacts | None = None
    """The texts that the layers of a draft are searched by; None too for trtspec's own texts."""
    num_common: int = 0
    """The number of values in a draft's weights that its target has too, as far as both are on this machine.
    """
    adapter: Mapping[str, str] | None = field(default_factory=dict)
    """The SHA-256 of each file of its LoRA adapter, by its path; None if they were not asked for."""
    not_read: TrtspecError | None = None
    """The reason why the model's files cannot be had, and the facts are those of trtspec's table of published
    models; None if its files were read.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadFacts(ModelFacts):
    """The facts about a draft that is a head; its source is the target with the head's own layers alone."""

    head: HeadDescription


@dataclass(frozen=True, slots=True)
class PlanFacts:
    """All facts that planning depends on beside the recipe."""

    models: Mapping[Role, ModelFacts]
    """Lacks a draft that is a head."""
    host: Host
    serving_code: str
    """The digest of the code that a model repository carries."""
    head: HeadFacts | None = None

    @property
    def all_models(self) -> Mapping[Role, ModelFacts]:
        """The models, and the head if there is one."""
        return {**self.models, Role.DRAFT: self.head} if self.head else self.models

    @property
    def target(self) -> ModelFacts:
        return self.models[Role.TARGET]


def portable_name(name: str) -> str:
    """Returns a name of a model or a dataset for every machine: of an absolute path, only the last part."""
    return Path(name).name if Path(name).is_absolute() or name.startswith("~") else name


_HUB_TIMEOUT_S = 1.5


def gather(
    loaded: LoadedRecipe,
    host: Host,
    digests: FileDigests | None,
    weights: Collection[Role],
    watch: Progress,
    *,
    is_whole: bool = False,
    offline: bool = False,
    asks: bool = True,
) -> PlanFacts:
    """Reads the models and the code that repositories carry, and returns the facts.

    `weights` are the roles whose weights are needed, and downloaded if they are not here. Without `digests`
    no file of a model is hashed, and the facts do not tell whether a step is done. With `offline`, which goes
    with neither, a published model that the Hub does not give is what trtspec's table says of it. Without
    `asks`, which goes with `offline`, the Hub is not asked. Raises ModelError, TensorError or DatasetError
    for what cannot be read, and UnavailableError for a disk without room.
    """
    recipe, here, has_head = loaded.recipe, loaded.path.parent, loaded.recipe.speculation.method.is_head
    known = _published(recipe) if offline else {}
    not_given = refused(loaded, known) if asks else absent(loaded)
    models, head = dict[Role, ModelFacts](), None
    for role, location in loaded.locations.items():
        model, error, is_head = recipe.models[role], not_given.get(role), has_head and role is Role.DRAFT
        calibration = recipe.calibration(model)
        texts = calibration.dataset if calibration else None
        adapter = _adapter(model, here, digests)
        if error and role in known and not is_head:
            # Its texts are not asked for either.
            own = Dataset(texts, Path(texts), None) if texts and not known[role].scheme else None
            dataset = DatasetFacts(own, None) if own else None
            models[role] = ModelFacts(
                model.model, None, known[role], None, dataset, adapter=adapter, not_read=error
            )
            continue
        if error and not (asks and isinstance(error, UnavailableError)):
            raise error
        # A head is downloaded whole: it is small, and which tokens it knows is among its tensors.
        folder = (
            fetch(location, model.revision, watch, weights=role in weights or is_head)
            if asks
            else local_folder(location, model.revision, is_head=is_head)
        )
        commit = None if folder == location else folder.name
        if is_head:
            head = _head(model.model, commit, folder, models[Role.TARGET].source, digests)
            continue
        facts = _model(model.model, commit, folder, digests, is_whole=is_whole)
        dataset = None if facts.source.scheme else _dataset(texts, here, digests, asks=asks)
        models[role] = replace(facts, dataset=dataset, adapter=adapter)
    if recipe.draft and not has_head:
        models[Role.DRAFT] = _draft(recipe, recipe.draft, models, here, digests, asks=asks)
    return PlanFacts(models, host, _serving_code(digests), head)


def _published(recipe: Recipe) -> dict[Role, Source]:
    """Returns those of the recipe's models that trtspec's table has, without their files."""
    found = {role: published(model.model, model.revision) for role, model in recipe.models.items()}
    return {role: source for role, source in found.items() if source}


def refused(loaded: LoadedRecipe, known: Collection[Role] = ()) -> dict[Role, TrtspecError]:
    """Returns why the Hub does not give those models that this machine lacks; it is asked for all at once.

    A model that is `known` is lacking too where only some of its files are here.
    """
    models = loaded.recipe.models
    on_hub = [role for role, location in loaded.locations.items() if isinstance(location, str)]
    lacking = [role for role in on_hub if _is_lacking(models[role], is_known=role in known)]
    with ThreadPoolExecutor(len(Role)) as pool:
        found = {role: pool.submit(_refusal, models[role]) for role in lacking}
        return {role: error for role, future in found.items() if (error := future.result())}


def absent(loaded: LoadedRecipe) -> dict[Role, TrtspecError]:
    """Returns why models of the Hub cannot be looked at on this machine; the Hub is not asked."""
    found, recipe = dict[Role, TrtspecError](), loaded.recipe
    for role, location in loaded.locations.items():
        is_head = recipe.speculation.method.is_head and role is Role.DRAFT
        try:
            local_folder(location, recipe.models[role].revision, is_head=is_head)
        except UnavailableError as error:
            found[role] = error
    return found


def _is_lacking(model: RecipeModel, *, is_known: bool) -> bool:
    folder = cached_folder(model.model, model.revision)
    return folder is None or (is_known and not is_whole(folder) and not headers_of(folder).is_dir())


def _refusal(model: RecipeModel) -> TrtspecError | None:
    try:
        check_access(model.model, model.revision, _HUB_TIMEOUT_S)
    except TrtspecError as error:
        return error
    return None


def _model(
    name: str, commit: str | None, folder: Path, digests: FileDigests | None, *, is_whole: bool
) -> ModelFacts:
    """Returns the facts about a model, without its texts; one that another server loads `is_whole`."""
    _note(folder, digests)
    source, is_told = read_model(folder, whole=is_whole), is_whole and commit is not None
    tokenizer = [folder / name for name in tokenizer_files(folder)]
    told = {**digests_of_weights(folder), **(digests_of_blobs(folder) if is_told else {})}
    known = digests.by_name((*source.files, *tokenizer), name, told) if digests else None
    return ModelFacts(name, commit, source, known)


def _note(folder: Path, digests: FileDigests | None) -> None:
    """Notes all files of a model's folder that are read, or would be read if they were there."""
    if digests:
        names = {*CONFIGS, INDEX, *TOKENIZER_FILES, *tokenizer_files(folder)}
        digests.note(folder / name for name in sorted(names))
        digests.note(folder.glob("*.safetensors"))


def _head(
    name: str, commit: str | None, folder: Path, target: Source, digests: FileDigests | None
) -> HeadFacts:
    """Returns the facts of a head; it reads the target's states, so its sizes are the target's."""
    _note(folder, digests)
    head = read_head(folder)
    tensors, layer = head.tensors, head.layer or {"num_hidden_layers": 0}
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
    known = digests.by_name(sorted(files), name, {}) if digests else None
    return HeadFacts(name, commit, source, known, head=head)


def _draft(
    recipe: Recipe,
    draft: Draft,
    models: Mapping[Role, ModelFacts],
    here: Path,
    digests: FileDigests | None,
    *,
    asks: bool,
) -> ModelFacts:
    """Returns the facts of the draft beside its target: the layers of it that it is, and what both share."""
    target, facts = models[Role.TARGET], models[Role.DRAFT]
    source = draft_of(facts.source, draft)
    common = 0 if target.not_read or facts.not_read else num_common(target.source, source)
    texts = recipe.layer_texts if draft.layers_of_target == AUTO else None
    return replace(facts, source=source, search=_dataset(texts, here, digests, asks=asks), num_common=common)


def _dataset(
    texts: str | None, here: Path, digests: FileDigests | None, *, asks: bool
) -> DatasetFacts | None:
    """Returns the facts about the file of texts that the recipe in the folder `here` names, if any."""
    if texts is None:
        return None
    dataset = find_dataset(texts, here, asks=asks)
    if digests is None:
        return DatasetFacts(dataset, None)
    digests.note([dataset.file])
    return DatasetFacts(dataset, digests.of(dataset.file))


def _adapter(model: RecipeModel, here: Path, digests: FileDigests | None) -> dict[str, str] | None:
    """Returns the digests of the LoRA adapter that the recipe in the folder `here` names for a model."""
    if "lora_dir" not in model.build:
        return {}
    if digests is None:
        return None
    folder = here / str(model.build["lora_dir"])
    digests.note(file for file in folder.rglob("*") if not file.is_dir() and has_file(file))
    return digests.of_tree(folder)


def _serving_code(digests: FileDigests | None) -> str:
    """Returns the digest of the Python files that `write_repository` copies or generates from."""
    rooms = [
        Path(room) for package in (trtspec.serving, trtspec.pipeline.repository) for room in package.__path__
    ]
    files = sorted(file for room in rooms for file in room.rglob("*.py"))
    if digests:
        digests.note(files)
    return digest_of([[file.name, hashlib.sha256(file.read_bytes()).hexdigest()] for file in files])


def digest_of_files(reads: Callable[[str], bool], *models: ModelFacts, **values: Any) -> str | None:
    """Returns a digest of `values` and of the models' files whose names `reads` accepts.

    It is None if the digests of the files are not known.
    """
    if any(model.digests is None for model in models):
        return None
    chosen = [{name: sha for name, sha in (model.digests or {}).items() if reads(name)} for model in models]
    return digest_of([chosen, values])


def is_tokenizer(name: str) -> bool:
    return name in TOKENIZER_FILES or name.endswith(".jinja") or name == "generation_config.json"


def is_safetensors(name: str) -> bool:
    return name.endswith(".safetensors")


def is_weight_or_tokenizer(name: str) -> bool:
    return is_weight(name) or name in TOKENIZER_FILES or name.endswith(".jinja")


def is_weight(name: str) -> bool:
    return name == "config.json" or name.endswith(".safetensors")


def is_config(name: str) -> bool:
    return not name.endswith(".safetensors")
