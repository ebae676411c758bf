"""A recipe's draft model as a student: trained whole, asked by its engine of the torch backend."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

from trtspec.base.progress import Advance
from trtspec.models.source import Source, read_source
from trtspec.train.distill.engines import choices
from trtspec.train.distill.model import load, write
from trtspec.train.distill.pair import TrainingPair
from trtspec.train.tune.answer import RecordedAnswer
from trtspec.train.tune.replay import Choices


class TrainedDraft:
    """The draft of a pair; engines are made in `scratch`."""

    def __init__(self, pair: TrainingPair, draft: Source, scratch: Path) -> None:
        self._pair, self._draft, self._scratch = pair, draft, scratch

    @property
    def files(self) -> Sequence[Path]:
        return self._draft.files

    @property
    def longest(self) -> int:
        return self._pair.num_draft_tokens

    def module(self) -> nn.Module:
        """Loads it in float32: steps as small as these would be lost in the weights' own dtype."""
        return load(self._draft, torch.float32)

    def choices(
        self, folder: Path | None, answers: Sequence[RecordedAnswer], advance: Advance
    ) -> list[Sequence[Choices]]:
        draft = read_source(folder) if folder else self._draft
        said = choices(draft, self._pair, answers, self._scratch, advance)
        return [[one] * self.longest for one in said]

    def write(self, module: nn.Module, folder: Path) -> None:
        write(module, self._draft, folder)
