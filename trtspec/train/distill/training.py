"""Trains a draft or a head with transformers' Trainer, and resumes an earlier run that was killed.

transformers writes each checkpoint into a folder `checkpoint-N` under its final name. A complete one is
renamed to `step-N`, and only those are read. Of its files `optimizer.pt`, `scheduler.pt` and `rng_state.pth`
are read with `torch.load(weights_only=True)` (`Trainer._load_optimizer_and_scheduler`, `_load_rng_state`),
which builds tensors and plain containers and runs no code; weights are safetensors. `training_args.bin`, a
pickle that nobody reads, is removed.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import (
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from trtspec.base.errors import TrainingError, UnavailableError
from trtspec.base.files import publish, remove
from trtspec.base.progress import Advance
from trtspec.train.distill.curve import LossCurve, LossPoint
from trtspec.train.distill.examples import Example, collate
from trtspec.train.distill.settings import TrainingSettings

_STATE = "trainer_state.json"
_BEING_WRITTEN, _PICKLE = "checkpoint-", "training_args.bin"
_STEP = re.compile(r"step-(\d+)")
LEAST_PAUSE_S = 30.0
SHARE = 0.05  # the most of a training's time that writing checkpoints may take


def num_steps(examples: int, settings: TrainingSettings) -> int:
    """Returns the number of the optimizer's steps."""
    return settings.epochs * -(-examples // settings.batch_size)


def train(
    model: nn.Module,
    examples: Sequence[Example],
    settings: TrainingSettings,
    folder: Path,
    checkpoints: Checkpoints,
    advance: Advance,
) -> list[LossPoint]:
    """Trains a model, float32, on the answers of the examples; returns the loss of each step.

    `folder` keeps the checkpoints, and the loss in `loss.jsonl`.

    It uses the first GPU if there is one, in bfloat16 if the GPU supports that. The same examples, settings
    and machine give the same weights, even if the run was killed and resumed. `advance` is called with 1 for
    each step. Raises TrainingError if the loss becomes NaN or infinite, and UnavailableError if the GPU's
    memory is too small.
    """
    saved = folder / "checkpoints"
    saved.mkdir(parents=True, exist_ok=True)
    last = last_checkpoint(saved)
    done = _points(last)
    curve = LossCurve(folder / "loss.jsonl")
    curve.restart(done)
    advance(len(done), _note(done[-1]) if done else "")
    try:
        trainer = Trainer(
            model=model,
            args=_arguments(saved, settings),
            train_dataset=_Rows(examples),
            data_collator=collate,
            callbacks=[checkpoints, _Steps(curve, advance)],
        )
        trainer.remove_callback(PrinterCallback)  # This callback would print each loss on stdout.
        trainer.train(resume_from_checkpoint=str(last) if last else None)
    except torch.OutOfMemoryError as error:
        problem = f"its memory is too small for {settings.batch_size} answers at once"
        repair = "use a smaller --batch-size or --max-length, or a GPU with more memory"
        raise UnavailableError("the GPU", problem, repair) from error
    return curve.points


class _Rows(Dataset[Example]):
    def __init__(self, examples: Sequence[Example]) -> None:
        self._examples = examples

    def __len__(self) -> int:
        return len(self._examples)

    def __getitem__(self, number: int) -> Example:
        return self._examples[number]


class _Steps(TrainerCallback):
    """Forwards the loss of each step."""

    def __init__(self, curve: LossCurve, advance: Advance) -> None:
        self._curve, self._advance = curve, advance

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **_: object,
    ) -> None:
        if logs and "loss" in logs:  # The last call has the totals of the whole training.
            point = LossPoint(state.global_step, logs["loss"], logs["learning_rate"])
            if not math.isfinite(point.loss):
                problem = f"diverged at step {point.step}: the loss is {point.loss}"
                raise TrainingError("the training", problem, "give a smaller --learning-rate")
            self._curve.add(point)
            self._advance(1, _note(point))


def _note(point: LossPoint) -> str:
    return f"step {point.step}, loss {point.loss:.3f}"


def _points(checkpoint: Path | None) -> list[LossPoint]:
    """Returns the loss of each step before a checkpoint."""
    if checkpoint is None:
        return []
    history = json.loads((checkpoint / _STATE).read_text(encoding="utf-8"))["log_history"]
    return [
        LossPoint(entry["step"], entry["loss"], entry["learning_rate"])
        for entry in history
        if "loss" in entry
    ]


def _arguments(folder: Path, settings: TrainingSettings) -> TrainingArguments:
    has_gpu = torch.cuda.is_available()
    arguments: Any = TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=settings.batch_size,
        num_train_epochs=settings.epochs,
        learning_rate=settings.learning_rate,
        seed=settings.seed,
        bf16=has_gpu and torch.cuda.is_bf16_supported(),
        use_cpu=not has_gpu,
        logging_steps=1,
        logging_nan_inf_filter=False,
        save_strategy="no",  # `Checkpoints` decides when
        remove_unused_columns=False,
        report_to="none",
        disable_tqdm=True,
        log_level="error",
        dataloader_pin_memory=has_gpu,
    )
    if has_gpu:
        # The trainer would multiply the batch by the number of GPUs.
        arguments._n_gpu = 1
    result: TrainingArguments = arguments
    return result


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
