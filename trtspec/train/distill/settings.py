"""Holds the settings of a training."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TrainingSettings:
    """The settings of a training, by transformers' names.

    Batch, epochs and learning rate are those with which fine-tuning a draft of a billion parameters is
    reported to raise acceptance by 20 to 40 %. The rate falls to 0 in a straight line, without decay of the
    weights: transformers' own defaults. A draft of a few million parameters wants a rate 10 to 50 times as
    high.
    """

    batch_size: int = 8
    epochs: int = 3
    learning_rate: float = 2e-5
    max_length: int = 2048
    """The most tokens of a prompt and its answer together."""
    seed: int = 0
