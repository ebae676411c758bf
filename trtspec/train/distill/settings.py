"""Holds the options of a distillation: those of its training, and those that only a head has."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from trtspec.client.endpoint import Endpoint


_TIMEOUT_S = 3600.0
DECAY = 0.8
"""The weight of a draft token relative to the one before it, as in EAGLE's trainer
(`eagle/traineagle3/main.py`)."""


@dataclass(frozen=True, slots=True)
class TrainingSettings:
    """The settings of a training, by transformers' names.

    With this batch, epochs and learning rate, fine-tuning a draft of a billion parameters is reported to
    raise acceptance by 20 to 40 %. The rate falls linearly to 0, without weight decay: transformers' own
    defaults. A draft of a few million parameters needs a rate 10 to 50 times as high.
    """

    batch_size: int = 8
    epochs: int = 3
    learning_rate: float = 2e-5
    max_length: int = 2048
    """The largest number of tokens of a prompt and its answer together."""
    seed: int = 0


@dataclass(frozen=True, slots=True)
class HeadSettings:
    """The shape of a head, and how it is trained."""

    method: Literal["eagle3"] = "eagle3"
    ttt_steps: int = 7
    """The number of consecutive tokens that EAGLE-3 is trained to propose from its own states:

    "training-time test" (arXiv 2503.01840, section 3.2; 7 in EAGLE's trainer and in SpecForge 0.2).
    """
    draft_vocab_size: int | None = None
    """The number of the target's tokens that the head can propose: the most frequent ones of the answers.
    None is all.
    """


HEAD_TRAINING = TrainingSettings(epochs=20, learning_rate=1e-4)
"""The rate of SpecForge 0.2 and the epochs of Speculators 0.9, by the `schema.py` of either.
The small targets of tests need higher rates."""


@dataclass(frozen=True, slots=True)
class TargetDeployment:
    """A server of the target, with drafts or without: they change no answer."""

    url: str
    model: str | None = None
    key: str | None = field(default=None, repr=False)
    streams: int = 16

    async def connect(self) -> Endpoint:
        """Finds the model, by Triton's API or OpenAI's; raises UnavailableError."""
        # The extra `serve` has what it needs, and other distillations do without.
        from trtspec.client.finding import find

        return (await find(self.url, self.model, chat=False, timeout_s=_TIMEOUT_S, key=self.key)).endpoint


@dataclass(frozen=True, slots=True)
class DistillationOptions:
    """The options of a distillation. Either `workload` or `answers` is given."""

    recipe: Path
    output: Path
    workload: str | None = None
    """Prompts that the target answers, at `deployment` or in this process."""
    answers: Path | None = None
    """A file of answers that the target gave."""
    held_out: str | None = None
    """More prompts or answers, only for measuring. None holds out a share of the others."""
    held_out_share: float = 0.1
    deployment: TargetDeployment | None = None
    chat: bool = False
    """True wraps prompts that are text in the target's chat template."""
    max_tokens: int = 256
    """The most tokens of an answer, unless its prompt has a limit of its own."""
    temperature: float = 0.0
    """0 is greedy."""
    settings: TrainingSettings = field(default_factory=TrainingSettings)
    head: HeadSettings | None = None
    """The new head to train for the target; None trains the recipe's draft."""

    @property
    def folder(self) -> Path:
        """The folder of the new draft or head."""
        return self.output / (self.head.method if self.head else "draft")
