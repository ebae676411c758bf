"""The longest sequence of another engine's server, which is the model's own where memory allows; pure.

vLLM counts so (`_get_and_verify_max_len` of 0.32's vllm/config/model.py), and does not start for more. SGLang
and TensorRT-LLM agree (`get_context_length` of 0.5.23, `infer_max_seq_len` of 1.2's modeling_utils.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from trtspec.base.roles import Role
from trtspec.models.families import longrope
from trtspec.models.heads.head import HeadDescription
from trtspec.pipeline.plan.memory import are_reckoned, budget_of
from trtspec.pipeline.plan.resolved import Chooser, EnginePlan, TextBound, choose_max_seq_len
from trtspec.recipe import gpus
from trtspec.recipe.migration.tool import LongerTexts

_ON_CPU = TextBound(8192, "the server reserves the host's memory for all requests at once")
_ROUND = 256  # tokens to which a length that memory bounds is rounded down


def with_texts(
    choose: Chooser,
    engines: Mapping[Role, EnginePlan],
    head: HeadDescription | None,
    longer: LongerTexts | None,
) -> dict[Role, EnginePlan]:
    """Returns the engines with the longest sequence of each.

    A `head` bounds it if the server needs a variable for `longer` sequences than the head was made for, and
    the recipe does not set that.

    Raises RecipeError for longer sequences than a server takes of the target, or than its iterations read.
    """
    own = {role: engine.model.source.served_length for role, engine in engines.items()}
    target = engines[Role.TARGET]
    longest = choose_max_seq_len(choose, own, [*_of_head(choose, head, longer), *_bounds(choose, engines)])
    options = replace(target.options, max_input_len=longest - 1, max_seq_len=longest)
    if not target.enable_chunked_context and options.max_num_tokens < longest:
        problem = (
            f"{options.max_num_tokens} is less than the longest sequence, which is read in one iteration"
        )
        repair = f"at least {longest}, or enable_chunked_context: true"
        raise choose.error("engine.max_num_tokens", problem, repair)
    return {role: replace(engine, options=options) for role, engine in engines.items()}


def _of_head(
    choose: Chooser, head: HeadDescription | None, longer: LongerTexts | None
) -> Iterator[TextBound]:
    environment = choose.loaded.recipe.engine.environment
    if head and head.layer and longer and not longer.are_allowed(environment):
        longest = head.layer["max_position_embeddings"]
        yield TextBound(longest, f"what the head was made for: the server needs {longer.variable} for more")


def _bounds(choose: Chooser, engines: Mapping[Role, EnginePlan]) -> list[TextBound]:
    """Returns what bounds the length if the recipe sets none."""
    hardware, target = choose.loaded.recipe.hardware, engines[Role.TARGET].model.source
    found = []
    if original := longrope.original(target):
        found.append(TextBound(original, "vLLM's own: beyond it longrope reads short sequences worse"))
    gpu = gpus.GPUS.get(hardware.gpu)
    if gpu is None:
        return [*found, _ON_CPU]
    if are_reckoned(engines):
        held = budget_of(gpu, engines, hardware.count).tokens - engines[Role.TARGET].options.max_draft_len
        if held >= _ROUND:
            own = target.served_length
            reason = f"what the KV cache of {gpu.label} holds, of {own:,} that the target was made for"
            found.append(TextBound(held // _ROUND * _ROUND, reason))
    return found
