"""The choices for a draft in its target's engine, or made of it: layers of it, or a head on it; pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from trtspec.backends.backend import Backend
from trtspec.base.roles import Role
from trtspec.checkpoint.convert_options import ConvertOptions
from trtspec.checkpoint.convert_options import Mapping as RankMapping
from trtspec.checkpoint.engine_draft import EngineDraft
from trtspec.checkpoint.layers.choose import SearchOptions
from trtspec.models.families import family_of
from trtspec.models.source import Source
from trtspec.pipeline.engine.engine_options import BuildOptions
from trtspec.pipeline.plan.facts import HeadFacts, PlanFacts
from trtspec.pipeline.plan.resolved import Choice, Chooser, EnginePlan, LayersPlan, Layout
from trtspec.recipe.schema import AUTO, Draft


def choose_draft(choose: Chooser, facts: PlanFacts, backend: Backend) -> EngineDraft | None:
    """Returns the draft that is built into the target's engine; None if there is none.

    Raises RecipeError for a number of tokens that it cannot propose, and ModelError for heads or a target
    that the engine cannot have.
    """
    method, found = choose.loaded.recipe.speculation.method, facts.head
    kind = backend.engine_drafts.get(method.kind)
    if kind is None:
        return None
    if kind.report:
        reason = f"experimental: TensorRT-LLM's {kind.report}, is open; try it with trtspec selftest"
        choose.choices.append(Choice("speculation.method", method.kind, "recipe", reason))
    usual = kind.usual(facts.target.source, method, found.head if found else None)
    size: int = choose("speculation.max_draft_len", usual.num_drafted, usual.reason)
    try:
        return usual.of_size(size)
    except ValueError as error:
        raise choose.error("speculation.max_draft_len", *error.args) from error


def check_ranks(choose: Chooser, draft: EngineDraft, mapping: RankMapping) -> None:
    """Raises RecipeError for a draft that cannot be split over the target's ranks."""
    if found := draft.misfit(mapping):
        raise choose.error(f"target.{found.subject}", f"of the draft inside, {found.problem}", found.repair)


def check_cyclic(choose: Chooser, source: Source, options: BuildOptions) -> None:
    """Raises RecipeError for sequences that are longer than a sliding window.

    The KV cache of a window is cyclic: rejected drafts have overwritten tokens that are still seen.
    """
    window, drafts = family_of(source).window(source), options.max_draft_len
    if window is not None and options.max_seq_len + drafts > window:
        problem = (
            f"tokens attend to the last {window}, and rejected drafts overwrite some of these in the KV cache"
        )
        raise choose.error("engine.max_seq_len", problem, f"at most {window - drafts}, drafts included")


def head_engine(target: EnginePlan, facts: HeadFacts) -> EnginePlan:
    """Returns the engine of a head, which has the target's dtype and sizes."""
    options = replace(target.options, max_draft_len=0, extra={})
    checkpoint = ConvertOptions(target.checkpoint.dtype)
    return EnginePlan(facts, None, checkpoint, options, target.runner, head=facts.head, is_dependent=True)


def depending(
    choose: Chooser, engines: Mapping[Role, EnginePlan], layout: Layout | None
) -> dict[Role, EnginePlan]:
    """Returns the engines; those of layers of the target live in its engine where they can.

    Another engine's server has no `layout`, and loads them as a model of its own. Raises RecipeError for a
    head that would not be in its target's process.
    """
    draft = choose.loaded.recipe.draft
    if draft is None or Role.DRAFT not in engines:
        return dict(engines)
    engine, target = engines[Role.DRAFT], engines[Role.TARGET]
    if engine.head and layout != "in_process":
        problem = "a head reads its target's states, which a Triton model cannot send"
        raise choose.error("serving.layout", problem, "write layout: in_process, or remove this line")
    if draft.layers_of_target is None:
        return dict(engines)
    is_beside = target.runner.lends_layers and layout == "in_process" and not draft.device
    layers = _layers(choose, draft, engine, target, shares_cache=is_beside)
    return {**engines, Role.DRAFT: replace(engine, layers=layers, is_dependent=is_beside)}


def weight_share(draft: EnginePlan, target: EnginePlan) -> float:
    """Returns what a token of the draft reads of the weights that one of the target reads."""
    parameters = [engine.model.source.parameters - _embedding(engine) for engine in (draft, target)]
    return parameters[0] / parameters[1]


def _embedding(engine: EnginePlan) -> int:
    """Returns the numbers of a table of which a token reads one row; a tied one is the head's too."""
    source = engine.model.source
    return 0 if source.tie_word_embeddings else source.vocab_size * source.hidden_size


def _layers(
    choose: Chooser, draft: Draft, engine: EnginePlan, target: EnginePlan, *, shares_cache: bool
) -> LayersPlan:
    """Returns the layers, or how they are chosen, and keeps the choices."""
    count, of = engine.model.source.num_hidden_layers, target.model.source.num_hidden_layers
    share = weight_share(engine, target)
    reason = f"{count} of {of} layers, {share:.0%} of the weights: pays if acceptance is higher than that"
    written, key = draft.layers_of_target, "draft.layer_search"
    name = AUTO if written == AUTO else ", ".join(map(str, written or ()))
    choose.choices.append(Choice("draft.layers_of_target", name, "recipe", reason))
    if written != AUTO:
        return LayersPlan(engine.model.source.layers)
    values, dataset = draft.layer_search.model_dump(exclude={"count", "dataset"}), engine.model.search
    calibration = choose.loaded.recipe.target.quantization.calibration
    if calibration and draft.layer_search.dataset is None and dataset:
        values |= {"text_field": calibration.text_field, "chat_template": calibration.chat_template}
    choose(f"{key}.dataset", dataset.name if dataset else "trtspec's own", _REASON[dataset is None])
    choose(f"{key}.count", count, "without 45 % of the layers between the first and the last, as in SWIFT")
    options = {name: choose(f"{key}.{name}", value, "the usual value") for name, value in values.items()}
    return LayersPlan(None, SearchOptions(target.checkpoint.dtype, shares_cache, count, **options), dataset)


_REASON = {
    False: "the calibration texts of the target",
    True: "a few short texts of code, prose and lists; better name your own texts",
}
