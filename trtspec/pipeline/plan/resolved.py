"""A recipe and the facts, with every default filled in, and for each value its origin and its reason; pure.

A flag overrides the environment, the environment overrides the recipe, and the recipe overrides a default.
The choices here are those that every backend makes: the folder, a model's precision and ranks, the longest
sequence.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from trtspec.backends.backend import Backend
from trtspec.backends.launch import ServerLaunch
from trtspec.base.errors import RecipeError
from trtspec.base.roles import Role
from trtspec.checkpoint.calibrate.calibrate import CalibrateOptions
from trtspec.checkpoint.calibrate.texts import Dataset
from trtspec.checkpoint.convert_options import ConvertOptions
from trtspec.checkpoint.convert_options import Mapping as RankMapping
from trtspec.checkpoint.engine_draft import EngineDraft
from trtspec.checkpoint.layers.choose import SearchOptions
from trtspec.models.heads.head import HeadDescription
from trtspec.models.source import Source
from trtspec.pipeline.engine.directory import EXTERNAL
from trtspec.pipeline.engine.engine_options import BuildOptions
from trtspec.pipeline.plan.facts import ModelFacts
from trtspec.pipeline.repository.spec import AdmissionParameters, Placement
from trtspec.recipe import devices, releases
from trtspec.recipe.loader import LoadedRecipe
from trtspec.serving.adaptive.policy import Policy
from trtspec.serving.drafters.source import Drafting

Origin = Literal["flag", "environment", "recipe", "model", "default"]
ENVIRONMENT = {"output": "TRTSPEC_OUTPUT", "engine.backend": "TRTSPEC_BACKEND"}


@dataclass(frozen=True, slots=True)
class Choice:
    """One value of the plan, by its key in the recipe."""

    key: str
    value: Any
    origin: Origin
    reason: str


class Chooser:
    """Picks a value for a key and remembers the choice."""

    def __init__(
        self, loaded: LoadedRecipe, flags: Mapping[str, str | None], environment: Mapping[str, str]
    ) -> None:
        self.loaded, self._flags, self._environment = loaded, flags, environment
        self.choices: list[Choice] = []

    def __call__(self, key: str, default: Any, reason: str, origin: Origin = "default") -> Any:
        """Returns the value of the first source that has one, and keeps the choice.

        `origin` and `reason` are those of the default.
        """
        flag, variable = self._flags.get(key), ENVIRONMENT.get(key, "")
        written = self.loaded.recipe.written(key)
        if flag is not None:
            choice = Choice(key, flag, "flag", "as requested")
        elif self._environment.get(variable):
            choice = Choice(key, self._environment[variable], "environment", f"{variable} is set")
        elif written is not None:
            choice = Choice(key, written, "recipe", "as written")
        else:
            choice = Choice(key, default, origin, reason)
        self.choices.append(choice)
        return choice.value

    def error(self, key: str, problem: str, repair: str | None = None) -> RecipeError:
        """Returns an error about the value of a key, for the caller to raise."""
        return RecipeError(self.loaded.path, [self.loaded.problem(key, problem, repair)])


def build_folder(
    loaded: LoadedRecipe, flags: Mapping[str, str | None], environment: Mapping[str, str]
) -> Path:
    """Returns the build directory, which is known before the facts are."""
    return choose_output(Chooser(loaded, flags, environment))


def asked_backend(flags: Mapping[str, str | None], environment: Mapping[str, str]) -> str | None:
    """Returns the backend that a flag or the environment asks for; None if the recipe's own applies."""
    key = "engine.backend"
    return flags.get(key) or environment.get(ENVIRONMENT[key]) or None


def choose_output(choose: Chooser) -> Path:
    name = choose.loaded.recipe.name
    return Path(choose("output", f"build/{name}", "a folder of the recipe's name under this one"))


def choose_checkpoint(choose: Chooser, role: str, source: Source, backend: Backend) -> ConvertOptions:
    """Returns the precision of a model, and its ranks.

    Raises RecipeError for a precision that the backend does not run, or that the model does not have.
    """
    dtype, fp8 = _choose_dtype(choose, role, source, backend), choose_fp8_weights(choose, role, source)
    fp8_kv_cache = choose(f"{role}.quantization.kv_cache", "none", "as the model is") == "fp8"
    tensor = choose(f"{role}.parallel.tensor", 1, "one GPU has every layer whole")
    pipeline = choose(f"{role}.parallel.pipeline", 1, "one GPU has every layer")
    return ConvertOptions(dtype, RankMapping(tensor, pipeline), fp8, fp8_kv_cache)


def _choose_dtype(choose: Chooser, role: str, source: Source, backend: Backend) -> str:
    """Returns the dtype of the unquantized weights: `float32`, `float16` or `bfloat16`.

    Raises RecipeError for the first of them with a backend that does not run it.
    """
    dtype: str = choose(f"{role}.dtype", source.dtype, "the dtype of the stored model", "model")
    if dtype == "auto":
        dtype = source.dtype
        choose.choices[-1] = Choice(f"{role}.dtype", dtype, "model", "auto: the dtype of the stored model")
    if dtype == "float32" and (flaw := backend.float32_flaw):
        raise choose.error(f"{role}.dtype", flaw, "write bfloat16 or float16")
    return dtype


def choose_fp8_weights(choose: Chooser, role: str, source: Source) -> bool:
    """Says whether weights and activations are FP8.

    Raises RecipeError if the model is FP8 and the recipe does not say so.
    """
    weights = choose(f"{role}.quantization.weights", "none", "as the model is")
    if source.foreign and weights == "fp8":
        problem = f"the model {source.foreign.problem.partition(':')[0]} already"
        raise choose.error(f"{role}.quantization.weights", problem, "remove this line")
    if source.scheme and weights != "fp8":
        raise choose.error(f"{role}.quantization.weights", "the model is FP8 already", "write weights: fp8")
    return bool(weights == "fp8")


@dataclass(frozen=True, slots=True)
class TextBound:
    """A length that a default does not exceed."""

    tokens: int
    reason: str


def choose_max_seq_len(choose: Chooser, longest: Mapping[Role, int], bounds: Iterable[TextBound]) -> int:
    """Returns the tokens of the longest sequence, prompt and answer together.

    `longest` is what each model was made for, in tokens. A length in the recipe overrides the `bounds`.
    Raises RecipeError for more than the target was made for.
    """
    shorter = min(longest, key=lambda role: longest[role])
    own = TextBound(longest[shorter], f"the longest sequence that the {shorter} supports")
    found = min((own, *bounds), key=lambda bound: bound.tokens)
    origin: Origin = "model" if found is own else "default"
    length: int = choose("engine.max_seq_len", found.tokens, found.reason, origin)
    if length > longest[Role.TARGET]:
        problem = f"{length} is more than the target supports: {longest[Role.TARGET]} tokens"
        raise choose.error("engine.max_seq_len", problem, f"at most {longest[Role.TARGET]}")
    return length


Layout = Literal["in_process", "bls"]
MAX_DRAFT_LEN, MAX_DRAFT_LEN_CPU = 8, 4
"""The default of the longest draft, on a GPU and on a CPU."""


@dataclass(frozen=True, slots=True)
class CalibrationPlan:
    """The dataset and the options of a model's calibration."""

    dataset: Dataset
    options: CalibrateOptions


@dataclass(frozen=True, slots=True)
class LayersPlan:
    """The layers of the target that a draft is."""

    chosen: tuple[int, ...] | None
    """The layers that the recipe names; None if a search chooses them."""
    search: SearchOptions | None = None
    """The options of the search."""
    dataset: Dataset | None = None


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
    runner: Backend
    """The backend that builds and runs the engine."""
    enable_chunked_context: bool = True
    """True if TensorRT-LLM may read a prompt in several iterations."""
    device: str | None = None
    """The device that runs the engine, if the recipe says so: PyTorch's `cpu`, `cuda:1`."""
    layers: LayersPlan | None = None
    """The layers of the target that the engine consists of; None for another model."""
    head: HeadDescription | None = None
    """The description in a head's folder."""
    is_dependent: bool = False
    """True if it lives in the target's engine: a head, or layers that are no copies."""
    engine_draft: EngineDraft | None = None
    """The draft that is built into the engine, and how much it proposes."""
    engine_heads: ModelFacts | None = None
    """The files of that draft's heads; None for a draft without any."""

    @property
    def mode(self) -> str:
        """TensorRT-LLM's speculative_decoding_mode of an engine that verifies drafts."""
        return self.engine_draft.mode if self.engine_draft else EXTERNAL


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


def placement(engines: Mapping[Role, EnginePlan], count: int) -> Placement:
    """Returns the GPUs that the engines run on, of a server with so many."""
    ranks = {role: engine.checkpoint.mapping.world_size for role, engine in engines.items()}
    draft = engines.get(Role.DRAFT)
    named = devices.gpus_of(draft.device) if draft else None
    return engines[Role.TARGET].runner.place(ranks, count, named)
