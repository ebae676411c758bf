"""Holds the facts that a plan depends on beside the recipe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trtspec.base.roles import Role
from trtspec.checkpoint.calibrate.dataset import Dataset
from trtspec.models.heads.head import HeadDescription
from trtspec.models.source import Source
from trtspec.pipeline.machine.host import Host


@dataclass(frozen=True, slots=True)
class DatasetFacts:
    """The texts that a model is calibrated with; `digest` is the file's SHA-256, None if not asked for."""

    dataset: Dataset
    digest: str | None


@dataclass(frozen=True, slots=True)
class SearchFacts:
    """The answers by which layers of a target are chosen; `dataset` is None for trtspec's own texts."""

    dataset: DatasetFacts | None


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """One model: `name` is what the recipe writes, `revision` the commit of a Hub model, None for a folder.

    `digests` has the SHA-256 of each file that a build reads, by its name; None if they were not asked for.
    `dataset` is None for a model that is not calibrated. `search` says what the layers of a draft are chosen
    by, where those are its target's; `source` then has as many, and the build finds out which. `num_common`
    is how many numbers of a draft's weights its target has too, as far as both are on this machine.
    """

    name: str
    revision: str | None
    source: Source
    digests: Mapping[str, str] | None
    dataset: DatasetFacts | None = None
    search: SearchFacts | None = None
    num_common: int = 0


@dataclass(frozen=True, slots=True)
class HeadFacts:
    """A draft that is a head of its target; the names are those of `ModelFacts`.

    `source` is the target with the head's own layers and tensors alone.
    """

    name: str
    revision: str | None
    head: HeadDescription
    source: Source
    digests: Mapping[str, str] | None


@dataclass(frozen=True, slots=True)
class PlanFacts:
    """All facts that planning depends on beside the recipe.

    `models` lacks a draft that is a head. `serving_code` is the digest of the code that a model repository
    carries.
    """

    models: Mapping[Role, ModelFacts]
    host: Host
    serving_code: str
    head: HeadFacts | None = None

    @property
    def all_models(self) -> Mapping[Role, ModelFacts | HeadFacts]:
        """The models, and the head if there is one."""
        return {**self.models, Role.DRAFT: self.head} if self.head else self.models

    @property
    def target(self) -> ModelFacts:
        return self.models[Role.TARGET]
