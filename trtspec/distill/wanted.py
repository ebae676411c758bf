"""What a distillation is asked to do."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from trtspec.distill.sampling import Sampling
from trtspec.distill.settings import Settings


@dataclass(frozen=True, slots=True)
class Wanted:
    """A recipe, what its draft shall learn from, and where everything goes.

    Either `workload` names prompts that the target answers, here or, with `url`, at a deployment, whose model
    is `model_name`, so many `streams` at a time and with an API `key`; or `answers` is a file of answers that
    it gave. `held_out` is of the same kind and is not learned; without it a share of the others is kept.
    `chat` wraps prompts that are text in the target's chat template.
    """

    recipe: Path
    output: Path
    workload: str | None = None
    answers: Path | None = None
    held_out: str | None = None
    held_out_share: float = 0.1
    url: str | None = None
    model_name: str | None = None
    key: str | None = field(default=None, repr=False)
    streams: int = 16
    chat: bool = False
    sampling: Sampling = field(default_factory=Sampling)
    settings: Settings = field(default_factory=Settings)
