"""Trains a recipe's draft model; its engine of the torch backend gives its choices."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

from trtspec.base.atomic import remove
from trtspec.base.progress import Advance
from trtspec.checkpoint.convert import convert
from trtspec.checkpoint.convert_options import ConvertOptions
from trtspec.models.source import Source, read_source
from trtspec.pipeline.engine.engine_options import BuildOptions
from trtspec.pipeline.engine.torch_builder import build
from trtspec.serving.executors.torch.device import CPU, find_device
from trtspec.train.distill.model import load, write
from trtspec.train.distill.pair import TrainingPair
from trtspec.train.tune.answer import RecordedAnswer
from trtspec.train.tune.forced import Forced
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
        """Loads it in float32: in the weights' own dtype such small steps would be lost."""
        return load(self._draft, torch.float32)

    def choices(
        self, folder: Path | None, answers: Sequence[RecordedAnswer], advance: Advance
    ) -> list[Sequence[Choices]]:
        """Runs the draft's engine; on a GPU it computes in its own dtype, on a CPU in float32."""
        draft, pair = read_source(folder) if folder else self._draft, self._pair
        checkpoint, engine = self._scratch / "checkpoint", self._scratch / "engine"
        device = find_device(None)
        longest = max(len(answer.prompt) + len(answer.tokens) for answer in answers) + 1
        remove(self._scratch)
        try:
            convert(draft, ConvertOptions("float32" if device == CPU else draft.dtype), checkpoint)
            build(checkpoint, BuildOptions(1, longest, longest, longest), engine)
            forced = Forced(engine, device, pair.target.vocab_size, pair.tokenizer.end_ids)
            said: list[Sequence[Choices]] = []
            for answer in answers:
                said.append([forced.choices(answer)] * self.longest)
                advance(1)
            return said
        finally:
            remove(self._scratch)

    def write(self, module: nn.Module, folder: Path) -> None:
        write(module, self._draft, folder)
