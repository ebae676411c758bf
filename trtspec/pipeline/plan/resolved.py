"""A recipe and the facts, with every default filled in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from trtspec.backends.backend import Backend
from trtspec.backends.launch import ServerLaunch
from trtspec.backends.table import backend_named
from trtspec.base.roles import Role
from trtspec.checkpoint.calibrate.calibrate import CalibrateOptions
from trtspec.checkpoint.convert_options import ConvertOptions
from trtspec.checkpoint.inside import DraftInside
from trtspec.checkpoint.layers.choose import SearchOptions
from trtspec.models.heads.head import HeadDescription
from trtspec.pipeline.engine.directory import EXTERNAL
from trtspec.pipeline.engine.engine_options import BuildOptions
from trtspec.pipeline.plan.choices import Choice, Chooser, choose_output
from trtspec.pipeline.plan.facts import DatasetFacts, ModelFacts, PlanFacts
from trtspec.pipeline.repository.spec import AdmissionParameters, Placement, place
from trtspec.recipe import devices, gpus, releases
from trtspec.recipe.loader import LoadedRecipe
from trtspec.serving.adaptive.policy import Policy
from trtspec.serving.drafters.source import Drafting

Layout = Literal["in_process", "bls"]
MAX_DRAFT_LEN, MAX_DRAFT_LEN_CPU = 8, 4
"""The default of the longest draft, on a GPU and on a CPU."""


@dataclass(frozen=True, slots=True)
class CalibrationPlan:
    """The dataset and the options of a model's calibration."""

    dataset: DatasetFacts
    options: CalibrateOptions


@dataclass(frozen=True, slots=True)
class LayersPlan:
    """The layers of the target that a draft is."""

    chosen: tuple[int, ...] | None
    """The layers that the recipe names; None if a search chooses them."""
    search: SearchOptions | None = None
    """The options of the search."""
    dataset: DatasetFacts | None = None


@dataclass(frozen=True, slots=True)
class InsidePlan:
    """The draft that a target's engine has inside."""

    model: ModelFacts | None
    """The files of its heads; None for a draft without any."""
    draft: DraftInside
    """The draft, and how much it proposes."""


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """The plan of one engine: how its checkpoint is made, and what it is built for."""

    model: ModelFacts
    calibration: CalibrationPlan | None
    """None for a model that needs none. The scales that it finds are added to `checkpoint` when the step
    runs.
    """
    checkpoint: ConvertOptions
    options: BuildOptions
    enable_chunked_context: bool = True
    """True if TensorRT-LLM may read a prompt in several iterations."""
    backend: str = "tensorrt_llm"
    """The backend that builds and runs the engine."""
    device: str | None = None
    """The device that runs the engine, if the recipe says so: PyTorch's `cpu`, `cuda:1`."""
    layers: LayersPlan | None = None
    """The layers of the target that the engine consists of; None for another model."""
    head: HeadDescription | None = None
    """The description in a head's folder."""
    is_dependent: bool = False
    """True if it lives in the target's engine: a head, or layers that are no copies."""
    inside: InsidePlan | None = None
    """The draft that a target is built with."""

    @property
    def runner(self) -> Backend:
        """The backend."""
        return backend_named(self.backend)

    @property
    def draft_inside(self) -> DraftInside | None:
        """The draft inside, and how much it proposes."""
        return self.inside.draft if self.inside else None

    @property
    def mode(self) -> str:
        """TensorRT-LLM's speculative_decoding_mode of an engine that verifies drafts."""
        return self.inside.draft.mode if self.inside else EXTERNAL


@dataclass(frozen=True, slots=True)
class Coordination:
    """The settings of trtspec's own coordinator."""

    layout: Layout
    policy: Policy
    share: float
    drafting: Drafting | None
    admission: AdmissionParameters
    """Has no `kv_tokens` yet; `repository_spec` adds them."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """Everything that the steps are made from."""

    loaded: LoadedRecipe
    output: Path
    backend: str
    """The target's backend."""
    release: releases.Release | None
    """The release of TensorRT-LLM's engines; None if there are none."""
    model_name: str
    num_draft_tokens: int | None
    """The draft length K if it is fixed."""
    engines: Mapping[Role, EnginePlan]
    """The engines to build. With a `launch` they are the models of the server, of which nothing is built."""
    choices: tuple[Choice, ...]
    coordination: Coordination | None = None
    """Engines have one; another engine's server has a `launch` instead."""
    launch: ServerLaunch | None = None

    @property
    def target(self) -> EnginePlan:
        return self.engines[Role.TARGET]

    @property
    def translates(self) -> bool:
        """True if the draft has a vocabulary of its own, and so a tokenizer."""
        return self.loaded.recipe.speculation.method.translates

    @property
    def placement(self) -> Placement:
        """The GPUs of the server that the engines run on."""
        return placement(self.engines, self.loaded.recipe.hardware.count)


def resolve(
    loaded: LoadedRecipe, facts: PlanFacts, flags: Mapping[str, str | None], environment: Mapping[str, str]
) -> Resolved:
    """Returns the recipe with every default filled in, each with where it came from and why; pure.

    A flag overrides the environment, the environment overrides the recipe, and the recipe overrides a
    default. `flags` has values by their key in the recipe, None for a flag that was not given; the recipe was
    read for the `asked_backend` of both. Raises RecipeError for what its models or trtspec cannot do, and
    ModelError for a model that trtspec does not convert.
    """
    choose = Chooser(loaded, flags, environment)
    output = choose_output(choose)
    suits = "what serves in production" if loaded.recipe.hardware.gpu != gpus.NONE else "runs without a GPU"
    choose("engine.backend", loaded.recipe.backend, suits)
    return loaded.recipe.runner.resolve(choose, facts, output)


def placement(engines: Mapping[Role, EnginePlan], count: int) -> Placement:
    """Returns the GPUs that the engines run on, of a server with so many.

    Another engine's server runs the draft on the GPUs of the target.
    """
    ranks = {role: engine.checkpoint.mapping.world_size for role, engine in engines.items()}
    draft = engines.get(Role.DRAFT)
    if not engines[Role.TARGET].runner.builds_engines:
        count = ranks[Role.TARGET]
    return place(ranks, count, devices.gpus_of(draft.device) if draft else None)
