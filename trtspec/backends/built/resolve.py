"""Fills in every default of a recipe whose engines trtspec builds; pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from trtspec.backends.table import backend_named
from trtspec.base.roles import Role
from trtspec.base.units import three_digits
from trtspec.checkpoint.calibrate.calibrate import CalibrateOptions
from trtspec.checkpoint.convert_options import ConvertOptions
from trtspec.checkpoint.mapping import misfit
from trtspec.models.families import FAMILIES, family_of
from trtspec.pipeline.engine.engine_options import BuildOptions, EngineKind
from trtspec.pipeline.plan.depending import check_cyclic, check_ranks, choose_inside, depending, head_engine
from trtspec.pipeline.plan.facts import ModelFacts, PlanFacts
from trtspec.pipeline.plan.iteration import choose_chunked_context, choose_num_tokens, least_num_tokens
from trtspec.pipeline.plan.memory import budget_of, fits_a_tensor
from trtspec.pipeline.plan.resolved import (
    MAX_DRAFT_LEN,
    MAX_DRAFT_LEN_CPU,
    CalibrationPlan,
    Choice,
    Chooser,
    EnginePlan,
    InsidePlan,
    Resolved,
    TextBound,
    choose_checkpoint,
    choose_max_seq_len,
    placement,
)
from trtspec.pipeline.plan.serving import choose_coordination
from trtspec.recipe import gpus, releases
from trtspec.recipe.build_options import SIZES, Value, is_on

if TYPE_CHECKING:
    from trtspec.backends.built.backend import EngineBackend

LONGEST = TextBound(8192, "one iteration holds such a sequence whole, and the KV cache many of them")
_PRICE = 0.1  # the largest share of the KV cache that iterations with more texts may cost


def builder_named(name: str) -> EngineBackend:
    """Returns a backend that builds engines, by its name."""
    return cast("EngineBackend", backend_named(name))


def resolve_engines(choose: Chooser, facts: PlanFacts, output: Path, backend: EngineBackend) -> Resolved:
    """Returns the recipe with every default filled in.

    Raises RecipeError for what its models or trtspec cannot do, and ModelError for a model that trtspec does
    not convert.
    """
    release = None
    if backend.compiles:
        version = choose("engine.release", releases.DEFAULT, "the last line of releases with engines")
        release = releases.RELEASES[version]
    inside = choose_inside(choose, facts, backend)
    options = _options(choose, facts, inside)
    target = _engine(choose, Role.TARGET, backend.name, facts.target, options, inside)
    if inside:
        check_ranks(choose, inside, target.checkpoint.mapping)
        check_cyclic(choose, facts.target.source, target.options)
    engines = {Role.TARGET: replace(target, inside=inside)}
    if facts.head and not inside:
        engines[Role.DRAFT] = head_engine(engines[Role.TARGET], facts.head)
    elif draft := facts.models.get(Role.DRAFT):
        proposing = replace(options, max_draft_len=0)
        engines[Role.DRAFT] = _engine(choose, Role.DRAFT, backend.name, draft, proposing)
    engines = _iterations(choose, engines, on_tensorrt=release is not None)
    _check_device(choose, engines)
    coordination, num_draft_tokens, model_name = choose_coordination(
        choose, engines.values(), options.max_draft_len, inside
    )
    engines = depending(choose, engines, coordination.layout)
    return Resolved(
        choose.loaded,
        output,
        backend.name,
        release,
        model_name,
        num_draft_tokens,
        engines,
        tuple(choose.choices),
        coordination,
    )


def _options(choose: Chooser, facts: PlanFacts, inside: InsidePlan | None) -> BuildOptions:
    """Returns the sizes that all engines share: the coordinator sends each the whole sequence in every
    round."""
    on_cpu = choose.loaded.recipe.hardware.gpu == gpus.NONE
    usual, reason = MAX_DRAFT_LEN, "a GPU verifies 8 tokens for free"
    if on_cpu:
        usual, reason = MAX_DRAFT_LEN_CPU, "a CPU verifies a few tokens at the price of one"
    if largest := choose.loaded.recipe.speculation.largest:
        usual, reason = largest, "the largest K of speculation.schedule"
    drafts = inside.draft.num_drafted if inside else choose("speculation.max_draft_len", usual, reason)
    batch = choose(
        "engine.max_batch_size", choose.loaded.recipe.engine.max_batch_size, "drafts pay at low load"
    )
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
    hardware, draft = choose.loaded.recipe.hardware, engines.get(Role.DRAFT)
    gpu = gpus.GPUS.get(hardware.gpu)
    if gpu is None or draft is None or draft.device is None or draft.runner.is_embedded:
        return
    problem = budget_of(gpu, engines, hardware.count).problem
    if problem and placement(engines, hardware.count).is_shared:
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
    gpu = gpus.GPUS.get(hardware.gpu) if on_tensorrt else None
    written = choose.loaded.recipe.engine.max_num_tokens

    def sized(tokens: int) -> dict[Role, EnginePlan]:
        found = dict(engines)
        for role, engine in engines.items():
            most = written if on_tensorrt and engine.runner.is_embedded else tokens
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
    of_target: str,
    facts: ModelFacts,
    options: BuildOptions,
    inside: InsidePlan | None = None,
) -> EnginePlan:
    # Raises for a model that trtspec does not convert, before anything asks for facts of its family.
    family_of(facts.source)
    if others := facts.source.left_out:
        size = three_digits(sum(tensor.end - tensor.start for tensor in others))
        reason = f"a multimodal model; {len(others)} tensors of its other parts, {size}, are left out"
        choose.choices.append(Choice(f"{role}.model", "text part", "model", reason))
    backend, device = choose.loaded.recipe.backend_of(role, of_target), _device(choose, role)
    checkpoint = choose_checkpoint(choose, role, facts.source, backend)
    if found := misfit(facts.source, checkpoint.mapping, fp8=checkpoint.fp8):
        raise choose.error(f"{role}.{found.subject}", found.problem, found.repair)
    if checkpoint.fp8 and backend != of_target and not facts.source.scheme:
        problem = "fp8 is no gain on a CPU, which computes it in the model's dtype"
        raise choose.error(f"{role}.quantization.weights", problem, "remove quantization from the draft")
    calibration = _calibration(choose, role, checkpoint, facts)
    extra = _build_options(choose, role, backend, facts.source.architecture, checkpoint, inside)
    if "lora_dir" in extra:
        # An absolute path, since trtllm-build does not run in the recipe's folder.
        adapter = (choose.loaded.path.parent / str(extra["lora_dir"])).absolute()
        if not adapter.is_dir():
            problem, repair = f"{adapter} is not a folder", "write a folder relative to the recipe"
            raise choose.error(f"{role}.build.lora_dir", problem, repair)
        extra["lora_dir"] = str(adapter)
    own = {name: extra.pop(name) for name in SIZES if name in extra}
    sizes = _own_sizes(choose, role, options, own, extra)
    for longest, reason in builder_named(backend).longest(facts.source, role):
        if sizes.max_seq_len + sizes.max_draft_len > longest:
            most = longest - sizes.max_draft_len
            raise choose.error("engine.max_seq_len", reason, f"at most {most}, drafts included")
    return EnginePlan(facts, calibration, checkpoint, sizes, backend=backend, device=device)


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
    backend: str,
    architecture: str,
    checkpoint: ConvertOptions,
    inside: InsidePlan | None,
) -> dict[str, Value]:
    """Returns the options of `trtllm-build` beside the sizes: the recipe's, and defaults for the rest."""
    recipe = choose.loaded.recipe
    model = recipe.models[role]
    fuses = inside is None or inside.draft.reduce_fusion
    if is_on(model.build.get("reduce_fusion")) and not (fuses and FAMILIES[architecture].reduce_fusion):
        problem = f"trtllm-build switches it off for {architecture}" + ("" if fuses else " with this draft")
        raise choose.error(f"{role}.build.reduce_fusion", problem, "remove this line")
    choices: dict[str, Choice] = {}
    if gpu := gpus.GPUS.get(recipe.hardware.gpu):
        mapping, fp8 = checkpoint.mapping, (checkpoint.fp8, checkpoint.fp8_kv_cache)
        kind = EngineKind(architecture, *fp8, gpu.sm, mapping.tp_size, mapping.pp_size, fuses)
        for name, value, reason in builder_named(backend).defaults(kind, model.build):
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
