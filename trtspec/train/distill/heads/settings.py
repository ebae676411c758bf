"""Holds the settings that only the training of heads has, with the published values of each method."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from trtspec.train.distill.settings import TrainingSettings

HeadMethod = Literal["eagle3", "medusa"]
DECAY = 0.8
"""What a token of a draft counts beside the one before it.

EAGLE's trainer (`eagle/traineagle3/main.py`) and Medusa's paper (arXiv 2401.10774, section 2.2.1) have it so.
"""


@dataclass(frozen=True, slots=True)
class HeadSettings:
    """The shape of a head, and how it is trained."""

    method: HeadMethod
    ttt_steps: int = 7
    """The number of tokens that EAGLE-3 is trained to propose one after the other, from its own states.

    This is "training-time test" (arXiv 2503.01840, section 3.2; 7 in EAGLE's trainer and in SpecForge 0.2).
    """
    draft_vocab_size: int | None = None
    """The number of the target's tokens that the head may say: the most frequent ones of the answers. None is
    all.
    """
    medusa_heads: int = 3
    """The number of tokens that Medusa proposes (3 in its README)."""


PUBLISHED: Mapping[HeadMethod, TrainingSettings] = {
    "eagle3": TrainingSettings(epochs=20, learning_rate=1e-4),
    "medusa": TrainingSettings(epochs=2, learning_rate=1e-3),
}
"""By method. EAGLE-3: the rate of SpecForge 0.2 (`config/schema.py`), the epochs of Speculators 0.9
(`train/config/schema.py`); Medusa: its README. The small targets of tests want higher rates."""
