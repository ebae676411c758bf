"""Predicts how fast the engines of a plan will be, and what drafts will bring; pure.

The numbers of a model are exact: its bytes are those of its checkpoint without the table of embeddings, a
weight is multiplied and added once for each row, an expert's only for those that it is chosen for, and
attention multiplies queries with keys and the result with values. The roofline of `trtspec.forecast` turns
them into times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from trtspec.base.roles import Role
from trtspec.checkpoint.convert import rank_sizes
from trtspec.checkpoint.convert_options import ConvertOptions
from trtspec.checkpoint.tensors import DTYPES, FP8
from trtspec.forecast.outlook import Best, ForecastPair, ForecastRange, best, break_even, gain_range
from trtspec.forecast.roofline import SHARES, BatchLoad, Chip, Network, StepTime, step
from trtspec.models.families import FAMILIES, family_of
from trtspec.models.source import ITEM_SIZE, Source
from trtspec.pipeline.plan.memory import Budget, kv_of_layer
from trtspec.pipeline.plan.resolved import EnginePlan, Layout, Resolved
from trtspec.recipe import gpus
from trtspec.recipe.devices import CPU

ACCEPTANCES = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
STREAMS = (1, 2, 4, 8, 16, 32, 64)
CONTEXT = 1024

ROUND_S: dict[Layout, float] = {"in_process": 116e-6, "bls": 2e-3}
"""What a round of one stream costs inside Triton besides the engines, as measured in `tests/perf/README.md`;
in the bls layout with both engines Python models, which cost more than NVIDIA's C++ backend."""


@dataclass(frozen=True, slots=True)
class SpeedRow:
    """The expected speed with a number of running sequences."""

    streams: int
    """The number of running sequences."""
    plain: StepTime
    """The time of a step of the target alone."""
    tokens_per_second: float
    draft_cost: float
    """The time of a token of the draft, in steps of the target alone."""
    best: tuple[Best, ...]
    """The draft length and speed-up for each of `ACCEPTANCES`."""
    ranges: tuple[ForecastRange, ...]
    """The range of each gain, which may be below 1."""
    break_even: float | None
    """The acceptance from which on drafts gain; None if they never do."""
    fits: bool
    """True if the KV caches hold so many sequences."""


@dataclass(frozen=True, slots=True)
class Speed:
    """The forecast of a plan."""

    pair: ForecastPair
    context: int
    """The average length of a sequence in tokens."""
    rows: tuple[SpeedRow, ...]

    def at(self, streams: int) -> BatchLoad:
        return BatchLoad(streams, self.context)


def unforeseeable(resolved: Resolved) -> str | None:
    """Returns why the speed is unknown before a run; None if it can be computed."""
    if reason := resolved.target.runner.no_forecast:
        return reason
    if resolved.loaded.recipe.hardware.gpu == gpus.NONE:
        return "a CPU has no data sheet: `trtspec bench` measures it"
    if unknown := {engine.model.source.architecture for engine in resolved.engines.values()} - set(FAMILIES):
        return f"the layers of {' and '.join(sorted(unknown))} are unknown"
    if resolved.target.engine_draft:
        return (
            "the plan does not compute the gain by an engine's own drafts: `trtspec bench --baseline` "
            "measures it"
        )
    if resolved.launch and resolved.target.options.max_draft_len != resolved.num_draft_tokens:
        return (
            "the plan does not compute the gain by a tree of drafts: `trtspec bench --baseline` measures it"
        )
    draft = resolved.engines.get(Role.DRAFT)
    if draft and draft.device == CPU:
        return "a draft on the CPU has no data sheet: `trtspec bench` measures it"
    return None


def speed(resolved: Resolved, budget: Budget, context: int | None = None) -> Speed:
    """Returns the forecast; `context` is `CONTEXT`, or half of the longest sequence if that is less."""
    options = resolved.target.options
    context = context or min(CONTEXT, options.max_seq_len // 2)
    pair = pair_of(resolved, options.max_draft_len)
    return Speed(pair, context, tuple(_rows(pair, context, budget, STREAMS)))


def pair_of(resolved: Resolved, longest: int) -> ForecastPair:
    """Returns the engines of a plan on its GPUs, with drafts of at most `longest` tokens.

    It does not count what another engine's server needs for a round beside its models.
    """
    draft = resolved.engines.get(Role.DRAFT)
    return ForecastPair(
        network(resolved.target),
        network(draft) if draft else None,
        chip(gpus.GPUS[resolved.loaded.recipe.hardware.gpu]),
        ROUND_S[resolved.coordination.layout] if resolved.coordination else 0.0,
        longest,
    )


def _rows(pair: ForecastPair, context: int, budget: Budget, streams: Sequence[int]) -> list[SpeedRow]:
    return [
        SpeedRow(
            load.sequences,
            step(pair.target, pair.chip, load),
            pair.plain_tokens_per_second(load),
            pair.costs(load, 1).draft,
            tuple(best(pair, load, acceptance) for acceptance in ACCEPTANCES),
            tuple(gain_range(pair, load, acceptance) for acceptance in ACCEPTANCES),
            break_even(pair, load),
            load.sequences * (context + pair.longest) <= budget.tokens,
        )
        for load in (BatchLoad(count, context) for count in streams)
    ]


def chip(gpu: gpus.GpuProduct) -> Chip:
    """Returns the peak rates of a GPU; a link carries half of its bytes each way."""
    flops_16, share = gpu.tflops_16 * 1e12, SHARES[gpu.sm]
    return Chip(
        gpu.bandwidth_gb_s * 1e9,
        gpu.link_gb_s * 1e9 / 2,
        flops_16,
        gpu.tflops_8 * 1e12 if gpu.tflops_8 else flops_16,
        share,
        is_measured=gpu.name in share.measured_on,
    )


def source(gpu: gpus.GpuProduct) -> str:
    """Returns the source of each of a GPU's constants."""
    kin = SHARES[gpu.sm].measured_on
    measured = "it" if gpu.name in kin else " and ".join(kin)
    sheet = f"rates: NVIDIA's data sheet of {gpu.label.removeprefix('NVIDIA ')}"
    return f"{sheet}; shares: kernels that NVIDIA measured on {measured}"


def network(engine: EnginePlan) -> Network:
    """Returns what a step of an engine reads and computes, all its ranks together."""
    return network_of(engine.model.source, engine.checkpoint)


def network_of(source: Source, checkpoint: ConvertOptions) -> Network:
    """Returns what a step of a model with these weights reads and computes; raises ModelError for a family
    whose layers are unknown.
    """
    mapping, item = checkpoint.mapping, ITEM_SIZE[DTYPES[checkpoint.dtype]]
    embeddings, stored = source.vocab_size * source.hidden_size, ITEM_SIZE[FP8] if checkpoint.fp8 else item
    chosen = source.experts.chosen / source.experts.count if source.experts else 1.0
    linear = experts = 0
    for weight in family_of(source).weights(source):
        if weight.linear:
            numbers = sum(prod(part.shape) for part in weight.parts)
            experts += numbers if weight.experts else 0
            linear += numbers
    computed = linear - experts * (1 - chosen)
    queries = source.num_attention_heads * source.head_size
    return Network(
        weight_bytes=sum(rank_sizes(source, checkpoint)) - embeddings * item,
        kv_bytes=source.num_hidden_layers * kv_of_layer(source, checkpoint) * mapping.tp_size,
        flops_8=2 * computed if checkpoint.fp8 else 0,
        flops_16=2 * (embeddings if checkpoint.fp8 else embeddings + computed),
        attention_flops=4 * source.num_hidden_layers * queries,
        layers=source.num_hidden_layers,
        row_bytes=source.hidden_size * item,
        tensor=mapping.tp_size,
        pipeline=mapping.pp_size,
        expert_bytes=experts * stored,
        chosen=chosen,
    )
