"""A recipe and the facts, with every default filled in, and for each value its origin and its reason; pure.

A flag overrides the environment, the environment overrides the recipe, and the recipe overrides a default.
The choices come in turn: the folder, a model's precision and ranks, the longest sequence; then those for the
Triton model that clients call (its draft tokens, layout and admission); then the tokens of one iteration.

A round sends the whole sequence again, though most of it is in the KV cache. TensorRT-LLM 1.0 to 1.2 counts
it whole when it fills an iteration with requests (`batch_manager/microBatchScheduler.cpp`), because it learns
only afterwards how much is reused. A sequence that does not fit waits for the next iteration. With chunked
context, part of it is read in this one, and the drafts of sequences that do fit are discarded to make room
(`fitDraftTokens`): each verification then brings one token. Without chunked context no draft is discarded,
but every sequence must fit into one iteration.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
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
from trtspec.recipe.schema import triton_name
from trtspec.serving.adaptive.policy import Policy
from trtspec.serving.drafters.source import DRAFT_MODEL, Drafting

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
            # One folder for each recipe, in a variable that holds for all.
            value = self._environment[variable].replace("{name}", self.loaded.recipe.name)
            choice = Choice(key, value, "environment", f"{variable} is set")
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


_QUEUED_FOR_A_PLACE, _LEAST_QUEUE = 16, 256
_SECOND = 10**6
_QUEUE_DELAY, _DRAFT_TIMEOUT = 300 * _SECOND, 5 * _SECOND


def choose_coordination(
    choose: Chooser, engines: Collection[EnginePlan], longest: int, engine_draft: EngineDraft | None
) -> tuple[Coordination, int | None, str]:
    """Returns the settings of the coordinator, K if the policy is fixed, and the model's name for Triton.

    Drafts have at most `longest` tokens. An engine with a draft in it reports no rounds.
    """
    policy: Policy = "fixed"
    num_draft_tokens, share, drafting = None, 1.0, None
    if not engine_draft:
        policy, num_draft_tokens = _choose_policy(choose, longest)
        share = float(choose("speculation.share", 1, "every request"))
        drafting = _choose_drafting(choose)
    serving = choose.loaded.recipe.serving
    name = choose("serving.model_name", serving.model_name, "the name that clients call")
    layout, admission = _choose_layout(choose, engines), _choose_admission(choose, engines)
    return Coordination(layout, policy, share, drafting, admission), num_draft_tokens, triton_name(name)


def _choose_policy(choose: Chooser, longest: int) -> tuple[Policy, int | None]:
    """Returns the policy for requests that set no K, and K itself if the policy is fixed.

    Raises RecipeError for a K of more than `longest`, which is what the target verifies.
    """
    default, reason = "adaptive", "K follows acceptance and load"
    if choose.loaded.recipe.speculation.num_draft_tokens is not None:
        default, reason = "fixed", "num_draft_tokens is written"
    policy: Policy = choose("speculation.policy", default, reason)
    if policy == "adaptive":
        return policy, None
    asked: int = choose("speculation.num_draft_tokens", longest, "as many as the target verifies")
    if asked > longest:
        problem = f"{asked} is more than the target verifies: max_draft_len is {longest}"
        raise choose.error("speculation.num_draft_tokens", problem, f"at most {longest}")
    return policy, asked


def _choose_drafting(choose: Chooser) -> Drafting | None:
    """None if an engine proposes."""
    method = choose.loaded.recipe.speculation.method
    if method.kind == DRAFT_MODEL.kind:
        return None
    choose.choices.append(Choice("speculation.method", method.kind, "recipe", "as written"))
    options = {
        name: choose(f"speculation.method.{name}", value, "the usual value")
        for name, value in method.options.items()
    }
    return Drafting(method.kind, options)


def _choose_layout(choose: Chooser, engines: Collection[EnginePlan]) -> Layout:
    parallel = max(engine.checkpoint.mapping.world_size for engine in engines) > 1
    default: Layout = "bls" if parallel else "in_process"
    reason = (
        "an engine of several ranks must be a model of its own" if parallel else "no hop between the models"
    )
    if choose.loaded.recipe.serving.layout == "triton":
        # The recipe is for vLLM, and somebody has its engines built all the same.
        return default
    layout: Layout = choose("serving.layout", default, reason)
    return layout


def _choose_admission(choose: Chooser, engines: Collection[EnginePlan]) -> AdmissionParameters:
    """Returns the limits on requests; a limit that the recipe leaves out fits those that it writes.

    There is none of the draft engine where the method has no model.
    """
    serving = choose.loaded.recipe.serving
    places = min(engine.options.max_batch_size for engine in engines)
    per_place = _QUEUED_FOR_A_PLACE * places
    size = choose(
        "serving.max_queue_size",
        max(per_place, _LEAST_QUEUE),
        "16 for each slot" if per_place >= _LEAST_QUEUE else "room for a burst of 256 clients",
    )
    limit = choose(
        "serving.default_timeout_microseconds",
        serving.default_timeout_microseconds,
        "ten minutes for a request that names no timeout",
    )
    delay = choose(
        "serving.max_queue_delay_microseconds",
        min(_QUEUE_DELAY, limit),
        "five minutes; a longer wait is better spent on another server"
        if limit > _QUEUE_DELAY
        else "the time limit",
    )
    draft_timeout = None
    if len(engines) > 1:
        draft_timeout = choose(
            "serving.draft_timeout_microseconds",
            min(_DRAFT_TIMEOUT, limit // 2),
            "five seconds for what takes milliseconds"
            if limit >= 2 * _DRAFT_TIMEOUT
            else "half the time limit",
        )
    schedule = choose.loaded.recipe.speculation.schedule and choose("speculation.schedule", None, "")
    target_timeout = choose(
        "serving.target_timeout_microseconds",
        serving.target_timeout_microseconds,
        "two minutes for an iteration that takes seconds at most",
    )
    return AdmissionParameters(
        max_places=places,
        max_queue_size=size,
        max_queue_delay_microseconds=delay,
        default_timeout_microseconds=limit,
        draft_timeout_microseconds=draft_timeout,
        target_timeout_microseconds=target_timeout,
        draft_schedule=json.dumps(schedule) if schedule else None,
    )


# `trtllm-build`'s default, and the number above which it expects no gain.
MAX_NUM_TOKENS, MOST_NUM_TOKENS = 8192, 16384


def least_num_tokens(options: BuildOptions) -> int:
    """Returns the smallest number that is ever chosen: enough to verify a draft of every request."""
    return max(MAX_NUM_TOKENS, options.num_verified_tokens)


def choose_num_tokens(choose: Chooser, target: BuildOptions, affordable: Callable[[int], bool] | None) -> int:
    """Returns `max_num_tokens`; raises RecipeError if it is too small for a verification of every request.

    `affordable` says whether the GPUs have room for iterations of so many tokens; it is None for the torch
    backend, which reads a sequence in parts of any size.
    """
    needed = target.num_verified_tokens
    default, reason = least_num_tokens(target), "trtllm-build's default"
    if affordable:
        default, reason = _widest(target, affordable)
    if default == needed:
        reason = "one verification of every request"
    tokens: int = choose("engine.max_num_tokens", default, reason)
    if tokens < needed:
        batch, drafts = target.max_batch_size, target.max_draft_len
        problem = (
            f"{tokens} is too small: {batch} requests of {drafts} draft tokens and one more need {needed}"
        )
        raise choose.error("engine.max_num_tokens", problem, f"set at least {needed}, or remove this line")
    return tokens


def choose_chunked_context(choose: Chooser, target: BuildOptions) -> bool:
    """Says whether the target has chunked context; raises RecipeError if it needs what the recipe forbids."""
    tokens, longest = target.max_num_tokens, _longest(target)
    holds = tokens >= longest
    reason = "an iteration holds the longest sequence, so no draft is discarded"
    if not holds:
        reason = (
            f"sequences may exceed an iteration; {target.max_batch_size} requests lose drafts from "
            f"{_text(target, tokens):,} tokens each"
        )
    chunked: bool = choose("engine.enable_chunked_context", not holds, reason)
    if not chunked and not holds:
        need = f"the longest sequence and a draft, {longest} tokens"
        problem = f"without it, max_num_tokens {tokens} must hold {need}"
        repair = f"write true, or set max_num_tokens: {longest}"
        raise choose.error("engine.enable_chunked_context", problem, repair)
    return chunked


def _widest(target: BuildOptions, affordable: Callable[[int], bool]) -> tuple[int, str]:
    """Returns the largest useful and affordable number of tokens, and the reason."""
    least, longest = least_num_tokens(target), _longest(target)
    everything = target.max_batch_size * longest
    wishes = sorted({min(max(MOST_NUM_TOKENS, longest), everything), MOST_NUM_TOKENS, longest}, reverse=True)
    wishes = [tokens for tokens in wishes if least < tokens <= everything]
    tokens = next(filter(affordable, wishes), least)
    if tokens == everything:
        return tokens, "every request at its longest"
    if wishes and tokens < wishes[0]:
        return tokens, "more would cost over a tenth of the KV cache"
    if not wishes:
        return tokens, "trtllm-build's default"
    sequences = f"{target.max_batch_size} sequences of {_text(target, tokens):,} tokens at once"
    return tokens, f"{sequences}: an iteration counts them whole"


def _longest(target: BuildOptions) -> int:
    """Returns the tokens of the longest sequence and a draft, to which the builder sets `max_seq_len`."""
    return target.max_seq_len + target.max_draft_len


def _text(target: BuildOptions, tokens: int) -> int:
    """Returns the longest sequence that every request may have at the same time, each with a draft."""
    return tokens // target.max_batch_size - target.max_draft_len
