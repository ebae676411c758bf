"""Holds the options of a distillation."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from trtspec.train.distill.deployment import TargetDeployment
from trtspec.train.distill.heads.settings import HeadSettings
from trtspec.train.distill.settings import TrainingSettings


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
    """More of the same kind, which is not learned. None holds out a share of the others."""
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
