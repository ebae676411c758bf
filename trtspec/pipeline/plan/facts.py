"""The facts that a plan depends on beside the recipe, and how they are gathered."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import trtspec.pipeline.repository
import trtspec.serving
from trtspec.backends.backend import Backend
from trtspec.base.errors import TrtspecError
from trtspec.base.progress import Progress
from trtspec.base.roles import Role
from trtspec.checkpoint.calibrate.texts import Dataset, find_dataset
from trtspec.models.download import fetch, find_models, is_headers_only
from trtspec.models.heads.head import HeadDescription
from trtspec.models.heads.reading import read_head
from trtspec.models.layers import draft_of, head_on
from trtspec.models.published import published
from trtspec.models.source import SINGLE, TOKENIZER_FILES, Source, Stamp, has_file, stamps_of
from trtspec.pipeline.machine.host import Host
from trtspec.recipe.loader import LoadedRecipe
from trtspec.recipe.schema import AUTO, Recipe, RecipeModel


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
    files: Mapping[str, Path] = field(default_factory=dict)
    """The files that a build reads, by their names."""
    dataset: Dataset | None = None
    """The texts that it is calibrated with; None for a model that is not."""
    search: Dataset | None = None
    """The texts that the layers of a draft are searched by; None too for trtspec's own texts."""
    adapter: Mapping[str, Path] = field(default_factory=dict)
    """The files of its LoRA adapter, by paths that begin with the name of its folder."""
    not_read: TrtspecError | None = None
    """The reason why the model's files cannot be had, and the facts are those of trtspec's table of published
    models; None if its files were read.
    """

    @property
    def download(self) -> Callable[[Progress], Path] | None:
        """The download of its weights; None if they are on this machine."""
        return partial(fetch, self.name, self.revision) if is_headers_only(self.source.folder) else None


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
    head: HeadFacts | None = None
    serving_code: tuple[Path, ...] = ()
    """The Python files that a model repository is made of."""
    read: Mapping[Path, Stamp | None] = field(default_factory=dict)
    """The files of the models, as they were before they were read; None for one that was not there."""

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


def gather(
    loaded: LoadedRecipe,
    host: Host,
    backend: Backend,
    watch: Progress,
    *,
    offline: bool = False,
    asks: bool = True,
) -> PlanFacts:
    """Reads the models as a backend does, and returns the facts; weights are not downloaded.

    With `offline` a published model that the Hub does not give is what trtspec's table says of it. Without
    `asks`, which goes with `offline`, the Hub is not asked. Raises ModelError, TensorError or DatasetError
    for what cannot be read, and UnavailableError for a disk without room.
    """
    recipe, here, has_head = loaded.recipe, loaded.path.parent, loaded.recipe.speculation.method.is_head
    known = _published(recipe) if offline else {}
    models, head, read = dict[Role, ModelFacts](), None, dict[Path, Stamp | None]()
    for role, place in find_models(loaded, known, watch, asks=asks).items():
        model = recipe.models[role]
        if not isinstance(place, Path):
            absent = {name: known[role].folder / name for name in ("config.json", "tokenizer.json", SINGLE)}
            models[role] = ModelFacts(model.model, None, known[role], absent, not_read=place)
            continue
        commit = None if place == loaded.locations[role] else place.name
        read = stamps_of(place) | read
        if not has_head or role is Role.TARGET:
            source = backend.read(place)
            files = {file.name: file for file in source.files}
            models[role] = ModelFacts(model.model, commit, source, files)
            continue
        found = read_head(place)
        source = head_on(found, models[Role.TARGET].source)
        files = {file.name: file for file in found.files}
        head = HeadFacts(model.model, commit, source, files, head=found)
    if recipe.draft and not has_head:
        draft = models[Role.DRAFT]
        models[Role.DRAFT] = replace(draft, source=draft_of(draft.source, recipe.draft))
    models = {role: _complete(recipe, role, facts, here, asks=asks) for role, facts in models.items()}
    return PlanFacts(models, host, head, _serving_code(), read)


def _published(recipe: Recipe) -> dict[Role, Source]:
    """Returns those of the recipe's models that trtspec's table has, without their files; it has no heads."""
    found = {role: published(model.model, model.revision) for role, model in recipe.models.items()}
    if recipe.speculation.method.is_head:
        found.pop(Role.DRAFT, None)
    return {role: source for role, source in found.items() if source}


def _complete(recipe: Recipe, role: Role, facts: ModelFacts, here: Path, *, asks: bool) -> ModelFacts:
    """Returns the facts with the adapter, and the texts for the calibration and the choice of layers."""
    model, draft = recipe.models[role], recipe.draft
    facts = replace(facts, adapter=_adapter(model, here))
    calibration = recipe.calibration(model)
    texts = calibration.dataset if calibration and not facts.source.scheme else None
    is_searched = role is Role.DRAFT and draft and draft.layers_of_target == AUTO
    samples = recipe.layer_texts if is_searched else None
    search = find_dataset(samples, here, asks=asks) if samples else None
    if texts and facts.not_read:
        # The Hub is not asked for the texts of a model that it does not give.
        return replace(facts, dataset=Dataset(texts, Path(texts), None), search=search)
    return replace(facts, dataset=find_dataset(texts, here, asks=asks) if texts else None, search=search)


def _adapter(model: RecipeModel, here: Path) -> dict[str, Path]:
    """Returns the files of the LoRA adapter that the recipe in the folder `here` names for a model."""
    if "lora_dir" not in model.build:
        return {}
    folder = here / str(model.build["lora_dir"])
    files = (file for file in folder.rglob("*") if not file.is_dir() and has_file(file))
    return {file.relative_to(folder.parent).as_posix(): file for file in files}


def _serving_code() -> tuple[Path, ...]:
    """Returns the Python files that `write_repository` copies or generates from."""
    rooms = [
        Path(room) for package in (trtspec.serving, trtspec.pipeline.repository) for room in package.__path__
    ]
    return tuple(sorted(file for room in rooms for file in room.rglob("*.py")))


def made_of(reads: Callable[[str], bool], *models: ModelFacts, **values: Any) -> list[Any]:
    """Returns `values` and the models' files whose names `reads` accepts, for `Step.made_of`."""
    files = [{name: file for name, file in model.files.items() if reads(name)} for model in models]
    return [files, values]


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
