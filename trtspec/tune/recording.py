"""Lets the target answer prompts alone, many at once, and writes down what it says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from trtspec.errors import DatasetError
from trtspec.progress import Advance
from trtspec.serving.completion import CompletionRequest, EndReason
from trtspec.serving.coordinator import Coordinator
from trtspec.serving.executor import Executor, SamplingConfig
from trtspec.serving.tokenizer import Tokenizer
from trtspec.workloads.prompt import Prompt
from trtspec.workloads.recorded import Recorded, append_recorded, read_recorded

LEAST_ROOM = 16
"""How many tokens an answer must have room for; a prompt that leaves less is left out."""

Encode = Callable[[str], list[int]]


@dataclass(frozen=True, slots=True)
class Asking:
    """How prompts are asked: `encode` makes tokens of a text, answers have at most `max_tokens`.

    With a `temperature` above 0 the tokens are drawn, with seeds that are the same each time.
    """

    model: str
    encode: Encode
    max_tokens: int
    temperature: float

    def sampling(self, number: int) -> dict[str, float]:
        return {"temperature": self.temperature, "seed": number << 32} if self.temperature else {}


def record(
    file: Path,
    prompts: Sequence[Prompt],
    asking: Asking,
    target: Executor,
    tokenizer: Tokenizer,
    advance: Advance,
) -> list[Recorded]:
    """Returns the first turn of each prompt with its answer; those that the file has are not asked again.

    Prompts that leave no room for an answer are left out. Raises `DatasetError` if all do.
    """
    known = {answer.name: answer for answer in read_recorded(file)} if file.exists() else {}
    jobs = []
    for number, prompt in enumerate(prompts):
        tokens = asking.encode(prompt.text)
        room = target.limits.max_seq_len - target.limits.max_draft_len - len(tokens)
        if tokens and room >= LEAST_ROOM:
            jobs.append(
                (f"{prompt.name}#{number}", prompt, tokens, min(room, prompt.max_tokens or asking.max_tokens))
            )
    if not jobs:
        problem = (
            f"no prompt leaves room for {LEAST_ROOM} tokens: texts have {target.limits.max_seq_len} at most"
        )
        raise DatasetError("workload", problem, "raise engine.max_seq_len, or take shorter prompts")
    advance(sum(name in known for name, *_ in jobs))

    async def all_of_them() -> None:
        coordinator, places = (
            Coordinator(target, None, tokenizer),
            asyncio.Semaphore(target.limits.max_batch_size),
        )

        async def one(number: int, name: str, prompt: Prompt, tokens: list[int], most: int) -> None:
            sampling = asking.sampling(number)
            request = CompletionRequest(
                prompt_token_ids=tokens,
                max_tokens=most,
                sampling=SamplingConfig(**sampling),  # type: ignore[arg-type]
            )
            async with places:
                delta = await coordinator.complete(request)
            assert delta.completion is not None
            stopped = delta.completion.end_reason is EndReason.END_ID
            known[name] = Recorded(
                name,
                prompt.category,
                prompt.text,
                tuple(tokens),
                delta.text,
                tuple(delta.token_ids),
                "stop" if stopped else "length",
                asking.model,
                sampling,
            )
            append_recorded(file, [known[name]])
            advance(1)

        missing = [(number, *job) for number, job in enumerate(jobs) if job[0] not in known]
        await asyncio.gather(*(one(*job) for job in missing))

    asyncio.run(all_of_them())
    return [known[name] for name, *_ in jobs]
