"""Defines what is trained: a draft model or a head."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from trtspec.base.progress import Advance
from trtspec.train.tune.answer import RecordedAnswer
from trtspec.train.tune.replay import Choices

if TYPE_CHECKING:
    from torch.nn import Module


class Student(Protocol):
    """Something that learns to say what its target says.

    `files` are those that it is made of, so that another training has another name. It proposes `longest`
    tokens in a round.
    """

    @property
    def files(self) -> Sequence[Path]: ...

    @property
    def longest(self) -> int: ...

    def module(self) -> Module:
        """Returns it as it is before the training; asked with a batch of `collate` it says the loss."""

    def choices(
        self, folder: Path | None, answers: Sequence[RecordedAnswer], advance: Advance
    ) -> list[Sequence[Choices]]:
        """Returns what the one in a folder would say of each answer, as `replay` takes it.

        None stands for the one before the training. `advance` is called with 1 for each answer.
        """

    def write(self, module: Module, folder: Path) -> None:
        """Writes what came of the training into a new folder."""
