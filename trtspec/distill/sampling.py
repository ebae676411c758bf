"""The target's answers to prompts, asked for now; a run that was killed asks only for those that it lacks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from trtspec.progress import Advance
from trtspec.workloads.prompt import Prompt
from trtspec.workloads.recorded import Recorded, append_recorded, read_recorded

_AT_ONCE_ON_DISK = 16
_APART = 1 << 40  # between the seeds of two prompts, as between those of a request's sequences


@dataclass(frozen=True, slots=True)
class Sampling:
    """How answers are drawn: greedy with `temperature` 0; `max_tokens` counts unless a prompt has its own."""

    max_tokens: int = 256
    temperature: float = 0.0
    seed: int = 0

    def options(self, number: int) -> dict[str, float]:
        """Returns the options of the request for prompt `number`, by TensorRT-LLM's names."""
        if not self.temperature:
            return {}
        return {"temperature": self.temperature, "seed": (self.seed + number * _APART) % 2**63}


class Target(Protocol):
    """Whoever answers for the target, `at_once` prompts at a time."""

    at_once: int

    async def answer(self, prompt: Prompt, max_tokens: int, options: dict[str, float]) -> Recorded: ...

    async def close(self) -> None: ...


Open = Callable[[], Awaitable[Target]]


def sample(
    prompts: Sequence[Prompt], file: Path, sampling: Sampling, target: Open, advance: Advance
) -> list[Recorded]:
    """Returns the answer to each prompt, in their order; those that the file has are not asked for again.

    Answers are added to the file as they come, and `advance` is called with 1 for each. The `target` is
    opened if something is missing. Raises what it raises.
    """
    found = {_key(answer): answer for answer in (read_recorded(file) if file.is_file() else [])}
    missing = [number for number, prompt in enumerate(prompts) if (prompt.name, prompt.text) not in found]
    advance(len(prompts) - len(missing))
    new: list[Recorded] = []

    def keep(answer: Recorded) -> None:
        found[_key(answer)] = answer
        new.append(answer)
        if len(new) == _AT_ONCE_ON_DISK:
            append_recorded(file, new)
            new.clear()
        advance(1)

    if missing:
        try:
            asyncio.run(_ask_all(prompts, missing, sampling, target, keep))
        finally:
            if new:
                append_recorded(file, new)
    return [found[prompt.name, prompt.text] for prompt in prompts]


def _key(answer: Recorded) -> tuple[str, str | None]:
    return answer.name, answer.prompt


async def _ask_all(
    prompts: Sequence[Prompt],
    missing: Sequence[int],
    sampling: Sampling,
    target: Open,
    keep: Callable[[Recorded], None],
) -> None:
    asked, left = await target(), iter(missing)

    async def work() -> None:
        for number in left:
            prompt = prompts[number]
            max_tokens = prompt.max_tokens or sampling.max_tokens
            keep(await asked.answer(prompt, max_tokens, sampling.options(number)))

    workers = [asyncio.create_task(work()) for _ in range(min(asked.at_once, len(missing)))]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        await asked.close()
