"""A distillation from its recipe to the folder of the new draft.

Everything is kept in one folder: `target/` (an engine, if the target answers here), `answers/`, a
`training-…/` with its checkpoints and its loss, and the result, `draft/`. What is done stays done: a run that
was killed, at any moment, goes on there, and what depends on something that changed has another name.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from trtspec.atomic import publish, remove, temporary, write_atomically
from trtspec.digest import digest_of
from trtspec.distill.acceptance import Measured, Tally, change, measure
from trtspec.distill.answers import Answers, Show, gather
from trtspec.distill.checkpoints import Checkpoints
from trtspec.distill.curve import Point, as_svg
from trtspec.distill.engines import choices
from trtspec.distill.examples import Example, examples_of
from trtspec.distill.model import load, write
from trtspec.distill.pair import Pair, read_pair
from trtspec.distill.training import num_steps, train
from trtspec.distill.wanted import Wanted
from trtspec.models.source import Source, read_source
from trtspec.progress import Progress
from trtspec.recipe.loader import load as load_recipe
from trtspec.run.digests import FileDigests
from trtspec.run.lock import locked
from trtspec.tune.estimate import Estimate

DRAFT, RECORD = "draft", "distillation.json"
_PACKAGES = ("torch", "transformers", "accelerate")


@dataclass(frozen=True, slots=True)
class Distilled:
    """The new draft's folder, what it learned from, how the loss fell, and what came of it.

    `before` and `after` are None where the draft said nothing at all.
    """

    folder: Path
    training: Path
    pair: Pair
    answers: Answers
    points: Sequence[Point]
    before: Measured | None
    after: Measured | None

    @property
    def per_token_ratio(self) -> Estimate | None:
        """The conditional acceptance of a token after the training over that before."""
        return self._ratio(lambda tally: tally.reached)

    @property
    def of_drafted_ratio(self) -> Estimate | None:
        """Accepted by drafted tokens after the training over the same before."""
        return self._ratio(lambda tally: tally.drafted)

    def _ratio(self, whole: Callable[[Tally], int]) -> Estimate | None:
        if not (self.before and self.after):
            return None
        sides = [
            [(tally.accepted, whole(tally)) for tally in side.tallies] for side in (self.before, self.after)
        ]
        return change(*sides)


def distill(
    wanted: Wanted, show: Show, watch: Progress, make_checkpoints: Callable[[], Checkpoints] = Checkpoints
) -> Distilled:
    """Trains the recipe's draft on its target's answers, and measures it on those that are held out.

    Raises RecipeError, ModelError, PairError, DatasetError, TrainingError, UnavailableError, and what the
    target raises.
    """
    pair = read_pair(load_recipe(wanted.recipe), watch)
    with locked(wanted.output):
        answers = gather(wanted, pair, show, watch)
        examples = examples_of(answers.learned, pair.tokenizer, wanted.settings.max_length)
        digests = FileDigests(wanted.output / ".trtspec" / "digests.json", watch)
        made_of = {file.name: digests.of(file) for file in pair.draft.files}
        digests.save()
        digest = digest_of([made_of, [asdict(each) for each in examples], asdict(wanted.settings)])
        training = wanted.output / f"training-{digest[:8]}"
        before = _measured("acceptance before", pair.draft, pair, answers, wanted, show)
        draft = wanted.output / DRAFT
        made = temporary(draft)
        remove(made)
        points = _trained(pair, examples, wanted, training, made, make_checkpoints(), show)
        after = _measured("acceptance after", read_source(made), pair, answers, wanted, show)
        result = Distilled(draft, training, pair, answers, points, before, after)
        record = {
            **as_json(result, wanted),
            "made_of": made_of,
            "tools": {name: version(name) for name in _PACKAGES},
        }
        (made / RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        publish(made, draft)
    return result


def _measured(
    label: str, draft: Source, pair: Pair, answers: Answers, wanted: Wanted, show: Show
) -> Measured | None:
    with show(label, len(answers.held_out), "answers") as advance:
        said = choices(draft, pair, answers.held_out, temporary(wanted.output / "engine"), advance)
    return measure(answers.held_out, said, pair.num_draft_tokens)


def _trained(
    pair: Pair,
    examples: Sequence[Example],
    wanted: Wanted,
    folder: Path,
    made: Path,
    checkpoints: Checkpoints,
    show: Show,
) -> list[Point]:
    """Trains the draft and writes it into the folder `made`; returns the loss of each step."""
    with show("training", num_steps(len(examples), wanted.settings), "steps") as advance:
        model = load(pair.draft)
        points = train(model, examples, wanted.settings, folder, checkpoints, advance)
    write_atomically(folder / "loss.svg", as_svg(points))
    write(model, pair.draft, made)
    return points


def as_json(result: Distilled, wanted: Wanted) -> dict[str, Any]:
    """Returns what came of it as JSON has it: shares 0 to 1, losses in nats a token."""
    recipe, answers, points = result.pair.loaded.recipe, result.answers, result.points
    assert recipe.draft
    return {
        "draft": {"model": recipe.draft.model, "revision": recipe.draft.revision},
        "target": {"model": recipe.target.model, "revision": recipe.target.revision},
        "learned": {
            "answers": len(answers.learned),
            "tokens": sum(len(answer.tokens) for answer in answers.learned),
        },
        "held_out": {
            "answers": len(answers.held_out),
            "tokens": sum(len(answer.tokens) for answer in answers.held_out),
        },
        "left_out": answers.left_out,
        "settings": asdict(wanted.settings),
        "max_tokens": wanted.max_tokens,
        "temperature": wanted.temperature,
        "loss": {"steps": len(points), "first": points[0].loss, "last": points[-1].loss},
        "num_draft_tokens": result.pair.num_draft_tokens,
        "acceptance": {
            "before": _acceptance(result.before),
            "after": _acceptance(result.after),
            "per_token_ratio": _estimate(result.per_token_ratio),
            "of_drafted_ratio": _estimate(result.of_drafted_ratio),
        },
    }


def _acceptance(measured: Measured | None) -> dict[str, Any] | None:
    if measured is None:
        return None
    return {
        "per_token": _estimate(measured.per_token),
        "of_drafted": _estimate(measured.of_drafted),
        "by_position": measured.acceptance.by_position,
        "tokens_per_round": measured.acceptance.tokens_per_round,
    }


def _estimate(estimate: Estimate | None) -> dict[str, float] | None:
    return asdict(estimate) if estimate and math.isfinite(estimate.high) else None
