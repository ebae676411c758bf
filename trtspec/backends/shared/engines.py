"""Defines what the backends have in common whose engines trtspec builds."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from trtspec.backends.backend import Backend, Unsupported
from trtspec.backends.planner import Planner
from trtspec.base.findings import Finding
from trtspec.base.roles import Role
from trtspec.base.units import three_digits
from trtspec.checkpoint.blueprint import check_tensors
from trtspec.checkpoint.calibrate.calibrate import CalibrateOptions
from trtspec.checkpoint.convert import checkpoint_size
from trtspec.checkpoint.convert_options import ConvertOptions, misfit
from trtspec.checkpoint.engine_draft import EngineDraft
from trtspec.methods.method import AT_ONCE
from trtspec.methods.table import METHODS
from trtspec.models.families import FAMILIES, family_of
from trtspec.models.heads.reading import read_model
from trtspec.models.pair import Member, member_of
from trtspec.models.source import Source
from trtspec.models.tokenizer import TokenizerTraits
from trtspec.pipeline.engine.engine_options import BuildOptions, Default, EngineKind
from trtspec.pipeline.machine.devices import apart
from trtspec.pipeline.plan.depending import check_cyclic, check_ranks, choose_draft, depending, head_engine
from trtspec.pipeline.plan.facts import ModelFacts, PlanFacts
from trtspec.pipeline.plan.memory import budget_of, fits_a_tensor
from trtspec.pipeline.plan.resolved import (
    MAX_DRAFT_LEN,
    MAX_DRAFT_LEN_CPU,
    MAX_NUM_TOKENS,
    CalibrationPlan,
    Choice,
    Chooser,
    EnginePlan,
    Resolved,
    TextBound,
    choose_checkpoint,
    choose_chunked_context,
    choose_coordination,
    choose_max_seq_len,
    choose_num_tokens,
    least_num_tokens,
    placement,
)
from trtspec.pipeline.repository.spec import Placement, place
from trtspec.pipeline.run.step import Step
from trtspec.pipeline.steps import (
    calibrate,
    check_pair,
    choose_layers,
    convert,
    copy_tokenizer,
    write_repository,
)
from trtspec.recipe import devices, gpus, releases
from trtspec.recipe.build_options import SIZES, Value, is_on, option_problem
from trtspec.recipe.devices import CPU
from trtspec.recipe.loader import lacking
from trtspec.recipe.schema import BLS_MODELS, NOT_OF_HEADS, Draft, Recipe, RecipeModel

_DEVICE = "draft.device"
_REMOVE = "remove this line"
_FP8_PLUGINS = ("gemm_swiglu_plugin", "low_latency_gemm_plugin", "low_latency_gemm_swiglu_plugin")
_SWIGLU = ("gemm_swiglu_plugin", "low_latency_gemm_swiglu_plugin")
# Options that need a precision that trtspec's checkpoints do not have.
_OTHER_PRECISION = {
    "fp8_rowwise_gemm_plugin": "it is for FP8 with a scale for each row; these checkpoints have one a tensor",
    "norm_quant_fusion": "it is for NVFP4",
    "fuse_fp4_quant": "it is for NVFP4",
}
LONGEST = TextBound(8192, "one iteration holds such a sequence whole, and the KV cache many of them")
_PRICE = 0.1  # the largest share of the KV cache that iterations with more texts may cost
_SERVED_BY_US = "trtspec serves its engines itself; these are for vLLM, SGLang and trtllm-serve"
_LACKING = {
    AT_ONCE: "its draft models propose one token per step",
    "engine.extra_args": _SERVED_BY_US,
    "engine.environment": _SERVED_BY_US,
}


def _serving(recipe: Recipe, ranks: Mapping[Role, int]) -> Iterator[Finding]:
    layout, name = recipe.serving.layout, recipe.serving.triton_name
    if layout == "triton":
        yield Finding(
            "serving.layout", "triton is vLLM under Triton, which has no engines", "write in_process or bls"
        )
    if layout != "in_process" and name in BLS_MODELS.values():
        yield Finding(
            "serving.model_name",
            f"{name} is the name of an engine's model in the bls layout",
            "choose another name",
        )
    several = [role for role, count in ranks.items() if count > 1]
    if layout == "in_process" and several:
        problem = f"in_process needs one rank for each engine, and the {several[0]} has {ranks[several[0]]}"
        yield Finding("serving.layout", problem, "write layout: bls, or leave it out")


def _times(recipe: Recipe) -> Iterator[Finding]:
    serving = recipe.serving
    limit, delay, draft = (
        serving.default_timeout_microseconds,
        serving.max_queue_delay_microseconds,
        serving.draft_timeout_microseconds,
    )
    if delay and delay > limit:
        problem = f"{delay} is longer than a completion may take: default_timeout_microseconds is {limit}"
        yield Finding("serving.max_queue_delay_microseconds", problem, f"at most {limit}")
    if draft and draft >= limit:
        problem = f"{draft} leaves the target no time: default_timeout_microseconds is {limit}"
        yield Finding("serving.draft_timeout_microseconds", problem, f"at most {limit - 1}")


def _device_findings(recipe: Recipe) -> Iterator[Finding]:
    """Finds a draft that cannot run on the device that the recipe names for it."""
    draft, hardware = recipe.draft, recipe.hardware
    if draft is None or draft.device is None:
        return
    for gpu in devices.gpus_of(draft.device) or ():
        if hardware.gpu == gpus.NONE:
            yield Finding(_DEVICE, f"{draft.device} is a GPU, and hardware.gpu is none", "write cpu")
        elif gpu >= hardware.count:
            problem = f"there is no {draft.device}: hardware.count is {hardware.count}, from cuda:0 on"
            repair = f"write cuda:{hardware.count - 1}, or hardware: {{count: {gpu + 1}}}"
            yield Finding(_DEVICE, problem, repair)
    if draft.parallel.ranks > 1:
        problem = f"{draft.parallel.ranks} ranks, and draft.device names one place for all, {draft.device}"
        yield Finding("draft.parallel", problem, "remove this line, or draft.device")


def build_contradictions(model: RecipeModel, recipe: Recipe) -> Iterator[Finding]:
    """Finds build options that another option of the engine, or the rest of the recipe, does not allow.

    `trtllm-build` switches some options off without a word, and fails on others after minutes of loading
    (`commands/build.py`, `builder.py`, `plugin/plugin.py` of TensorRT-LLM 1.0 to 1.2). The subject of each
    finding is the option.
    """
    yield from _precision(model)
    yield from _gpu(model, recipe)
    yield from _ranks(model)
    yield from _sizes(model, recipe)
    yield from _together(model)


def _precision(model: RecipeModel) -> Iterator[Finding]:
    fp8 = model.quantization.weights == "fp8"
    for name, reason in _OTHER_PRECISION.items():
        if is_on(model.build.get(name)):
            yield Finding(name, reason, _REMOVE)
    gemm = model.build.get("gemm_plugin")
    if gemm == "nvfp4":
        yield Finding("gemm_plugin", "nvfp4 needs NVFP4 weights", "write auto, or fp8 with FP8 weights")
    for name in (*_FP8_PLUGINS, *(("gemm_plugin",) if gemm == "fp8" else ())):
        if is_on(model.build.get(name)) and not fp8:
            yield Finding(
                name, "fp8 needs FP8 weights", "write quantization: {weights: fp8}, or remove this line"
            )
    attention = model.build.get("use_fp8_context_fmha")
    if attention is None:
        return
    if is_on(attention) and model.quantization.kv_cache != "fp8":
        problem = "trtllm-build switches it off without FP8 weights and an FP8 KV cache"
        yield Finding("use_fp8_context_fmha", problem, "write quantization: {weights: fp8, kv_cache: fp8}")
    elif not is_on(attention) and model.quantization.kv_cache == "fp8":
        problem = "trtllm-build switches it on: paged context FMHA needs it with an FP8 KV cache"
        yield Finding("use_fp8_context_fmha", problem, _REMOVE)


def _gpu(model: RecipeModel, recipe: Recipe) -> Iterator[Finding]:
    gpu = gpus.GPUS.get(recipe.hardware.gpu)
    for name in _FP8_PLUGINS:
        if gpu and is_on(model.build.get(name)) and gpu.sm != gpus.HOPPER:
            problem = f"its kernels are for Hopper (SM 90); {gpu.label} is SM {gpu.sm}"
            yield Finding(name, problem, _REMOVE)


def _ranks(model: RecipeModel) -> Iterator[Finding]:
    for name in ("reduce_fusion", "user_buffer"):
        if is_on(model.build.get(name)) and model.parallel.tensor == 1:
            yield Finding(name, "trtllm-build switches it off: with tensor 1 nothing is reduced", _REMOVE)
    if is_on(model.build.get("gemm_allreduce_plugin")) and model.parallel.tensor == 1:
        yield Finding("gemm_allreduce_plugin", "with tensor 1 nothing is reduced", _REMOVE)
    if not is_on(model.build.get("nccl_plugin", "auto")) and model.parallel.ranks > 1:
        yield Finding("nccl_plugin", f"{model.parallel.ranks} ranks talk to each other through it", _REMOVE)
    if is_on(model.build.get("pp_reduce_scatter")):
        yield Finding("pp_reduce_scatter", "trtllm-build refuses it for all models but Mixtral", _REMOVE)


def _sizes(model: RecipeModel, recipe: Recipe) -> Iterator[Finding]:
    tokens = model.build.get("opt_num_tokens")
    most = model.build.get("max_num_tokens", recipe.engine.max_num_tokens)
    if isinstance(tokens, int) and isinstance(most, int) and tokens > most:
        problem = f"{tokens} is more than one iteration may have: max_num_tokens is {most}"
        yield Finding("opt_num_tokens", problem, f"at most {most}")
    if tokens is not None and is_on(model.build.get("multiple_profiles")):
        problem = "trtllm-build takes it or multiple_profiles, not both"
        yield Finding("opt_num_tokens", problem, "remove one of the two lines")
    block = model.build.get("tokens_per_block")
    if block is not None and isinstance(most, int) and int(block) > most:
        problem = f"a block of {block} tokens is more than one iteration may have: max_num_tokens is {most}"
        yield Finding("tokens_per_block", problem, f"at most {most}")


def _together(model: RecipeModel) -> Iterator[Finding]:
    options = model.build
    swiglu = [name for name in _SWIGLU if is_on(options.get(name))]
    if len(swiglu) > 1:
        yield Finding(swiglu[0], f"{swiglu[1]} does the same", "remove one of the two lines")
    if swiglu and options.get("use_fused_mlp") is not None and not is_on(options["use_fused_mlp"]):
        yield Finding(swiglu[0], "it fuses the MLP, and use_fused_mlp is off", "remove one of the two lines")
    if is_on(options.get("user_buffer")) and not is_on(options.get("reduce_fusion", "enable")):
        yield Finding(
            "user_buffer", "trtllm-build switches it off without reduce_fusion", "write reduce_fusion: enable"
        )
    if not is_on(options.get("lora_plugin")):
        for name in ("lora_dir", "lora_ckpt_source", "lora_target_modules", "max_lora_rank"):
            if name in options:
                yield Finding(name, "trtllm-build ignores it without lora_plugin", "write lora_plugin: auto")
        if is_on(options.get("dora_plugin")):
            yield Finding("dora_plugin", "it needs lora_plugin", "write lora_plugin: auto")


class EngineBackend(Planner):
    """A backend with engines of our own, behind trtspec's coordinator."""

    builds_engines = True
    copies = 1
    longest_text = f"the model's own, up to {LONGEST.tokens:,}"
    fp8 = "engines have fixed scales: of an FP8 model, or of a calibration with texts of yours"

    @property
    def versions(self) -> tuple[str, ...]:
        return tuple(releases.RELEASES)

    def refusal(self, method: str, release: str | None) -> Unsupported | None:
        """Returns why not; trtspec's own drafters that need no head run here too."""
        if method not in self.methods and not (METHODS[method].is_head or METHODS[method].of_servers):
            return None
        return super().refusal(method, release)

    def num_tokens(self, gpu: str) -> str:
        return f"{MAX_NUM_TOKENS:,}"

    def image(self, recipe: Recipe) -> str:
        return releases.release_of(recipe.engine.release).image

    def release_flaw(self, version: str) -> tuple[str, str] | None:
        return releases.flaw(version)

    def place(self, ranks: Mapping[Role, int], count: int, draft: tuple[int, ...] | None) -> Placement:
        return place(ranks, count, draft)

    def read(self, folder: Path) -> Source:
        return read_model(folder)

    def member(
        self, source: Source, recipe: Recipe, role: Role, like: TokenizerTraits | None = None
    ) -> Member:
        found = member_of(source, like=like)
        # The scales of an FP8 model are among its weights, which are not read here.
        if source.layers is None and source.scheme is None:
            check_tensors(source, family_of(source).weights(source), None)
        return found

    def weight_bytes(self, source: Source, checkpoint: ConvertOptions) -> int:
        """Returns the bytes of the checkpoint."""
        return checkpoint_size(source, checkpoint)

    def resolve(
        self, choose: Chooser, facts: PlanFacts, output: Path, runners: Mapping[Role, Backend]
    ) -> Resolved:
        release = self.engine_release(choose.loaded.recipe)
        if release:
            choose("engine.release", releases.DEFAULT, "the last line of releases with engines")
        engine_draft = choose_draft(choose, facts, self)
        heads = facts.head if engine_draft else None
        options = _options(choose, facts, engine_draft)
        target = _engine(choose, Role.TARGET, runners, facts.target, options, engine_draft)
        if engine_draft:
            check_ranks(choose, engine_draft, target.checkpoint.mapping)
            check_cyclic(choose, facts.target.source, target.options)
        engines = {Role.TARGET: replace(target, engine_draft=engine_draft, engine_heads=heads)}
        if facts.head and not engine_draft:
            engines[Role.DRAFT] = head_engine(engines[Role.TARGET], facts.head)
        elif draft := facts.models.get(Role.DRAFT):
            proposing = replace(options, max_draft_len=0)
            engines[Role.DRAFT] = _engine(choose, Role.DRAFT, runners, draft, proposing)
        engines = _iterations(choose, engines, on_tensorrt=release is not None)
        _check_device(choose, engines)
        coordination, num_draft_tokens, model_name = choose_coordination(
            choose, engines.values(), options.max_draft_len, engine_draft
        )
        engines = depending(choose, engines, coordination.layout)
        return Resolved(
            choose.loaded,
            output,
            self.name,
            release,
            model_name,
            num_draft_tokens,
            engines,
            tuple(choose.choices),
            coordination,
        )

    def steps(self, resolved: Resolved, facts: PlanFacts, only: Role | None) -> list[Step]:
        engines = resolved.engines
        if only and not engines[only].is_dependent:
            engines = {only: engines[only]}
        steps = []
        if only is None:
            steps.append(check_pair.step(resolved, facts))
            steps.append(copy_tokenizer.step(facts.target))
            if resolved.translates:
                steps.append(copy_tokenizer.step(facts.models[Role.DRAFT], Role.DRAFT))
        steps += choose_layers.searches(engines, facts)
        copied = {role: engine for role, engine in engines.items() if not engine.is_dependent}
        for role, engine in copied.items():
            if engine.calibration:
                steps.append(calibrate.step(resolved, facts, role, engine.calibration))
        steps += [convert.step(resolved, role) for role in copied]
        steps += [convert.proof(resolved, role) for role in copied]
        ranks = [
            0 if engine.device == CPU else engine.checkpoint.mapping.world_size for engine in engines.values()
        ]
        own = apart(facts.host.gpus, ranks)
        steps += [
            _builder(engines[role].runner).engine_step(resolved, facts, role, gpus)
            for role, gpus in zip(engines, own, strict=True)
        ]
        if only is None:
            steps.append(write_repository.step(resolved, facts))
        return steps

    @abstractmethod
    def engine_step(self, resolved: Resolved, facts: PlanFacts, role: Role, gpus: tuple[str, ...]) -> Step:
        """Returns the step that builds an engine; pure.

        `gpus` are the UUIDs of the GPUs that it has for itself, empty if it may use all.
        """

    def defaults(self, kind: EngineKind, written: Mapping[str, Value]) -> Iterator[Default]:
        """Yields options of an engine beside its sizes; `written` are those that the recipe sets."""
        return iter(())

    def longest(self, source: Source, role: Role) -> Iterator[tuple[int, str]]:
        """Yields the lengths, drafts included, beyond which it cannot reuse a KV cache, and why."""
        return iter(())

    def flaws_of_engines(self, recipe: Recipe) -> Iterator[Finding]:
        draft, method = recipe.draft, recipe.speculation.method
        usual = Draft(model=draft.model) if draft and method.is_head else None
        for key in NOT_OF_HEADS if usual else ():
            if getattr(draft, key) != getattr(usual, key):
                problem = f"a head runs in its target's engine, as the target does: method is {method.kind}"
                yield Finding(f"draft.{key}", problem, _REMOVE)
        if recipe.kubernetes.secrets.hub:
            problem = "pods pull engines from the store, and nothing from the Hub"
            repair = "remove this line; jobs have kubernetes.build.secret"
            yield Finding("kubernetes.secrets.hub", problem, repair)

    def precision_flaws(self, model: RecipeModel, role: Role, gpu_name: str) -> Iterator[Finding]:
        if model.quantization.kv_cache == "fp8" and model.quantization.weights != "fp8":
            # The builder would switch paged context FMHA off, without which a target verifies nothing.
            problem, repair = "an fp8 KV cache needs fp8 weights", "write weights: fp8 too, or kv_cache: none"
            yield Finding(f"{role}.quantization.kv_cache", problem, repair)
        yield from super().precision_flaws(model, role, gpu_name)

    def contradictions(self, recipe: Recipe) -> Iterator[Finding]:
        yield from lacking(recipe, _LACKING)
        yield from _serving(recipe, self.ranks(recipe))
        yield from _times(recipe)
        yield from _device_findings(recipe)
        for role, model in recipe.models.items():
            # Values that no recipe may have; without these, values that this recipe may not have.
            flaws = [option_problem(option, value) for option, value in model.build.items()]
            for flaw in list(filter(None, flaws)) or build_contradictions(model, recipe):
                yield replace(flaw, subject=f"{role}.build.{flaw.subject}")


def _builder(backend: Backend) -> EngineBackend:
    """Returns the backend of an engine; each that such a recipe can have builds engines."""
    assert isinstance(backend, EngineBackend)
    return backend


def _options(choose: Chooser, facts: PlanFacts, engine_draft: EngineDraft | None) -> BuildOptions:
    """Returns the sizes that all engines share: the coordinator sends each the whole sequence in every
    round."""
    on_cpu = choose.loaded.recipe.hardware.gpu == gpus.NONE
    usual, reason = MAX_DRAFT_LEN, "a GPU verifies 8 tokens for free"
    if on_cpu:
        usual, reason = MAX_DRAFT_LEN_CPU, "a CPU verifies a few tokens at the price of one"
    if largest := choose.loaded.recipe.speculation.largest:
        usual, reason = largest, "the largest K of speculation.schedule"
    drafts = engine_draft.num_drafted if engine_draft else choose("speculation.max_draft_len", usual, reason)
    usual, reason = choose.loaded.recipe.engine.max_batch_size, "drafts pay at low load"
    if engine_draft and (most := engine_draft.most_tried):
        usual, reason = min(usual, most), f"TensorRT-LLM's {engine_draft.report}, is open"
    batch = choose("engine.max_batch_size", usual, reason)
    longest = {role: model.source.max_position for role, model in facts.models.items()}
    length = choose_max_seq_len(choose, longest, [LONGEST])
    prompt = choose("engine.max_input_len", length - 1, "leaves room for one token of answer")
    if prompt >= length:
        problem = f"{prompt} leaves no room for an answer: max_seq_len is {length}"
        raise choose.error("engine.max_input_len", problem, f"at most {length - 1}")
    options = BuildOptions(batch, prompt, length, 0, drafts)
    return replace(options, max_num_tokens=least_num_tokens(options))


def _check_device(choose: Chooser, engines: Mapping[Role, EnginePlan]) -> None:
    """Raises RecipeError if the recipe puts the draft on a GPU of the target that cannot hold both."""
    recipe, draft = choose.loaded.recipe, engines.get(Role.DRAFT)
    gpu, count = engines[Role.TARGET].runner.gpu(recipe), recipe.hardware.count
    if gpu is None or draft is None or draft.device in (None, CPU):
        return
    problem = budget_of(gpu, engines, count).problem
    if problem and placement(engines, count).is_shared:
        problem = f"{draft.device} has ranks of the target too: {problem}"
        raise choose.error("draft.device", problem, "write another GPU, or cpu")


def _device(choose: Chooser, role: Role) -> str | None:
    """Returns the device that the recipe names for an engine; None if it names none."""
    draft = choose.loaded.recipe.draft
    if role is Role.TARGET or draft is None or draft.device is None:
        return None
    device: str = choose("draft.device", draft.device, "as written")
    return device


def _iterations(
    choose: Chooser, engines: Mapping[Role, EnginePlan], *, on_tensorrt: bool
) -> dict[Role, EnginePlan]:
    """Returns the engines with the size of their iterations, and with or without chunked context.

    The draft engine keeps chunked context: it gets no drafts that could be discarded. Beside TensorRT-LLM an
    engine of the torch backend has the recipe's size or the usual one: it must not depend on a GPU that it
    does not use.
    """
    hardware, target = choose.loaded.recipe.hardware, engines[Role.TARGET]
    gpu = target.runner.gpu(choose.loaded.recipe)
    written = choose.loaded.recipe.engine.max_num_tokens

    def sized(tokens: int) -> dict[Role, EnginePlan]:
        found = dict(engines)
        for role, engine in engines.items():
            most = written if on_tensorrt and engine.device == CPU else tokens
            if most and "max_num_tokens" not in choose.loaded.recipe.models[role].build:
                found[role] = replace(engine, options=replace(engine.options, max_num_tokens=most))
        return found

    def kv_memory(tokens: int) -> int:
        assert gpu is not None
        return budget_of(gpu, sized(tokens), hardware.count).left

    def affordable(tokens: int) -> bool:
        plain = kv_memory(target.options.max_num_tokens)
        return fits_a_tensor(target, tokens) and plain - kv_memory(tokens) <= _PRICE * plain

    found = sized(choose_num_tokens(choose, target.options, affordable if gpu else None))
    if on_tensorrt:
        chunked = choose_chunked_context(choose, found[Role.TARGET].options)
        found[Role.TARGET] = replace(found[Role.TARGET], enable_chunked_context=chunked)
    return found


def _engine(
    choose: Chooser,
    role: Role,
    runners: Mapping[Role, Backend],
    facts: ModelFacts,
    options: BuildOptions,
    engine_draft: EngineDraft | None = None,
) -> EnginePlan:
    # Raises for a model that trtspec does not convert, before anything asks for facts of its family.
    family_of(facts.source)
    if others := facts.source.left_out:
        size = three_digits(sum(tensor.end - tensor.start for tensor in others))
        reason = f"a multimodal model; {len(others)} tensors of its other parts, {size}, are left out"
        choose.choices.append(Choice(f"{role}.model", "text part", "model", reason))
    backend, device = _builder(runners[role]), _device(choose, role)
    checkpoint = choose_checkpoint(choose, role, facts.source, backend)
    if found := misfit(facts.source, checkpoint.mapping, fp8=checkpoint.fp8):
        raise choose.error(f"{role}.{found.subject}", found.problem, found.repair)
    if checkpoint.fp8 and backend is not runners[Role.TARGET] and not facts.source.scheme:
        problem = "fp8 is no gain on a CPU, which computes it in the model's dtype"
        raise choose.error(f"{role}.quantization.weights", problem, "remove quantization from the draft")
    calibration = _calibration(choose, role, checkpoint, facts)
    rows = options.num_verified_tokens
    extra = _build_options(choose, role, backend, facts.source.architecture, checkpoint, engine_draft, rows)
    if "lora_dir" in extra:
        # An absolute path, since trtllm-build does not run in the recipe's folder.
        adapter = (choose.loaded.path.parent / str(extra["lora_dir"])).absolute()
        if not adapter.is_dir():
            problem, repair = f"{adapter} is not a folder", "write a folder relative to the recipe"
            raise choose.error(f"{role}.build.lora_dir", problem, repair)
        extra["lora_dir"] = str(adapter)
    own = {name: extra.pop(name) for name in SIZES if name in extra}
    sizes = _own_sizes(choose, role, options, own, extra)
    for longest, reason in backend.longest(facts.source, role):
        if sizes.max_seq_len + sizes.max_draft_len > longest:
            most = longest - sizes.max_draft_len
            raise choose.error("engine.max_seq_len", reason, f"at most {most}, drafts included")
    return EnginePlan(facts, calibration, checkpoint, sizes, backend, device=device)


def _own_sizes(
    choose: Chooser, role: Role, shared: BuildOptions, own: Mapping[str, Any], extra: Mapping[str, Value]
) -> BuildOptions:
    """Returns the sizes of one engine: its own, and the shared ones for the rest.

    Raises RecipeError for sizes that are too small for a text that the other engines read.
    """
    options = replace(shared, **own, extra=extra)
    for name, least, reason in (
        ("max_seq_len", shared.max_seq_len, "every engine reads the whole text"),
        ("max_num_tokens", options.num_verified_tokens, "one iteration verifies every request"),
    ):
        if own.get(name, least) < least:
            raise choose.error(
                f"{role}.build.{name}", f"{own[name]} is too few: {reason}", f"at least {least}"
            )
    prompt, longest = options.max_input_len, options.max_seq_len
    if prompt >= longest:
        problem = f"{prompt} leaves no room for an answer: max_seq_len is {longest}"
        raise choose.error(f"{role}.build.max_input_len", problem, f"at most {longest - 1}")
    return options


def _build_options(
    choose: Chooser,
    role: Role,
    backend: EngineBackend,
    architecture: str,
    checkpoint: ConvertOptions,
    engine_draft: EngineDraft | None,
    rows: int,
) -> dict[str, Value]:
    """Returns the options of `trtllm-build` beside the sizes: the recipe's, and defaults for the rest."""
    recipe = choose.loaded.recipe
    model = recipe.models[role]
    fuses = engine_draft is None or engine_draft.reduce_fusion
    if is_on(model.build.get("reduce_fusion")) and not (fuses and FAMILIES[architecture].reduce_fusion):
        problem = f"trtllm-build switches it off for {architecture}" + ("" if fuses else " with this draft")
        raise choose.error(f"{role}.build.reduce_fusion", problem, "remove this line")
    choices: dict[str, Choice] = {}
    if gpu := gpus.GPUS.get(recipe.hardware.gpu):
        mapping, fp8 = checkpoint.mapping, (checkpoint.fp8, checkpoint.fp8_kv_cache)
        kind = EngineKind(architecture, *fp8, gpu.sm, mapping.tp_size, mapping.pp_size, fuses, rows)
        for name, value, reason in backend.defaults(kind, model.build):
            choices[name] = Choice(f"{role}.build.{name}", value, "default", reason)
    for name, value in model.build.items():
        choices[name] = Choice(f"{role}.build.{name}", value, "recipe", "as written")
    choose.choices += choices.values()
    return {name: choice.value for name, choice in choices.items()}


def _calibration(
    choose: Chooser, role: Role, checkpoint: ConvertOptions, facts: ModelFacts
) -> CalibrationPlan | None:
    model = choose.loaded.recipe.models[role]
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
