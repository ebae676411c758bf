"""Rules between the keys of a recipe that a server of others serves. They are pure."""

from __future__ import annotations

from collections.abc import Iterator

from trtspec.base.findings import Finding
from trtspec.methods.method import TRANSLATES
from trtspec.recipe import gpus
from trtspec.recipe.schema import Recipe
from trtspec.recipe.support import SERVERS

_REMOVE = "remove this line"
_COORDINATOR = "it is of trtspec's own coordinator, which serves engines"
_TOTAL = "it limits prompt and answer together alone: engine.max_seq_len"
_NO_BUILD = "no engine is built, for which these are options of trtllm-build"
_LACKING = {
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
"""Keys that no server has, by what it does instead."""

_LACKING_OF = {
    "sglang": {
        "speculation.method.prompt_lookup_min": "its n-grams are of any length up to the longest",
        TRANSLATES: "its drafts have the target's vocabulary (0.5.23; sgl-project/sglang#22883 is open)",
    },
    "tensorrt_llm_pytorch": {
        TRANSLATES: "its drafts have the target's vocabulary (features/speculative-decoding.md of 1.2)",
        "speculation.method.prompt_lookup_min": "its n-grams are of any length up to the longest",
        "serving.model_name": "up to 1.2 clients call a model by its Hub id, or by its folder's name",
    },
}
"""Keys that one server has not."""

_LACKING_ON_CLUSTERS = {
    "kubernetes.store": "it loads the models itself, and no engine is in a store",
    "kubernetes.secrets.store": "it loads the models itself, and no engine is in a store",
    "kubernetes.hosts": "its ranks are on one host",
    "kubernetes.autoscaling": "replicas follow the gauges of trtspec's own coordinator",
}
_WATCHED = ("kubernetes.monitoring.rules", "kubernetes.monitoring.dashboard")


def doubt(backend: str, gpu: str) -> str | None:
    """Returns what a server is known to do wrong with drafts and does all the same; None if nothing.

    vLLM on a CPU: vllm-project/vllm#55005, open, and seen in 0.32.0 by `trtspec verify`.
    """
    if (backend, gpu) != ("vllm", gpus.NONE):
        return None
    wrong = "sampled text with drafts does not have the request's temperature (vllm-project/vllm#55005)"
    return f"on a CPU vLLM's {wrong}; greedy text is the target's own"


def allows_translation(backend: str) -> bool:
    """Says whether a draft may have another vocabulary than its target there."""
    return TRANSLATES not in _LACKING_OF.get(backend, {})


def server_contradictions(recipe: Recipe) -> Iterator[Finding]:
    """Finds keys that the recipe's server does not have, or that do not go together there."""
    lacking = _LACKING | _LACKING_OF.get(recipe.backend, {})
    for key, reason in lacking.items():
        if recipe.written(key):
            yield Finding(key, f"{recipe.backend} has no such thing: {reason}", _REMOVE)
    if recipe.speculation.policy == "adaptive":
        problem = f"{recipe.backend} drafts as much in every round; the adaptive policy is trtspec's own"
        yield Finding("speculation.policy", problem, "remove this line, or write policy: fixed")
    yield from _layout(recipe)
    yield from _pipeline(recipe)
    yield from _draft(recipe)


def lacking_on_clusters(recipe: Recipe) -> Iterator[Finding]:
    """Finds keys of `kubernetes` that a server of others does not have; they are no part of a build."""
    if recipe.backend not in SERVERS:
        return
    for key, reason in _LACKING_ON_CLUSTERS.items():
        if recipe.written(key):
            yield Finding(key, f"{recipe.backend} has no such thing: {reason}", _REMOVE)
    for key in _WATCHED:
        if recipe.written(key):
            problem = f"it is made of trtspec's own metrics, and {recipe.backend} has others"
            yield Finding(key, problem, _REMOVE)
    if recipe.kubernetes.form != "deployment":
        problem = f"KServe would be told of trtspec's own server, and {recipe.backend} is another"
        yield Finding("kubernetes.form", problem, "write form: deployment")


def _layout(recipe: Recipe) -> Iterator[Finding]:
    """Finds a layout of engines, or one of Triton for a server that is no backend of it."""
    layout = recipe.serving.layout
    if layout is None or (layout == "triton" and recipe.backend == "vllm"):
        return
    reason = _COORDINATOR if layout != "triton" else "of these servers Triton has a backend of vLLM alone"
    yield Finding("serving.layout", f"{recipe.backend} has no layout {layout}: {reason}", _REMOVE)


def _pipeline(recipe: Recipe) -> Iterator[Finding]:
    """Finds pipeline ranks, beside which SGLang drafts nothing.

    That is `check_pipeline_parallel_compat` of 0.5.23: only EAGLE's, and of servers that read prompts alone.
    """
    if recipe.backend == "sglang" and recipe.target.parallel.pipeline > 1:
        problem = "SGLang has no drafts beside pipeline ranks"
        yield Finding("target.parallel.pipeline", problem, "write tensor ranks instead")


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
