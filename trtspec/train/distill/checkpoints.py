"""Keeps complete checkpoints of a training, so that a killed run continues from the last one.

transformers writes each into a folder `checkpoint-N` under its final name. A complete one is renamed to
`step-N`, and only those are read. Of its files `optimizer.pt`, `scheduler.pt` and `rng_state.pth` are read
with `torch.load(weights_only=True)` (`Trainer._load_optimizer_and_scheduler`, `_load_rng_state`), which
builds tensors and plain containers and runs no code; weights are safetensors. `training_args.bin`, a pickle
that nobody reads, is removed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from time import monotonic

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from trtspec.base.atomic import publish, remove

_BEING_WRITTEN, _PICKLE = "checkpoint-", "training_args.bin"
_STEP = re.compile(r"step-(\d+)")
LEAST_PAUSE_S = 30.0
SHARE = 0.05  # the most of a training's time that writing checkpoints may take


def last_checkpoint(folder: Path) -> Path | None:
    """Returns the last complete checkpoint; None if there is none. Removes incomplete ones."""
    steps = {}
    for path in sorted(folder.glob("*")):
        if path.name.startswith(_BEING_WRITTEN):
            remove(path)
        elif match := _STEP.fullmatch(path.name):
            steps[int(match[1])] = path
    return steps[max(steps)] if steps else None


class Checkpoints(TrainerCallback):
    """Makes the trainer write checkpoints, and publishes each when it is complete.

    They are at least `least_pause_s` apart, and so far apart that they cost at most a twentieth of the time.
    The last step has one too.
    """

    def __init__(self, least_pause_s: float = LEAST_PAUSE_S, clock: Callable[[], float] = monotonic) -> None:
        self._clock, self._pause, self._least = clock, least_pause_s, least_pause_s
        self._begun = self._saved = clock()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        self._begun = self._clock()
        is_last = state.global_step >= state.max_steps
        control.should_save = is_last or self._begun - self._saved >= self._pause

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        folder = Path(str(args.output_dir))
        made = folder / f"{_BEING_WRITTEN}{state.global_step}"
        remove(made / _PICKLE)
        published = folder / f"step-{state.global_step}"
        publish(made, published)
        for path in folder.glob("step-*"):
            if path != published:
                remove(path)
        self._saved = self._clock()
        self._pause = max(self._least, (self._saved - self._begun) / SHARE)
