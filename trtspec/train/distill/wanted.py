"""Holds the options of a distillation."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from trtspec.train.distill.deployment import TargetDeployment
from trtspec.train.distill.heads.settings import HeadSettings
from trtspec.train.distill.settings import TrainingSettings


@dataclass(frozen=True, slots=True)
class DistillationOptions:
    """A recipe, what its draft shall learn from, and where everything goes.

    Either `workload` names prompts that the target answers, at a `deployment` or here; or `answers` is a file
    of answers that it gave. `held_out` is of the same kind and is not learned; without it a share of the
    others is kept. `chat` wraps prompts that are text in the target's chat template. An answer has at most
    `max_tokens`, unless its prompt says how many, and is greedy with `temperature` 0. With a `head` a new one
    is trained for the target instead of the recipe's draft.
    """

    recipe: Path
    output: Path
    workload: str | None = None
    answers: Path | None = None
    held_out: str | None = None
    held_out_share: float = 0.1
    deployment: TargetDeployment | None = None
    chat: bool = False
    max_tokens: int = 256
    temperature: float = 0.0
    settings: TrainingSettings = field(default_factory=TrainingSettings)
    head: HeadSettings | None = None

    @property
    def folder(self) -> Path:
        """The folder of the new draft or head."""
        return self.output / (self.head.method if self.head else "draft")
