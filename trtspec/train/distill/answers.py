"""Collects the answers that a draft learns from, and those held out for measuring it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from trtspec.base.digest import digest_of
from trtspec.base.errors import DatasetError, EngineError, ServerError
from trtspec.base.progress import Advance, Progress
from trtspec.client.endpoint import AskError, ChatMessage, Endpoint, EndpointRequest
from trtspec.measure.bench.traffic import Tasks
from trtspec.measure.workloads.reading import read_workload
from trtspec.measure.workloads.recorded import Recorded, append_recorded, read_recorded
from trtspec.measure.workloads.workload import Prompt
from trtspec.serving.errors import EngineLoadError, ServingError
from trtspec.serving.executors.torch.pair import load_engines
from trtspec.serving.tokenizer import Tokenizer
from trtspec.train.distill.model import chat_template
from trtspec.train.distill.pair import TrainingPair
from trtspec.train.distill.settings import DistillationOptions
from trtspec.train.tune.answer import RecordedAnswer, in_tokens
from trtspec.train.tune.builds import TuneBuilds
from trtspec.train.tune.recording import LEAST_ROOM, Asking, record

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
