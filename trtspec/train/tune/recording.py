"""Lets the target alone answer many prompts at once, and records its answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from trtspec.base.digest import digest_of
from trtspec.base.errors import DatasetError
from trtspec.base.progress import Advance
from trtspec.measure.workloads.workload import Prompt, Recorded, append_recorded, read_recorded
from trtspec.serving.assembly import assemble
from trtspec.serving.completion import CompletionRequest, Delta, EndReason
from trtspec.serving.executor import Executor, SamplingConfig
from trtspec.serving.tokenizer import Tokenizer

LEAST_ROOM = 16
"""An answer must have room for this many tokens; longer prompts are left out."""

Encode = Callable[[str], list[int]]


@dataclass(frozen=True, slots=True)
class Asking:
    """The options of the requests."""

    model: str
    encode: Encode
    """Returns the tokens of a text."""
    max_tokens: int
    """The most tokens of an answer."""
    temperature: float
    """Above 0, tokens are sampled, with the same seeds each time."""

    def sampling(self, prompt: str) -> dict[str, float]:
        """Returns the sampling options of a prompt; its text determines the seed."""
        seed = int(digest_of(prompt)[:7], 16) << 32  # below 2^63, the limit of every server
        return {"temperature": self.temperature, "seed": seed} if self.temperature else {}


@dataclass(frozen=True, slots=True)
class _Job:
    prompt: Prompt
    tokens: tuple[int, ...]
    most: int

    def is_answered(self, answer: Recorded) -> bool:
        """Returns True if an answer has its largest length or ended before."""
        length = len(answer.answer_token_ids or ())
        return length == self.most or (length < self.most and answer.finish_reason == "stop")


def record(
    file: Path,
    prompts: Sequence[Prompt],
    asking: Asking,
    target: Executor,
    tokenizer: Tokenizer,
    advance: Advance,
) -> list[Recorded]:
    """Returns the first turn of each prompt with its answer.

    Prompts with an answer in the file are not sent again. Prompts that leave no room for an answer are left
    out. Raises `DatasetError` if none is left.
    """
    jobs = {job.tokens: job for job in _jobs(prompts, asking, target)}
    known = {
        answer.prompt_token_ids: answer
        for answer in (read_recorded(file) if file.exists() else ())
        if (job := jobs.get(answer.prompt_token_ids or ())) and job.is_answered(answer)
    }
    if not jobs:
        problem = (
            f"no prompt leaves room for {LEAST_ROOM} tokens: prompt and answer may have "
            f"{target.limits.max_seq_len} tokens"
        )
        raise DatasetError("workload", problem, "raise engine.max_seq_len, or use shorter prompts")
    advance(len(known))

    async def all_of_them() -> None:
        coordinator = assemble(target, None, tokenizer)
        places = asyncio.Semaphore(target.limits.max_batch_size)

        async def one(job: _Job) -> None:
            sampling = asking.sampling(job.prompt.text)
            request = CompletionRequest(
                prompt_token_ids=job.tokens,
                max_tokens=job.most,
                sampling=SamplingConfig(**sampling),  # type: ignore[arg-type]
            )
            async with places:
                delta = await coordinator.complete(request)
            answer = known[job.tokens] = _recorded(job, delta, asking.model, sampling)
            append_recorded(file, [answer])
            advance(1)

        await asyncio.gather(*(one(job) for job in jobs.values() if job.tokens not in known))

    asyncio.run(all_of_them())
    return [
        replace(known[job.tokens], name=job.prompt.name, category=job.prompt.category)
        for job in jobs.values()
    ]


def _jobs(prompts: Sequence[Prompt], asking: Asking, target: Executor) -> Iterator[_Job]:
    limits = target.limits
    for prompt in prompts:
        tokens = tuple(asking.encode(prompt.text))
        room = limits.max_seq_len - limits.max_draft_len - len(tokens)
        if tokens and room >= LEAST_ROOM:
            yield _Job(prompt, tokens, min(room, prompt.max_tokens or asking.max_tokens))


def _recorded(job: _Job, delta: Delta, model: str, sampling: dict[str, float]) -> Recorded:
    assert delta.completion is not None
    stopped = delta.completion.end_reason is EndReason.END_ID
    return Recorded(
        job.prompt.name,
        job.prompt.category,
        job.prompt.text,
        job.tokens,
        delta.text,
        tuple(delta.token_ids),
        "stop" if stopped else "length",
        model,
        sampling,
    )
