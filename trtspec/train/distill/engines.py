"""Asks the draft's engine on the torch backend for its tokens, as a server would run it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trtspec.base.atomic import remove
from trtspec.base.progress import Advance
from trtspec.checkpoint.convert import convert
from trtspec.checkpoint.convert_options import ConvertOptions
from trtspec.models.source import Source
from trtspec.pipeline.engine.engine_options import BuildOptions
from trtspec.pipeline.engine.torch_builder import build
from trtspec.serving.executors.torch.device import CPU, find_device
from trtspec.train.distill.pair import TrainingPair
from trtspec.train.tune.answer import RecordedAnswer
from trtspec.train.tune.forced import Forced
from trtspec.train.tune.replay import Choices


def choices(
    draft: Source, pair: TrainingPair, answers: Sequence[RecordedAnswer], scratch: Path, advance: Advance
) -> list[Choices]:
    """Returns what the draft would say after each beginning of each answer.

    Its engine is made in `scratch`, which is removed. On a GPU it computes in its own dtype, on a CPU in
    float32. `advance` is called with 1 for each answer.
    """
    device = find_device(None)
    longest = max(len(answer.prompt) + len(answer.tokens) for answer in answers) + 1
    sizes = BuildOptions(1, longest, longest, longest)
    remove(scratch)
    try:
        convert(draft, ConvertOptions("float32" if device == CPU else draft.dtype), scratch / "checkpoint")
        build(scratch / "checkpoint", sizes, scratch / "engine")
        forced = Forced(scratch / "engine", device, pair.target.vocab_size, pair.tokenizer.end_ids)
        said = []
        for answer in answers:
            said.append(forced.choices(answer))
            advance(1)
        return said
    finally:
        remove(scratch)
