"""Rules between the keys of a recipe that another engine's server serves, and its target; pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from trtspec.base.environment import is_secret
from trtspec.base.findings import Finding
from trtspec.models.mtp import mtp_layers
from trtspec.models.source import Source
from trtspec.recipe.loader import lacking
from trtspec.recipe.migration.reading import FlagTable
from trtspec.recipe.schema import Recipe

_SUBJECT = "MTP layers"
_NOTHING = "nothing proposes"
_TAKE_OTHER = "take a model that was trained with them, or another method"


@dataclass(frozen=True, slots=True)
class MtpSupport:
    """The targets whose own layers a server drafts with."""

    names: frozenset[str]
    """The `model_type` or the class of each, as `config.json` has it."""
    source: str
    """Where that is written."""
    in_whole_turns: bool = False
    """True if a draft longer than the number of layers must be a multiple of it."""

    def check(self, target: Source, num_draft_tokens: int | None) -> Iterator[Finding]:
        """Finds why the server cannot draft so many tokens with the target; None stands for the default."""
        found = mtp_layers(target)
        if found is None:
            problem = "the target has none: neither config.json nor a tensor names one"
            yield Finding(_SUBJECT, problem, _TAKE_OTHER, effect=_NOTHING)
        elif not found.size:
            problem = f"config.json says {found.count}, and their weights are missing, as in many copies"
            yield Finding(_SUBJECT, problem, "take the publisher's own weights", effect=_NOTHING)
        elif self.names.isdisjoint((target.model_type, target.architecture)):
            problem = f"the server cannot draft with those of {target.architecture} ({self.source})"
            yield Finding(_SUBJECT, problem, "take another method, or another engine", effect=_NOTHING)
        elif self.in_whole_turns and found.is_said and num_draft_tokens:
            count = found.count
            if num_draft_tokens > count and num_draft_tokens % count:
                problem = (
                    f"a draft of {num_draft_tokens} tokens is not a multiple of the target's {count} layers"
                )
                repair = f"write num_draft_tokens: {num_draft_tokens // count * count}"
                yield Finding(_SUBJECT, problem, repair, effect="the server does not start")


_REMOVE = "remove this line"
_COORDINATOR = "only trtspec's own coordinator has it, and that serves engines"
_TOTAL = "it limits prompt and answer together alone: engine.max_seq_len"
_NO_BUILD = "no engine is built, for which these are options of trtllm-build"
_OWN_API = "its server has an API of its own, with its own options"
_LACKING = {
    "serving.reasoning_parser": _OWN_API,
    "serving.generation_config": _OWN_API,
    "serving.max_queue_size": _COORDINATOR,
    "serving.max_queue_delay_microseconds": _COORDINATOR,
    "serving.default_timeout_microseconds": _COORDINATOR,
    "serving.draft_timeout_microseconds": _COORDINATOR,
    "serving.target_timeout_microseconds": _COORDINATOR,
    "speculation.share": _COORDINATOR,
    "speculation.method.earlier_answers": "it keeps no answers by tenant",
    "engine.max_input_len": _TOTAL,
    "target.build": _NO_BUILD,
    "draft.build": _NO_BUILD,
    "target.quantization.calibration": "it takes scales from the weights as it loads them, or from the model",
    "draft.quantization.calibration": "it takes scales from the weights as it loads them, or from the model",
    "draft.device": "it runs the draft on the target's GPUs",
}
"""Keys that no server has, with what it does instead."""

_LACKING_ON_CLUSTERS = {
    "kubernetes.store": "it loads the models itself, and no engine is in a store",
    "kubernetes.secrets.store": "it loads the models itself, and no engine is in a store",
    "kubernetes.hosts": "its ranks are on one host",
    "kubernetes.autoscaling": "replicas follow the gauges of trtspec's own coordinator",
    "kubernetes.monitoring.rules": "they are made of trtspec's own metrics, and it has others",
    "kubernetes.monitoring.dashboard": "it is made of trtspec's own metrics, and the server has others",
}


def contradictions(recipe: Recipe, own: Mapping[str, str], layouts: Collection[str]) -> Iterator[Finding]:
    """Finds keys that the recipe's server does not have, or that do not go together there.

    `own` are the keys that this one has not and other servers have, by the reason; `layouts` are the
    values of `serving.layout` that it has.
    """
    yield from lacking(recipe, {**_LACKING, **own})
    if recipe.speculation.policy == "adaptive":
        problem = f"{recipe.backend} drafts as much in every round; the adaptive policy is trtspec's own"
        yield Finding("speculation.policy", problem, "remove this line, or write policy: fixed")
    layout = recipe.serving.layout
    if layout and layout not in layouts:
        reason = _COORDINATOR if layout != "triton" else "of these servers Triton has a backend of vLLM alone"
        yield Finding("serving.layout", f"{recipe.backend} has no layout {layout}: {reason}", _REMOVE)
    yield from _draft(recipe)


def passed_on(recipe: Recipe, flags: FlagTable) -> Iterator[Finding]:
    """Finds flags of `engine.extra_args` that trtspec sets, and secrets, which do not belong in a recipe."""
    key, sets = "engine.extra_args", flags.sets
    for word in recipe.engine.extra_args:
        written = word.partition("=")[0]
        name = flags.syntax.name(written).partition(".")[0]
        if reason := sets.get(name):
            yield Finding(key, f"{name} is not passed on: {reason}", "remove it")
        elif len(meant := flags.syntax.meant(written)) > 1:
            yield Finding(key, f"{written} may be {', '.join(meant)}", "write the whole flag")
    if recipe.serving.layout and recipe.engine.extra_args:
        yield Finding(key, "under Triton vLLM has no command line", _REMOVE)
    for name, value in recipe.engine.environment.items():
        if is_secret(name, value):
            problem = f"{name} looks like a secret, and a recipe is read by many"
            yield Finding("engine.environment", problem, "set it where trtspec deploy runs")


def lacking_on_clusters(recipe: Recipe) -> Iterator[Finding]:
    """Finds keys of `kubernetes` that another engine's server does not have; they are no part of a build."""
    yield from lacking(recipe, _LACKING_ON_CLUSTERS)
    if recipe.kubernetes.form != "deployment":
        problem = (
            f"the manifests for KServe describe trtspec's own server, and {recipe.backend} is another one"
        )
        yield Finding("kubernetes.form", problem, "write form: deployment")


def _draft(recipe: Recipe) -> Iterator[Finding]:
    """Finds a draft that should not be loaded like the target.

    vLLM's draft has the target's tensor ranks (vllm/v1/spec_decode/draft_model.py), and dtype and KV cache
    (vllm/config/speculative.py); SGLang's are those of one `ServerArgs`, TensorRT-LLM's of one `LlmArgs`.
    """
    target, draft = recipe.target, recipe.draft
    if draft is None:
        return
    same = f"{recipe.backend} loads the draft like the target"
    ranks = draft.parallel
    if recipe.written("draft.parallel") and (ranks.tensor, ranks.pipeline) != (target.parallel.tensor, 1):
        problem = f"{same}, on {target.parallel.tensor} tensor ranks, and in one part"
        yield Finding("draft.parallel", problem, _REMOVE)
    if recipe.written("draft.dtype") and draft.dtype != target.dtype:
        yield Finding("draft.dtype", f"{same}, whose dtype is {target.dtype}", _REMOVE)
    cache = "draft.quantization.kv_cache"
    if recipe.written(cache) and draft.quantization.kv_cache != target.quantization.kv_cache:
        yield Finding(cache, f"{same}, whose KV cache is {target.quantization.kv_cache}", _REMOVE)
