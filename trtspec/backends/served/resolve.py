"""Fills in every default of a recipe that another engine's server serves; pure.

The server gets only what is chosen here, so a launch is the same on every machine.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from trtspec.backends.launch import ServerLaunch
from trtspec.backends.served.inputs import LaunchInputs, LaunchModel
from trtspec.backends.served.texts import with_texts
from trtspec.base.findings import errors
from trtspec.base.roles import Role
from trtspec.checkpoint.convert_options import ConvertOptions
from trtspec.checkpoint.mapping import Mapping as RankMapping
from trtspec.models.masked import check_parallel
from trtspec.models.mtp import MtpLayers, mtp_layers
from trtspec.models.source import Source
from trtspec.pipeline.engine.engine_options import BuildOptions
from trtspec.pipeline.plan.depending import depending
from trtspec.pipeline.plan.facts import ModelFacts, PlanFacts
from trtspec.pipeline.plan.memory import kv_of_layer
from trtspec.pipeline.plan.resolved import (
    Choice,
    Chooser,
    EnginePlan,
    Origin,
    Resolved,
    choose_checkpoint,
    choose_fp8_weights,
)
from trtspec.pipeline.steps import write_layers
from trtspec.recipe import gpus
from trtspec.recipe.schema import Recipe

if TYPE_CHECKING:
    from trtspec.backends.served.backend import ServerBackend

NUM_DRAFT_TOKENS = 4
MAX_NUM_TOKENS, MAX_NUM_TOKENS_CPU = 8192, 2048
_CPU_BLOCK = 128  # tokens of a block of vLLM's KV cache on a CPU (`CpuPlatform`)


def resolve_server(choose: Chooser, facts: PlanFacts, output: Path, backend: ServerBackend) -> Resolved:
    """Returns the recipe with every default filled in, and how the server is started.

    A head is not among the engines: the plan does not count its memory and time. Raises RecipeError for what
    the server cannot do with these models.
    """
    loaded, recipe = choose.loaded, choose.loaded.recipe
    version = choose("engine.release", backend.versions[0], "the newest that trtspec knows")
    for found in errors(list(backend.misfits(recipe, facts.target.source))):
        raise choose.error("speculation.method", f"{found.subject}: {found.problem}", found.repair)
    served = replace(facts.target, source=facts.target.source.overridden(backend.overrides(recipe)))
    length = _num_draft_tokens(choose, facts)
    schedule = recipe.speculation.schedule and choose("speculation.schedule", None, "")
    engines = {
        Role.TARGET: _target(choose, backend, served, _sizes(choose, backend.num_nodes(choose, length)))
    }
    if draft := facts.models.get(Role.DRAFT):
        engines[Role.DRAFT] = _draft(choose, backend, draft, engines[Role.TARGET])
        engines = depending(choose, engines, None)
    engines = with_texts(choose, engines, facts.head.head if facts.head else None, backend.longer_than_head)
    target = engines[Role.TARGET]
    _choose_method(choose)
    name = choose("serving.model_name", backend.served_name(loaded), "the model, as its own server names it")
    places = _places(choose, facts, engines, output)
    drafting = places.get(Role.DRAFT)
    if drafting and drafting.revision and not backend.pins_drafts:
        problem = f"{backend.name} takes a draft of the Hub at its latest commit, and at no other"
        download = f"hf download {drafting.place} --revision {drafting.revision} --local-dir draft"
        raise choose.error("draft.model", problem, f"{download}, and model: ./draft")
    wanted = LaunchInputs(
        release=backend.release_of(version),
        names=tuple(dict.fromkeys((name, *recipe.serving.aliases))),
        target=places[Role.TARGET],
        draft=drafting,
        method=recipe.speculation.method,
        num_draft_tokens=length,
        checkpoint=target.checkpoint,
        options=target.options,
        enable_chunked_context=target.enable_chunked_context,
        kv_bytes=_kv_bytes(engines, _own_layers(recipe, facts)) if recipe.hardware.gpu == gpus.NONE else None,
        schedule={least: min(tokens, length) for least, tokens in (schedule or {}).items()},
    )
    launch = _launch(backend, wanted, recipe, facts)
    return Resolved(
        loaded,
        output,
        backend.name,
        None,
        launch.served_model_name,
        length,
        engines,
        tuple(choose.choices),
        launch=launch,
    )


def _launch(backend: ServerBackend, wanted: LaunchInputs, recipe: Recipe, facts: PlanFacts) -> ServerLaunch:
    """Returns how the server is started, with what the recipe adds to its command and environment."""
    own = backend.launch(wanted)
    return replace(
        own,
        arguments=(*own.arguments, *recipe.engine.extra_args),
        environment=recipe.engine.environment,
        weights=sum(model.source.size for model in facts.all_models.values()),
    )


def _choose_method(choose: Chooser) -> None:
    """Says which method drafts, by which options, and whether the recipe wrote that."""
    recipe = choose.loaded.recipe
    method = recipe.speculation.method
    is_written = recipe.written("speculation.method") is not None
    origin: tuple[Origin, str] = ("recipe", "as written") if is_written else ("default", "text of any kind")
    choose.choices.append(Choice("speculation.method", method.kind, *origin))
    for name, value in method.options.items():
        choose(f"speculation.method.{name}", value, "what is usual")


def _sizes(choose: Chooser, nodes: int) -> BuildOptions:
    """Returns the sizes except the length of sequences, which depends on the memory that the models leave."""
    recipe, on_cpu = choose.loaded.recipe, choose.loaded.recipe.hardware.gpu == gpus.NONE
    batch = choose("engine.max_batch_size", recipe.engine.max_batch_size, "drafts pay at low load")
    tokens = choose(
        "engine.max_num_tokens",
        MAX_NUM_TOKENS_CPU if on_cpu else MAX_NUM_TOKENS,
        "a CPU reads no faster in larger steps" if on_cpu else "what the servers take of a large GPU",
    )
    return BuildOptions(batch, 0, 0, tokens, nodes)


def _num_draft_tokens(choose: Chooser, facts: PlanFacts) -> int:
    """Returns the longest draft, which is K: servers change it from round to round only by a schedule.

    Raises RecipeError for more tokens than a head proposes in one step; vLLM would invent the rest.
    """
    recipe = choose.loaded.recipe
    key, most = "speculation.num_draft_tokens", recipe.written("speculation.max_draft_len")
    at_once = facts.head.head.longest if facts.head else None
    own = _own_layers(recipe, facts)
    usual, reason = NUM_DRAFT_TOKENS, "about what the servers' own examples have"
    if recipe.speculation.largest:
        usual, reason = recipe.speculation.largest, "the largest K of speculation.schedule"
    elif at_once:
        usual, reason = at_once, "what the head proposes in one step"
    elif own:
        usual, reason = own.count, "a token of each of the target's layers for it"
    length: int = choose(key, most or usual, "max_draft_len, in every round" if most else reason)
    if at_once and length > at_once:
        wrong = next(filter(recipe.written, (key, "speculation.max_draft_len", "speculation.schedule")))
        problem = f"{length} is more than the {at_once} tokens that the head proposes in one step"
        raise choose.error(wrong, problem, f"at most {at_once}")
    return length


def _own_layers(recipe: Recipe, facts: PlanFacts) -> MtpLayers | None:
    """Returns the target's own layers that draft, if they do."""
    return mtp_layers(facts.target.source) if recipe.speculation.method.in_target else None


def _target(choose: Chooser, backend: ServerBackend, facts: ModelFacts, options: BuildOptions) -> EnginePlan:
    checkpoint = choose_checkpoint(choose, Role.TARGET, facts.source, backend.name)
    _check_quantization(choose, backend, Role.TARGET, facts.source, fp8=checkpoint.fp8)
    _check_heads(choose, Role.TARGET, facts.source, checkpoint.mapping.tp_size)
    chunked = choose("engine.enable_chunked_context", True, "a long prompt does not hold up the others")
    return EnginePlan(facts, None, checkpoint, options, chunked, backend.name)


def _draft(choose: Chooser, backend: ServerBackend, facts: ModelFacts, target: EnginePlan) -> EnginePlan:
    """Returns the plan of the draft, which a server loads like the target but for the weights' precision."""
    is_at_once = choose.loaded.recipe.speculation.method.is_at_once
    for found in check_parallel(facts.source) if is_at_once else ():
        raise choose.error("draft.model", f"{found.subject}: {found.problem}", found.repair)
    fp8, like = choose_fp8_weights(choose, Role.DRAFT, facts.source), target.checkpoint
    _check_quantization(choose, backend, Role.DRAFT, facts.source, fp8=fp8)
    mapping = RankMapping(like.mapping.tp_size, 1)
    _check_heads(choose, Role.DRAFT, facts.source, mapping.tp_size)
    checkpoint = ConvertOptions(like.dtype, mapping, fp8, like.fp8_kv_cache)
    return EnginePlan(facts, None, checkpoint, target.options, target.enable_chunked_context, backend.name)


def _check_quantization(
    choose: Chooser, backend: ServerBackend, role: Role, source: Source, *, fp8: bool
) -> None:
    if fp8 and source.scheme is None and not backend.quantizes:
        problem = f"{backend.name} quantizes nothing, and the model is not FP8"
        repair = "name a model that is FP8 already, such as NVIDIA's with hf_quant_config.json"
        raise choose.error(f"{role}.quantization.weights", problem, repair)


def _check_heads(choose: Chooser, role: Role, source: Source, tensor: int) -> None:
    """Raises RecipeError for attention heads that tensor ranks cannot share, which all servers refuse."""
    if source.num_attention_heads % tensor:
        heads = f"the {source.num_attention_heads} attention heads of the {role}"
        problem = f"{heads} do not divide among {tensor} ranks"
        raise choose.error("target.parallel.tensor", problem)


def _places(
    choose: Chooser, facts: PlanFacts, engines: dict[Role, EnginePlan], output: Path
) -> dict[Role, LaunchModel]:
    """Returns where the server finds each model, and the head."""
    places = {role: _served(choose, role, engine, output) for role, engine in engines.items()}
    if facts.head:
        made = str((output / write_layers.OUTPUT).absolute()) if facts.head.head.unsaid else None
        named = LaunchModel(_place(choose, Role.DRAFT), facts.head.revision)
        places[Role.DRAFT] = LaunchModel(made) if made else named
    return places


def _served(choose: Chooser, role: Role, engine: EnginePlan, output: Path) -> LaunchModel:
    """Returns where the server finds a model: on the Hub at its commit, in its folder, or in the build.

    It is in the build if the draft is layers of the target, because only the build makes a model of them.
    """
    quantize = engine.checkpoint.fp8 and engine.model.source.scheme is None
    if engine.layers:
        return LaunchModel(str((output / write_layers.OUTPUT).absolute()), quantize=quantize)
    return LaunchModel(_place(choose, role), engine.model.revision, quantize)


def _place(choose: Chooser, role: Role) -> str:
    location = choose.loaded.locations[role]
    return str(location.absolute()) if isinstance(location, Path) else location


def _kv_bytes(engines: dict[Role, EnginePlan], own: MtpLayers | None) -> int:
    """Returns the bytes of the KV caches that hold the longest sequence for every request at once."""
    options = engines[Role.TARGET].options
    blocks = -(-(options.max_seq_len + options.max_draft_len) // _CPU_BLOCK)
    tokens = options.max_batch_size * blocks * _CPU_BLOCK
    layers = [(engine.model.source.num_hidden_layers, kv_of_layer(engine)) for engine in engines.values()]
    if own:
        layers.append((own.count, kv_of_layer(engines[Role.TARGET])))
    return tokens * sum(count * size for count, size in layers)
