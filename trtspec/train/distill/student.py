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
    """A draft model or head that learns to predict its target.

    `files` are its inputs, which give each training its name. It proposes `longest` tokens in a round.
    """

    @property
    def files(self) -> Sequence[Path]: ...

    @property
    def longest(self) -> int: ...

    def module(self) -> Module:
        """Returns the module before the training; called with a batch of `collate` it returns the loss."""

    def choices(
        self, folder: Path | None, answers: Sequence[RecordedAnswer], advance: Advance
    ) -> list[Sequence[Choices]]:
        """Returns the choices for each answer, as `replay` takes them, of the student in a folder.

        None means the one before the training. `advance` is called with 1 for each answer.
        """

    def write(self, module: Module, folder: Path) -> None:
        """Writes the result of the training into a new folder."""
