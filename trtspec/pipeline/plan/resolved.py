"""A recipe and the facts, with every default filled in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from trtspec.backends.engine.directory import EXTERNAL
from trtspec.backends.engine.engine_options import BuildOptions
from trtspec.backends.servers.launch import ServerLaunch
from trtspec.base.roles import Role
from trtspec.checkpoint.calibrate.calibrate import CalibrateOptions
from trtspec.checkpoint.convert_options import ConvertOptions
from trtspec.checkpoint.layers.choose import SearchOptions
from trtspec.checkpoint.medusa import MedusaCheckpoint
from trtspec.models.heads.head import HeadDescription
from trtspec.pipeline.plan.choices import Choice
from trtspec.pipeline.plan.facts import DatasetFacts, ModelFacts
from trtspec.pipeline.repository.placement import Placement, place
from trtspec.pipeline.repository.spec import AdmissionParameters
from trtspec.recipe import devices, releases
from trtspec.recipe.loader import LoadedRecipe
from trtspec.recipe.support import SERVERS
from trtspec.serving.drafters.source import Drafting
from trtspec.serving.pace import Policy

Layout = Literal["in_process", "bls"]


@dataclass(frozen=True, slots=True)
class CalibrationPlan:
    """The dataset and the options of a model's calibration."""

    dataset: DatasetFacts
    options: CalibrateOptions


@dataclass(frozen=True, slots=True)
class LayersPlan:
    """The layers of the target that a draft is: `chosen` by the recipe, or by a search with these options."""

    chosen: tuple[int, ...] | None
    search: SearchOptions | None = None
    dataset: DatasetFacts | None = None


@dataclass(frozen=True, slots=True)
class InsidePlan:
    """The heads that a target's engine has inside: their files, and what is made of them."""

    model: ModelFacts
    medusa: MedusaCheckpoint


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """One engine: how its checkpoint is made, and what it is built for.

    `calibration` is None for a model that needs none; the scales that it finds are added to `checkpoint` when
    the step runs. With `enable_chunked_context` TensorRT-LLM may read a text in several iterations. `backend`
    builds and runs it. `device` is where, if the recipe says so: PyTorch's `cpu`, `cuda:1`. `layers` are the
    target's that it consists of, None for another model. `head` is what a head's folder says. With
    `is_dependent` it lives in the target's engine: a head, or layers that are no copies. A target of
    TensorRT-LLM may have its draft `inside`: heads that it is built with.
    """

    model: ModelFacts
    calibration: CalibrationPlan | None
    checkpoint: ConvertOptions
    options: BuildOptions
    enable_chunked_context: bool = True
    backend: str = "tensorrt_llm"
    device: str | None = None
    layers: LayersPlan | None = None
    head: HeadDescription | None = None
    is_dependent: bool = False
    inside: InsidePlan | None = None

    @property
    def medusa(self) -> MedusaCheckpoint | None:
        """The heads inside, and the tree that they propose."""
        return self.inside.medusa if self.inside else None

    @property
    def mode(self) -> str:
        """TensorRT-LLM's speculative_decoding_mode of an engine that verifies drafts."""
        return "medusa" if self.inside else EXTERNAL


@dataclass(frozen=True, slots=True)
class Coordination:
    """The settings of trtspec's own coordinator.

    `admission` has no `kv_tokens` yet; `repository_spec` adds them.
    """

    layout: Layout
    policy: Policy
    share: float
    drafting: Drafting | None
    admission: AdmissionParameters


@dataclass(frozen=True, slots=True)
class Resolved:
    """Everything that the steps are made from; `backend` is the target's.

    `release` is that of TensorRT-LLM's engines, None where there are none. Engines have a `coordination`; a
    server of others has a `launch` instead, and its models are the `engines` of the plan, of which nothing is
    built. `num_draft_tokens` is K where that is fixed.
    """

    loaded: LoadedRecipe
    output: Path
    backend: str
    release: releases.Release | None
    model_name: str
    num_draft_tokens: int | None
    engines: Mapping[Role, EnginePlan]
    choices: tuple[Choice, ...]
    coordination: Coordination | None = None
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


def placement(engines: Mapping[Role, EnginePlan], gpus: int) -> Placement:
    """Returns the GPUs that the engines run on, of a server with so many.

    A server of others runs the draft on the GPUs of the target.
    """
    ranks = {role: engine.checkpoint.mapping.world_size for role, engine in engines.items()}
    draft = engines.get(Role.DRAFT)
    if engines[Role.TARGET].backend in SERVERS:
        gpus = ranks[Role.TARGET]
    return place(ranks, gpus, devices.gpus_of(draft.device) if draft else None)
