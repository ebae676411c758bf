"""Predicts how long a step of a model takes on GPUs, from what it reads and computes; pure.

A step takes as long as the longer of two: reading the weights and the keys and values of all sequences, and
multiplying. Each layer adds a cost, and several ranks add the time of their exchanges. That is the roofline
of Williams, Waterman, Patterson, "Roofline: an insightful visual performance model for multicore
architectures" (2009), with the two costs that a decoder's short kernels add.

Data sheets say what a GPU could do. `PUBLISHED` is the share that programs reach, from two sources that know
nothing of TensorRT-LLM, of H200 or of speculative decoding:

- Reading, layers and ranks: least squares of the relative error over the seven bfloat16 measurements of
  gpt-fast's README (https://github.com/pytorch-labs/gpt-fast at 0f925b5: Llama 2 7B and 70B on one to eight
  A100-80GB, batch 1, compiled with CUDA graphs); none is off by more than 3.3 %.
- Multiplying: the median of the six FP8 products with 4,096 rows of the first README of DeepGEMM
  (https://github.com/deepseek-ai/DeepGEMM at a6d97a1: H800, whose tensor cores are an H100's), 1,041 of
  1,979 TFLOPS. The same share is taken of other dtypes and GPUs.

`tests/unit/forecast/test_constants.py` has both tables and makes the constants anew.
"""

from __future__ import annotations

from dataclasses import dataclass

from trtspec.forecast.speedup import RoundCosts


@dataclass(frozen=True, slots=True)
class Chip:
    """The peak rates of one GPU by its data sheet, per second."""

    bandwidth: float
    """Bytes read from its memory."""
    link: float
    """Bytes sent to other GPUs."""
    flops_16: float
    """Operations on dense matrices of 16-bit floats."""
    flops_8: float
    """Operations on dense matrices of 8-bit floats. A GPU without FP8 has `flops_16` here."""


@dataclass(frozen=True, slots=True)
class HardwareShare:
    """The shares of a data sheet's rates that programs reach, and the seconds that it does not mention."""

    bandwidth: float
    """The share of the bandwidth."""
    flops: float
    """The share of the FLOPs."""
    layer_s: float
    """The seconds that a layer costs besides reading and multiplying."""
    all_reduce_s: float
    """The seconds that one exchange between the ranks costs besides its bytes."""


PUBLISHED = HardwareShare(bandwidth=0.79, flops=0.53, layer_s=40e-6, all_reduce_s=6.5e-6)


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
    """The seconds of a step by what they are spent on; reading and multiplying go on at the same time."""

    reading_s: float
    multiplying_s: float
    rest_s: float

    @property
    def seconds(self) -> float:
        return max(self.reading_s, self.multiplying_s) + self.rest_s

    @property
    def bottleneck(self) -> str:
        """The larger of the three: `bandwidth`, `flops` or `overhead`."""
        costs = {"bandwidth": self.reading_s, "flops": self.multiplying_s, "overhead": self.rest_s}
        return max(costs, key=lambda name: costs[name])


def step(
    network: Network, chip: Chip, load: BatchLoad, rows: int = 1, share: HardwareShare = PUBLISHED
) -> StepTime:
    """Returns the time of a step that computes `rows` rows of each sequence: 1 decodes, K + 1 verify K
    drafts.

    Ranks of `tensor` share each layer and exchange their results twice in it, each sending `2 (n - 1) / n` of
    the bytes. Those of `pipeline` work one after another, each on its part of the sequences meanwhile.
    """
    sequences = max(load.sequences / network.pipeline, 1)
    ranks, all_rows = network.tensor, sequences * rows
    read = network.weight_bytes_of(all_rows) + sequences * load.context * network.kv_bytes
    attention = network.attention_flops * load.context
    multiplying = network.flops_8 / chip.flops_8 + (network.flops_16 + attention) / chip.flops_16
    sent = 2 * (ranks - 1) / ranks * all_rows * network.row_bytes
    exchange = share.all_reduce_s + sent / (chip.link * share.bandwidth) if ranks > 1 else 0.0
    return StepTime(
        reading_s=read / ranks / (chip.bandwidth * share.bandwidth),
        multiplying_s=all_rows * multiplying / ranks / share.flops,
        rest_s=network.layers * (share.layer_s + 2 * exchange),
    )


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
