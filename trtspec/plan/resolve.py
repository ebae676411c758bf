"""A recipe and the facts, with every default filled in; each value knows where it came from and why.

What a flag says counts before the environment, that before the recipe, and the recipe before a default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from trtspec.checkpoint.calibrate.calibrate import CalibrateOptions
from trtspec.checkpoint.mapping import Mapping as RankMapping
from trtspec.checkpoint.mapping import misfit
from trtspec.checkpoint.options import ConvertOptions
from trtspec.checkpoint.source import Source
from trtspec.engine.defaults import EngineKind, defaults
from trtspec.engine.options import BuildOptions
from trtspec.errors import RecipeError
from trtspec.plan.facts import DatasetFacts, Facts, ModelFacts
from trtspec.recipe import gpus, releases
from trtspec.recipe.build_options import Value, is_on
from trtspec.recipe.loader import LoadedRecipe
from trtspec.recipe.schema import Model
from trtspec.repository.placement import Placement, place

Origin = Literal["flag", "environment", "recipe", "model", "default"]
Layout = Literal["in_process", "bls"]
ENVIRONMENT = {"output": "TRTSPEC_OUTPUT", "engine.backend": "TRTSPEC_BACKEND"}
BACKENDS = ("tensorrt_llm", "torch")

MAX_DRAFT_LEN, MAX_DRAFT_LEN_CPU = 8, 4
MAX_SEQ_LEN = 8192
MAX_NUM_TOKENS = 8192


@dataclass(frozen=True, slots=True)
class Choice:
    """One value of the plan, by its key in the recipe."""

    key: str
    value: bool | int | float | str
    origin: Origin
    reason: str


@dataclass(frozen=True, slots=True)
class CalibrationPlan:
    """What a model is calibrated with, and how."""

    dataset: DatasetFacts
    options: CalibrateOptions


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """One of the two engines: how its checkpoint is made, and what it is built for.

    `calibration` is None for what needs none; what it finds becomes part of `checkpoint` when it is known.
    """

    model: ModelFacts
    calibration: CalibrationPlan | None
    checkpoint: ConvertOptions
    options: BuildOptions


@dataclass(frozen=True, slots=True)
class Resolved:
    """Everything that the steps are made from; `release` is None for the torch backend."""

    loaded: LoadedRecipe
    output: Path
    backend: str
    release: releases.Release | None
    model_name: str
    layout: Layout
    num_draft_tokens: int
    target: EnginePlan
    draft: EnginePlan
    choices: tuple[Choice, ...]

    @property
    def placement(self) -> Placement:
        """The GPUs of the server that the engines run on."""
        target, draft = (engine.checkpoint.mapping.world_size for engine in (self.target, self.draft))
        return place(target, draft, self.loaded.recipe.hardware.count)


def resolve(
    loaded: LoadedRecipe, facts: Facts, flags: Mapping[str, str | None], environment: Mapping[str, str]
) -> Resolved:
    """Pure; raises RecipeError for what the recipe asks and this pair, or trtspec, cannot give."""
    choose = _Chooser(loaded, flags, environment)
    recipe = loaded.recipe
    output = _choose_output(choose)
    suits = "what serves in production" if recipe.hardware.gpu != gpus.NONE else "runs without a GPU"
    backend = choose("engine.backend", recipe.backend, suits)
    if backend not in BACKENDS:
        raise choose.error("engine.backend", f"found {backend!r}", f"use {' or '.join(BACKENDS)}")
    release = None
    if backend == "tensorrt_llm":
        if recipe.hardware.gpu == gpus.NONE:
            raise choose.error(
                "hardware.gpu", "gpu is none, but TensorRT-LLM needs one", "use --backend torch"
            )
        version = choose("engine.release", releases.DEFAULT, "the last line of releases with engines")
        release = releases.RELEASES[version]
    options = _options(choose, facts, backend)
    target = _engine(choose, "target", backend, facts.target, options)
    draft = _engine(choose, "draft", backend, facts.draft, replace(options, max_draft_len=0))
    num_draft_tokens = _num_draft_tokens(choose, options.max_draft_len)
    model_name = choose("serving.model_name", recipe.serving.model_name, "the name that clients call")
    layout = _layout(choose, target, draft)
    return Resolved(
        loaded,
        output,
        backend,
        release,
        model_name,
        layout,
        num_draft_tokens,
        target,
        draft,
        tuple(choose.choices),
    )


def build_folder(
    loaded: LoadedRecipe, flags: Mapping[str, str | None], environment: Mapping[str, str]
) -> Path:
    """The build directory, which is known before the facts are."""
    return _choose_output(_Chooser(loaded, flags, environment))


def backend_of(loaded: LoadedRecipe, flags: Mapping[str, str | None], environment: Mapping[str, str]) -> str:
    """What builds the engines, which is known before the facts are too; it may be none of `BACKENDS`."""
    backend: str = _Chooser(loaded, flags, environment)("engine.backend", loaded.recipe.backend, "")
    return backend


class _Chooser:
    """Picks a value for a key and remembers the choice."""

    def __init__(
        self, loaded: LoadedRecipe, flags: Mapping[str, str | None], environment: Mapping[str, str]
    ) -> None:
        self.loaded, self._flags, self._environment = loaded, flags, environment
        self.choices: list[Choice] = []

    def __call__(self, key: str, default: Any, reason: str, origin: Origin = "default") -> Any:
        """The value of the first that has one; `origin` and `reason` are those of the default."""
        flag, variable, written = self._flags.get(key), ENVIRONMENT.get(key, ""), self._written(key)
        if flag is not None:
            choice = Choice(key, flag, "flag", "as asked for")
        elif self._environment.get(variable):
            choice = Choice(key, self._environment[variable], "environment", f"{variable} is set")
        elif written is not None:
            choice = Choice(key, written, "recipe", "as written")
        else:
            choice = Choice(key, default, origin, reason)
        self.choices.append(choice)
        return choice.value

    def error(self, key: str, problem: str, repair: str | None = None) -> RecipeError:
        return RecipeError(self.loaded.path, [self.loaded.problem(key, problem, repair)])

    def _written(self, key: str) -> Any:
        """The recipe's own value; None where the recipe has none, or has one by default only."""
        value: Any = self.loaded.recipe
        for name in key.split("."):
            if name not in getattr(value, "model_fields_set", ()):
                return None
            value = getattr(value, name)
        return value


def _choose_output(choose: _Chooser) -> Path:
    name = choose.loaded.recipe.name
    return Path(choose("output", f"build/{name}", "a folder of the recipe's name under this one"))


def _layout(choose: _Chooser, target: EnginePlan, draft: EnginePlan) -> Layout:
    parallel = max(engine.checkpoint.mapping.world_size for engine in (target, draft)) > 1
    default: Layout = "bls" if parallel else "in_process"
    reason = "an engine of several ranks is a model of its own" if parallel else "no hop between the models"
    layout: Layout = choose("serving.layout", default, reason)
    return layout


def _options(choose: _Chooser, facts: Facts, backend: str) -> BuildOptions:
    """The sizes that both engines share. The coordinator sends both the whole text in every round."""
    on_cpu = choose.loaded.recipe.hardware.gpu == gpus.NONE
    drafts = choose(
        "speculation.max_draft_len",
        MAX_DRAFT_LEN_CPU if on_cpu else MAX_DRAFT_LEN,
        "a CPU verifies a few tokens at the price of one" if on_cpu else "a GPU verifies 8 tokens for free",
    )
    batch = choose(
        "engine.max_batch_size", choose.loaded.recipe.engine.max_batch_size, "drafts pay at low load"
    )
    longest = {
        role: model.source.max_position for role, model in (("target", facts.target), ("draft", facts.draft))
    }
    shorter = min(longest, key=lambda role: longest[role])
    bounded = longest[shorter] > MAX_SEQ_LEN
    length = choose(
        "engine.max_seq_len",
        min(longest[shorter], MAX_SEQ_LEN),
        "keeps memory for many requests" if bounded else f"the longest text that the {shorter} was made for",
        "default" if bounded else "model",
    )
    if length > longest["target"]:
        problem = f"{length} is more than the target was made for, {longest['target']} tokens"
        raise choose.error("engine.max_seq_len", problem, f"at most {longest['target']}")
    prompt = choose("engine.max_input_len", length - 1, "leaves room for one token of answer")
    if prompt >= length:
        problem = f"{prompt} leaves no room for an answer: max_seq_len is {length}"
        raise choose.error("engine.max_input_len", problem, f"at most {length - 1}")
    return BuildOptions(batch, prompt, length, _num_tokens(choose, batch, drafts), drafts)


def _num_draft_tokens(choose: _Chooser, longest: int) -> int:
    asked: int = choose("speculation.num_draft_tokens", longest, "as many as the target verifies")
    if asked > longest:
        problem = f"{asked} is more than the target verifies: max_draft_len is {longest}"
        raise choose.error("speculation.num_draft_tokens", problem, f"at most {longest}")
    return asked


def _num_tokens(choose: _Chooser, batch: int, drafts: int) -> int:
    needed = batch * (drafts + 1)
    reason = "trtllm-build's default" if needed <= MAX_NUM_TOKENS else "one verification of every request"
    tokens: int = choose("engine.max_num_tokens", max(MAX_NUM_TOKENS, needed), reason)
    if tokens < needed:
        problem = f"{tokens} is too few: {batch} requests of {drafts} draft tokens and one more are {needed}"
        raise choose.error("engine.max_num_tokens", problem, f"at least {needed}, or leave it out")
    return tokens


def _engine(
    choose: _Chooser, role: str, backend: str, facts: ModelFacts, options: BuildOptions
) -> EnginePlan:
    dtype = choose(f"{role}.dtype", facts.source.dtype, "what the model is stored in", "model")
    if dtype == "auto":
        dtype = facts.source.dtype
        choose.choices[-1] = Choice(f"{role}.dtype", dtype, "model", "auto: what the model is stored in")
    if dtype == "float32" and backend == "tensorrt_llm":
        problem = "float32 has no paged context FMHA in TensorRT-LLM, which speculation needs"
        raise choose.error(f"{role}.dtype", problem, "write bfloat16 or float16")
    checkpoint = _checkpoint(choose, role, dtype, facts.source)
    calibration = _calibration(choose, role, checkpoint, facts)
    extra = _build_options(choose, role, backend, facts.source.architecture, checkpoint)
    if "lora_dir" in extra:
        extra["lora_dir"] = _adapter(choose, f"{role}.build.lora_dir", str(extra["lora_dir"]))
    return EnginePlan(facts, calibration, checkpoint, replace(options, extra=extra))


def _build_options(
    choose: _Chooser, role: str, backend: str, architecture: str, checkpoint: ConvertOptions
) -> dict[str, Value]:
    """The options of `trtllm-build` beside the sizes: an expert's, and the recipe's in their place."""
    recipe = choose.loaded.recipe
    model: Model = getattr(recipe, role)
    if is_on(model.build.get("reduce_fusion")) and architecture != "LlamaForCausalLM":
        problem = f"trtllm-build switches it off for {architecture}"
        raise choose.error(f"{role}.build.reduce_fusion", problem, "remove this line")
    gpu, mapping = gpus.GPUS.get(recipe.hardware.gpu), checkpoint.mapping
    chosen = {
        name: Choice(f"{role}.build.{name}", value, "recipe", "as written")
        for name, value in model.build.items()
    }
    expert = {}
    if gpu and backend == "tensorrt_llm":
        kind = EngineKind(
            architecture, checkpoint.fp8, checkpoint.fp8_kv_cache, gpu.sm, mapping.tp_size, mapping.pp_size
        )
        for name, value, reason in defaults(kind, model.build):
            expert[name] = Choice(f"{role}.build.{name}", value, "default", reason)
    choices = expert | chosen
    choose.choices += choices.values()
    return {name: choice.value for name, choice in choices.items()}


def _adapter(choose: _Chooser, key: str, written: str) -> str:
    """The folder of a LoRA adapter, whole: trtllm-build runs in another one than the recipe's."""
    folder = (choose.loaded.path.parent / written).absolute()
    if not folder.is_dir():
        raise choose.error(key, f"{folder} is not a folder", "write a folder relative to the recipe")
    return str(folder)


def _checkpoint(choose: _Chooser, role: str, dtype: str, source: Source) -> ConvertOptions:
    weights = choose(f"{role}.quantization.weights", "none", "as the model is")
    cache = choose(f"{role}.quantization.kv_cache", "none", "as the model is")
    tensor = choose(f"{role}.parallel.tensor", 1, "one GPU has every layer whole")
    pipeline = choose(f"{role}.parallel.pipeline", 1, "one GPU has every layer")
    if source.scheme and weights != "fp8":
        raise choose.error(f"{role}.quantization.weights", "the model is FP8 already", "write weights: fp8")
    mapping, fp8 = RankMapping(tensor, pipeline), weights == "fp8"
    found = misfit(source, mapping, fp8)
    if found:
        key, problem, repair = found
        raise choose.error(f"{role}.{key}", problem, repair)
    return ConvertOptions(dtype, mapping, fp8, cache == "fp8")


def _calibration(
    choose: _Chooser, role: str, checkpoint: ConvertOptions, facts: ModelFacts
) -> CalibrationPlan | None:
    model: Model = getattr(choose.loaded.recipe, role)
    key, own = f"{role}.quantization.calibration", model.quantization.calibration
    if facts.source.scheme and own:
        raise choose.error(key, "the model is FP8 already, with scales of its own", "remove this section")
    if facts.source.scheme or not checkpoint.fp8:
        return None
    found = choose.loaded.recipe.calibration(model)
    if found is None or facts.dataset is None:
        raise choose.error(
            key, "fp8 needs texts to calibrate with", "write calibration: {dataset: texts.jsonl}"
        )
    reason = "what is usual" if own else "as for the target"
    values = {name: choose(f"{key}.{name}", value, reason) for name, value in found.model_dump().items()}
    del values["dataset"]
    options = CalibrateOptions(checkpoint.dtype, checkpoint.fp8_kv_cache, **values)
    return CalibrationPlan(facts.dataset, options)
