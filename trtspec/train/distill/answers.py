"""Collects the answers that a draft learns from, and those held out for measuring it."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from trtspec.base.digest import digest_of
from trtspec.base.errors import DatasetError, EngineError
from trtspec.base.progress import Advance, Progress
from trtspec.measure.workloads.reading import read_workload
from trtspec.measure.workloads.recorded import Recorded, read_recorded
from trtspec.measure.workloads.workload import Prompt
from trtspec.serving.errors import EngineLoadError, ServingError
from trtspec.serving.executors.torch.pair import load_engines
from trtspec.serving.tokenizer import Tokenizer
from trtspec.train.distill import deployment
from trtspec.train.distill.model import chat_template
from trtspec.train.distill.pair import TrainingPair
from trtspec.train.distill.settings import DistillationOptions
from trtspec.train.tune.answer import RecordedAnswer, in_tokens
from trtspec.train.tune.recording import LEAST_ROOM, Asking, record
from trtspec.train.tune.workshop import Workshop

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
        kept = {answer.prompt: answer for answer in held_out if _has_room(answer, pair.max_seq_len)}
    else:
        kept = _share({answer.prompt: answer for answer in usable.values()}, wanted)
    learned = [answer for answer in usable.values() if answer.prompt not in kept]
    if not learned or len(kept) < _LEAST:
        problem = f"leaves {len(learned)} answers to learn and {len(kept)} to measure on"
        raise DatasetError(origin, problem, f"at least 1 and {_LEAST}, with prompts under {limit} tokens")
    lost = len(found) + len(held_out) - len(learned) - len(kept)
    return Answers(tuple(learned), tuple(kept.values()), lost + unasked + more_unasked)


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
        ask = partial(deployment.record, at.connect, at.streams)
    else:
        workshop = Workshop(pair.loaded, wanted.output / "target", pair.num_draft_tokens, watch)
        target = workshop.target()
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
