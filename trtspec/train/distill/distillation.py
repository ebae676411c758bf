"""Runs a distillation, from the recipe to the folder of the new draft or head.

Everything is kept in one folder: `target/` (an engine, if the target answers here), `answers/`, a
`training-…/` with its checkpoints and its loss, and the result, `draft/` or the name of its method. A run
that was killed at any moment continues there. Results of changed inputs get another name.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

from torch.nn import Module

from trtspec.backends.table import load
from trtspec.base.digest import digest_of
from trtspec.base.errors import DatasetError, EngineError, ServerError
from trtspec.base.files import publish, remove, temporary
from trtspec.base.progress import Advance, Progress
from trtspec.client.endpoint import AskError, ChatMessage, Endpoint, EndpointRequest
from trtspec.measure.bench.result import Interval
from trtspec.measure.bench.traffic import Tasks
from trtspec.measure.workloads.reading import read_workload
from trtspec.measure.workloads.workload import Prompt, Recorded, append_recorded, read_recorded
from trtspec.pipeline.run.records import FileDigests
from trtspec.pipeline.run.runner import only_build
from trtspec.serving.errors import EngineLoadError, ServingError
from trtspec.serving.executors.torch.torch_executor import load_engines
from trtspec.serving.tokenizer import Tokenizer
from trtspec.train.distill.acceptance import AcceptanceEstimate, Tally, change, measure
from trtspec.train.distill.curve import LossPoint, draw_losses
from trtspec.train.distill.examples import examples_of
from trtspec.train.distill.head import TrainedHead
from trtspec.train.distill.model import TrainedDraft, chat_template
from trtspec.train.distill.pair import TrainingPair, read_pair, read_target
from trtspec.train.distill.settings import DistillationOptions
from trtspec.train.distill.training import Checkpoints, num_steps, train
from trtspec.train.tune.answer import RecordedAnswer, in_tokens
from trtspec.train.tune.builds import TuneBuilds
from trtspec.train.tune.recording import LEAST_ROOM, Asking, record
from trtspec.train.tune.replay import Choices
from trtspec.train.tune.result import finite

Connect = Callable[[], Awaitable[Endpoint]]


def record_deployed(
    connect: Connect, streams: int, file: Path, prompts: Sequence[Prompt], asking: Asking, advance: Advance
) -> list[Recorded]:
    """Returns the unchanged first turn of each prompt, with its answer.

    Answers are appended to the file as they come, and those in the file are not requested again. `advance` is
    called with 1 for each. Prompts that the server refuses are left out. Raises what `connect` raises, and
    ServerError, also if the server refuses all prompts.
    """
    recorded = read_recorded(file) if file.is_file() else []
    known = {(answer.name, answer.prompt): answer for answer in recorded}
    refused = list[ServerError]()
    missing = [prompt for prompt in prompts if (prompt.name, prompt.text) not in known]
    advance(len(prompts) - len(missing))

    def keep(answer: Recorded) -> None:
        known[answer.name, answer.prompt] = answer
        append_recorded(file, [answer])
        advance(1)

    if missing:
        asyncio.run(_ask_all(missing, asking, connect, streams, keep, refused.append))
    found = [known[key] for prompt in prompts if (key := (prompt.name, prompt.text)) in known]
    if refused and not found:
        raise refused[0]
    return found


async def _ask_all(
    jobs: Sequence[Prompt],
    asking: Asking,
    connect: Connect,
    streams: int,
    keep: Callable[[Recorded], None],
    leave_out: Callable[[ServerError], None],
) -> None:
    endpoint, left = await connect(), iter(jobs)

    async def work() -> None:
        for prompt in left:
            max_tokens, sampling = prompt.max_tokens or asking.max_tokens, asking.sampling(prompt.text)
            try:
                keep(await _ask(endpoint, prompt, max_tokens, sampling))
            except AskError as error:
                failure = ServerError(endpoint.url, f"prompt {prompt.name}: {error.problem}")
                if error.kind != "rejected":
                    raise failure from error
                leave_out(failure)

    try:
        async with Tasks() as tasks:
            for _ in range(min(streams, len(jobs))):
                tasks.start(work())
    finally:
        await endpoint.close()


async def _ask(endpoint: Endpoint, prompt: Prompt, max_tokens: int, sampling: dict[str, float]) -> Recorded:
    question = EndpointRequest(
        (ChatMessage("user", prompt.text),),
        max_tokens,
        temperature=sampling.get("temperature", 0.0),
        seed=int(sampling["seed"]) if sampling else None,
    )
    said = await endpoint.ask(question)
    return Recorded(
        prompt.name,
        prompt.category,
        prompt=prompt.text,
        text=said.text,
        finish_reason="stop" if said.finish_reason == "stop" else "length",
        model=endpoint.model,
        sampling=sampling,
    )


Ids = tuple[int, ...]
Render = Callable[[str], str]
Show = Callable[[str, int, str], AbstractContextManager[Advance]]
"""Shows progress: takes a label, a number and a unit."""
_LEAST = 2  # held-out answers: a single one says nothing about the variance


@dataclass(frozen=True, slots=True)
class Answers:
    """The answers that a distillation uses."""

    learned: tuple[RecordedAnswer, ...]
    """The answers to learn from."""
    held_out: tuple[RecordedAnswer, ...]
    """The answers to measure on, each for another prompt."""
    left_out: int
    """The number of unused answers.

    They are empty or repeated, or their prompt leaves no room for them, is refused or is held out.
    """


def gather(wanted: DistillationOptions, pair: TrainingPair, show: Show, watch: Progress) -> Answers:
    """Returns the answers; if only prompts are given, the target answers them now.

    Raises DatasetError for a file that cannot be read or has too few answers, and errors of the target.
    """
    origin = str(wanted.answers or wanted.workload)
    render = chat_template(pair.target) if wanted.chat else str
    bring = _recorded if wanted.answers else partial(_asked, wanted, show, watch)
    held_out, unasked = bring(pair, render, wanted.held_out) if wanted.held_out else ([], 0)
    found, more_unasked = bring(pair, render, origin)
    limit = min(wanted.settings.max_length, pair.max_seq_len)
    usable = {(answer.prompt, answer.tokens): answer for answer in found if _has_room(answer, limit)}
    if wanted.held_out:
        measured = {answer.prompt: answer for answer in held_out if _has_room(answer, pair.max_seq_len)}
    else:
        measured = _share({answer.prompt: answer for answer in usable.values()}, wanted)
    learned = [answer for answer in usable.values() if answer.prompt not in measured]
    if not learned or len(measured) < _LEAST:
        problem = f"leaves {len(learned)} answers to learn and {len(measured)} to measure on"
        raise DatasetError(origin, problem, f"at least 1 and {_LEAST}, with prompts under {limit} tokens")
    lost = len(found) + len(held_out) - len(learned) - len(measured)
    return Answers(tuple(learned), tuple(measured.values()), lost + unasked + more_unasked)


def _has_room(answer: RecordedAnswer, limit: int) -> bool:
    return bool(answer.tokens) and len(answer.prompt) < limit


def _share(answers: Mapping[Ids, RecordedAnswer], wanted: DistillationOptions) -> dict[Ids, RecordedAnswer]:
    """Returns a share of the prompts with their answers, chosen at random."""
    count = min(len(answers), max(_LEAST, round(len(answers) * wanted.held_out_share)))
    chosen = random.Random(wanted.settings.seed).sample(list(answers), count)  # noqa: S311
    return {prompt: answers[prompt] for prompt in chosen}


def _recorded(pair: TrainingPair, render: Render, name: str) -> tuple[list[RecordedAnswer], int]:
    """Reads answers; prompts without tokens are the text of a user."""
    found = [
        recorded
        if recorded.prompt_token_ids or recorded.prompt is None
        else replace(recorded, prompt=render(recorded.prompt))
        for recorded in read_recorded(Path(name))
    ]
    return _in_tokens(found, pair, name), 0


def _in_tokens(found: Sequence[Recorded], pair: TrainingPair, source: str | Path) -> list[RecordedAnswer]:
    answers = in_tokens(found, pair.tokenizer, Path(source))
    size = min(model.vocab_size for model in (pair.target, pair.draft) if model)
    for answer in answers:
        if (largest := max((*answer.prompt, *answer.tokens))) >= size:
            problem = f"has token id {largest}, but the models have {size} tokens"
            raise DatasetError(f"{source}: {answer.name}", problem, "record answers of this target")
    return answers


def _asked(
    wanted: DistillationOptions, show: Show, watch: Progress, pair: TrainingPair, render: Render, name: str
) -> tuple[list[RecordedAnswer], int]:
    """Asks the target; returns its answers, and the number of prompts that are too long or refused.

    The answers are kept in a file whose name depends on all inputs.
    """
    workload, model = read_workload(name), pair.loaded.recipe.target.model
    fitting = []
    for prompt in workload.prompts:
        text = render(prompt.text)
        room = pair.max_seq_len - len(pair.tokenizer.encode(text))
        if room >= LEAST_ROOM:
            most = min(room, prompt.max_tokens or wanted.max_tokens)
            fitting.append(replace(prompt, turns=(text,), max_tokens=most))
    asking = Asking(model, pair.tokenizer.encode, wanted.max_tokens, wanted.temperature)
    if at := wanted.deployment:
        whose: object = [at.url, at.model]
        ask = partial(record_deployed, at.connect, at.streams)
    else:
        builds = TuneBuilds(pair.loaded, wanted.output / "target", pair.num_draft_tokens, watch)
        target = builds.target()
        whose, ask = target.digest, partial(_record_here, target.engine, pair.tokenizer)
    made_of = [workload.digest, wanted.max_tokens, wanted.temperature, wanted.chat, whose]
    file = wanted.output / "answers" / f"{workload.name}-{digest_of(made_of)[:8]}.jsonl"
    with show(f"answers to {workload.name}", len(fitting), "answers") as advance:
        found = ask(file, fitting, asking, advance)
    return _in_tokens(found, pair, file), len(workload.prompts) - len(found)


def _record_here(
    engine: Path,
    tokenizer: Tokenizer,
    file: Path,
    prompts: Sequence[Prompt],
    asking: Asking,
    advance: Advance,
) -> list[Recorded]:
    try:
        (target,) = load_engines([engine])
        try:
            return record(file, prompts, asking, target, tokenizer, advance)
        finally:
            target.shutdown()
    except EngineLoadError as error:
        raise EngineError(error.subject, error.problem) from error
    except ServingError as error:
        raise EngineError(engine, str(error)) from error


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
