"""Defines the facts that a plan depends on beside the recipe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from trtspec.base.errors import TrtspecError
from trtspec.base.roles import Role
from trtspec.checkpoint.calibrate.dataset import Dataset
from trtspec.models.heads.head import HeadDescription
from trtspec.models.source import Source
from trtspec.pipeline.machine.host import Host


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
