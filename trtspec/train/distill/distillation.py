"""Runs a distillation, from the recipe to the folder of the new draft or head.

Everything is kept in one folder: `target/` (an engine, if the target answers here), `answers/`, a
`training-…/` with its checkpoints and its loss, and the result, `draft/` or the name of its method. A run
that was killed at any moment continues there. Results of changed inputs get another name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

from torch.nn import Module

from trtspec.backends.recipes import load
from trtspec.base.atomic import publish, remove, temporary
from trtspec.base.digest import digest_of
from trtspec.base.progress import Advance, Progress
from trtspec.measure.bench.result import Interval
from trtspec.pipeline.run.records import FileDigests
from trtspec.pipeline.run.runner import only_build
from trtspec.train.distill.acceptance import AcceptanceEstimate, Tally, change, measure
from trtspec.train.distill.answers import Answers, Show, gather
from trtspec.train.distill.curve import LossPoint, draw_losses
from trtspec.train.distill.examples import examples_of
from trtspec.train.distill.head import TrainedHead
from trtspec.train.distill.model import TrainedDraft
from trtspec.train.distill.pair import TrainingPair, read_pair, read_target
from trtspec.train.distill.settings import DistillationOptions
from trtspec.train.distill.training import Checkpoints, num_steps, train
from trtspec.train.tune.answer import RecordedAnswer
from trtspec.train.tune.replay import Choices
from trtspec.train.tune.result import finite

RECORD = "distillation.json"
_PACKAGES = ("torch", "transformers", "accelerate")


class TrainableDraft(Protocol):
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
        """Returns the choices for each answer, as `replay` takes them, of the draft in a folder.

        None means the one before the training. `advance` is called with 1 for each answer.
        """

    def write(self, module: Module, folder: Path) -> None:
        """Writes the result of the training into a new folder."""


@dataclass(frozen=True, slots=True)
class Distilled:
    """The result of a distillation."""

    folder: Path
    """The new draft's folder."""
    training: Path
    pair: TrainingPair
    num_draft_tokens: int
    """The K with which the acceptance was measured."""
    answers: Answers
    """The answers that it learned from, and those that it was measured on."""
    points: Sequence[LossPoint]
    """The course of the loss."""
    before: AcceptanceEstimate | None
    """The acceptance before the training; None if nothing was drafted."""
    after: AcceptanceEstimate | None
    """The acceptance after the training; None if nothing was drafted."""

    @property
    def per_token_ratio(self) -> Interval | None:
        """The conditional acceptance of a token after the training over that before."""
        return self._ratio(lambda tally: tally.reached)

    @property
    def of_drafted_ratio(self) -> Interval | None:
        """Accepted by drafted tokens after the training over the same before."""
        return self._ratio(lambda tally: tally.drafted)

    def _ratio(self, whole: Callable[[Tally], int]) -> Interval | None:
        if not (self.before and self.after):
            return None
        sides = [
            [(tally.accepted, whole(tally)) for tally in side.tallies] for side in (self.before, self.after)
        ]
        return change(*sides)


def distill(
    wanted: DistillationOptions,
    show: Show,
    watch: Progress,
    make_checkpoints: Callable[[], Checkpoints] = Checkpoints,
) -> Distilled:
    """Trains the recipe's draft, or a head, on its target's answers, and measures it on those held out.

    Raises RecipeError, ModelError, PairError, DatasetError, TrainingError, UnavailableError, ChangedError
    for a model that was replaced meanwhile, and what the target raises.
    """
    read = read_target if wanted.head else read_pair
    pair = read(load(wanted.recipe), watch)
    with only_build(wanted.output):
        answers = gather(wanted, pair, show, watch)
        examples = examples_of(answers.learned, pair.tokenizer, wanted.settings.max_length)
        draft: TrainableDraft
        if wanted.head:
            draft = TrainedHead(pair, wanted.head, examples, wanted.settings.seed)
        else:
            assert pair.draft
            draft = TrainedDraft(pair, pair.draft, temporary(wanted.output / "engine"))
        digests = FileDigests(wanted.output / ".trtspec" / "digests.json", watch)
        digests.note(draft.files)
        made_of = {file.name: digests.of(file) for file in draft.files}
        digests.save()
        digest = digest_of([made_of, [asdict(each) for each in examples], _settings(wanted)])
        training = wanted.output / f"training-{digest[:8]}"
        before = _measured("acceptance before", draft, None, answers, show)
        made = temporary(wanted.folder)
        remove(made)
        with show("training", num_steps(len(examples), wanted.settings), "steps") as advance:
            model = draft.module()
            points = train(model, examples, wanted.settings, training, make_checkpoints(), advance)
        draw_losses(points, training / "loss.svg")
        draft.write(model, made)
        del model  # The measurement needs its memory.
        after = _measured("acceptance after", draft, made, answers, show)
        result = Distilled(wanted.folder, training, pair, draft.longest, answers, points, before, after)
        record = {
            **as_json(result, wanted),
            "made_of": made_of,
            "tools": {name: version(name) for name in _PACKAGES},
        }
        (made / RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        digests.check()
        publish(made, wanted.folder)
    return result


def _settings(wanted: DistillationOptions) -> dict[str, Any]:
    return {**asdict(wanted.settings), **(asdict(wanted.head) if wanted.head else {})}


def _measured(
    label: str, draft: TrainableDraft, folder: Path | None, answers: Answers, show: Show
) -> AcceptanceEstimate | None:
    with show(label, len(answers.held_out), "answers") as advance:
        said = draft.choices(folder, answers.held_out, advance)
    return measure(answers.held_out, said, draft.longest)


def as_json(result: Distilled, wanted: DistillationOptions) -> dict[str, Any]:
    """Returns the result as JSON: shares from 0 to 1, losses in nats per token."""
    recipe, answers, points = result.pair.loaded.recipe, result.answers, result.points
    trained = {"model": recipe.draft.model, "revision": recipe.draft.revision} if recipe.draft else None
    return {
        "draft": None if wanted.head else trained,
        "target": {"model": recipe.target.model, "revision": recipe.target.revision},
        "learned": _counted(answers.learned),
        "held_out": _counted(answers.held_out),
        "left_out": answers.left_out,
        "settings": _settings(wanted),
        "max_tokens": wanted.max_tokens,
        "temperature": wanted.temperature,
        "loss": {"steps": len(points), "first": points[0].loss, "last": points[-1].loss},
        "num_draft_tokens": result.num_draft_tokens,
        "acceptance": {
            "before": _acceptance(result.before),
            "after": _acceptance(result.after),
            "per_token_ratio": _estimate(result.per_token_ratio),
            "of_drafted_ratio": _estimate(result.of_drafted_ratio),
        },
    }


def _counted(answers: Sequence[RecordedAnswer]) -> dict[str, int]:
    return {"answers": len(answers), "tokens": sum(len(answer.tokens) for answer in answers)}


def _acceptance(measured: AcceptanceEstimate | None) -> dict[str, Any] | None:
    if measured is None:
        return None
    return {
        "per_token": _estimate(measured.per_token),
        "of_drafted": _estimate(measured.of_drafted),
        "by_position": measured.acceptance.by_position,
        "tokens_per_round": measured.acceptance.tokens_per_round,
    }


def _estimate(estimate: Interval | None) -> Any:
    return finite(asdict(estimate)) if estimate else None
