"""Predicts how long a step of a model takes on GPUs, from what it reads and computes; pure.

A product of matrices reads its weights and multiplies, which overlap: measured kernels go round the corner of
the roofline (Williams, Waterman, Patterson, "Roofline: an insightful visual performance model for multicore
architectures", 2009) like the root of the sum of both squares. Then come the keys and values, the rows that
short kernels hand on, a fixed cost of each layer, and the exchanges of several ranks. An exchange has two
forms, as in TensorRT-LLM's `allReduceKernels`: each rank reads all of every other one at once, or a part of
it and gathers the sums; the shorter one counts.

Data sheets say what a GPU could do. A `HardwareShare` has the part of that which kernels reach. Its source
are the kernels that NVIDIA measured, in the tables of aiconfigurator 0.12.0 (Apache-2.0) for TensorRT-LLM.
`tests/perf/kernel_times.py` composes steps of them, makes the constants anew, and holds them to models that
they were not fitted to.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import hypot

from trtspec.forecast.speedup import RoundCosts


@dataclass(frozen=True, slots=True)
class HardwareShare:
    """The shares of a data sheet's rates that kernels reach, and what it does not mention."""

    bandwidth: float
    """The share of the bandwidth."""
    flops: float
    """The share of the FLOPs."""
    link: float
    """The share of the link between GPUs."""
    layer_s: float
    """The seconds that a layer's kernels cost besides all else."""
    all_reduce_s: tuple[float, float]
    """The seconds that an exchange costs besides its bytes: all at once, and in two parts."""
    moved: float
    """How often the bytes of a row go through the memory in a layer, shared by the ranks."""
    errors: tuple[float, float]
    """The relative errors that 95 of 100 steps stay within: on one GPU, and on several.

    They are of models that the shares were not fitted to. The gain by drafts is as far off as a step.
    """
    measured_on: tuple[str, ...]
    """The GPUs whose kernels NVIDIA measured. Others with the same cores have the same shares."""


OF_HOPPER = HardwareShare(0.83, 0.73, 0.6, 39e-6, (2e-6, 22e-6), 53, (0.12, 0.09), ("h100", "h200"))
OF_BLACKWELL = HardwareShare(0.8, 0.69, 0.73, 41e-6, (3.5e-6, 34e-6), 73, (0.14, 0.14), ("b200",))
OF_AMPERE = HardwareShare(0.8, 0.8, 0.43, 65e-6, (1e-6, 44e-6), 30, (0.2, 0.2), ("a100",))
OF_ADA = HardwareShare(0.81, 0.57, 0.2, 1e-6, (15e-6, 1.0), 60, (0.13, 0.45), ("l40s",))
"""On PCIe, an exchange in two parts never pays. A layer of an L40S costs hardly more than its bytes."""

SHARES = {100: OF_BLACKWELL, 90: OF_HOPPER, 89: OF_ADA, 86: OF_AMPERE, 80: OF_AMPERE}
"""The shares by the compute capability times ten."""


@dataclass(frozen=True, slots=True)
class Chip:
    """The peak rates of one GPU by its data sheet, per second, and the shares of them that count."""

    bandwidth: float
    """Bytes read from its memory."""
    link: float
    """Bytes sent to other GPUs."""
    flops_16: float
    """Operations on dense matrices of 16-bit floats."""
    flops_8: float
    """Operations on dense matrices of 8-bit floats. A GPU without FP8 has `flops_16` here."""
    share: HardwareShare = OF_HOPPER
    is_measured: bool = True
    """False if the shares are those of another GPU with the same cores."""

    def error(self, ranks: int) -> float:
        """Returns the relative error of a step and of a gain: twice the measured one where the kernels of
        another GPU were measured."""
        return self.share.errors[ranks > 1] * (1 if self.is_measured else 2)


@dataclass(frozen=True, slots=True)
class Network:
    """The bytes and operations of one step of a model; all ranks together, copies counted."""

    weight_bytes: float
    """The bytes that are read once in every step. The table of embeddings, of which a step reads a row, is
    not among them.
    """
    kv_bytes: float
    """The bytes of a token of context."""
    flops_8: float
    """The operations that each row takes with weights of 8 bits."""
    flops_16: float
    """The operations that each row takes with weights of 16 bits."""
    attention_flops: float
    """The operations that each row takes for each token of its context."""
    layers: int
    row_bytes: float
    """The bytes of one row between two layers."""
    tensor: int = 1
    pipeline: int = 1
    expert_bytes: float = 0.0
    """Of a mixture of experts, the bytes of the weights that a router chooses from."""
    chosen: float = 1.0
    """Of a mixture of experts, the share of these weights that the router chooses for a row."""

    def weight_bytes_of(self, rows: float) -> float:
        """Returns the bytes of weights that a step of so many rows reads, 1 or more.

        As if a router chose at random, a row leaves out an expert with the chance `1 - chosen`, whatever
        other rows have (Huang et al., "MoESD", arXiv 2505.19645). Texts choose with less variety than that.
        """
        left_out: float = (1 - self.chosen) ** rows
        return self.weight_bytes - self.expert_bytes * left_out


@dataclass(frozen=True, slots=True)
class BatchLoad:
    """A number of running sequences, and their mean length in tokens."""

    sequences: int
    context: int


@dataclass(frozen=True, slots=True)
class StepTime:
    """The seconds of a step by what they are spent on; weights are read while others are multiplied."""

    weights_s: float
    multiplying_s: float
    keys_s: float
    """Reading the keys and values."""
    rest_s: float

    @property
    def seconds(self) -> float:
        return hypot(self.weights_s, self.multiplying_s) + self.keys_s + self.rest_s

    @property
    def bottleneck(self) -> str:
        """The larger of the three: `bandwidth`, `flops` or `overhead`."""
        reading = self.weights_s + self.keys_s
        costs = {"bandwidth": reading, "flops": self.multiplying_s, "overhead": self.rest_s}
        return max(costs, key=lambda name: costs[name])


def step(network: Network, chip: Chip, load: BatchLoad, rows: int = 1) -> StepTime:
    """Returns the time of a step that computes `rows` rows of each sequence: 1 decodes, K + 1 verify K
    drafts.

    Ranks of `tensor` share each layer and exchange their results twice in it. Those of `pipeline` work one
    after another, each on its part of the sequences meanwhile. Attention fills its tiles with the rows of a
    sequence, so they read its keys once and are multiplied at no cost of their own.
    """
    sequences = max(load.sequences / network.pipeline, 1)
    ranks, all_rows, share = network.tensor, sequences * rows, chip.share
    bandwidth = ranks * chip.bandwidth * share.bandwidth
    multiplying = network.flops_8 / chip.flops_8 + network.flops_16 / chip.flops_16
    row_bytes = all_rows * network.row_bytes
    moving = share.moved * row_bytes / (ranks * chip.bandwidth)
    exchange = _all_reduce(row_bytes, ranks, chip)
    return StepTime(
        weights_s=network.weight_bytes_of(all_rows) / bandwidth,
        multiplying_s=all_rows * multiplying / ranks / share.flops,
        keys_s=sequences * load.context * network.kv_bytes / bandwidth,
        rest_s=network.layers * (share.layer_s + moving + 2 * exchange),
    )


def _all_reduce(size: float, ranks: int, chip: Chip) -> float:
    """Returns the seconds in which so many bytes are summed up over the ranks."""
    if ranks == 1:
        return 0.0
    link, (at_once, in_parts) = chip.link * chip.share.link, chip.share.all_reduce_s
    whole = (ranks - 1) * size / link
    return min(at_once + whole, in_parts + 2 / ranks * whole)


def round_costs(
    target: Network, draft: Network | None, chip: Chip, load: BatchLoad, length: int, overhead_s: float
) -> RoundCosts:
    """Returns the costs of a round with a draft of `length` tokens, which cost nothing without a `draft`.

    All sequences draft and are verified together. A verification reads what the one before it did not: the
    last token and the drafts, since TensorRT-LLM keeps the rest of a finished sequence for the next one with
    the same beginning (`kvCacheManager.cpp`, `releaseBlocks`). `overhead_s` is what a round costs besides the
    engines.
    """
    plain = step(target, chip, load).seconds
    verified = step(target, chip, load, length + 1).seconds - plain
    return RoundCosts(
        draft=step(draft, chip, load).seconds / plain if draft else 0.0,
        overhead=overhead_s / plain,
        verified=verified / plain / length,
    )
