"""Gets the target's answers from a deployment; a resumed run asks only for those that it lacks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trtspec.base.errors import ServerError
from trtspec.base.progress import Advance
from trtspec.client.endpoint import AskError, ChatMessage, Endpoint, EndpointRequest
from trtspec.client.finding import find
from trtspec.measure.bench.traffic import Tasks
from trtspec.measure.workloads.recorded import Recorded, append_recorded, read_recorded
from trtspec.measure.workloads.workload import Prompt
from trtspec.train.tune.recording import Asking

_TIMEOUT_S = 3600.0

Connect = Callable[[], Awaitable[Endpoint]]


@dataclass(frozen=True, slots=True)
class TargetDeployment:
    """A server of the target, with drafts or without: they change no answer."""

    url: str
    model: str | None = None
    key: str | None = field(default=None, repr=False)
    streams: int = 16

    async def connect(self) -> Endpoint:
        """Finds the model, by Triton's API or OpenAI's; raises UnavailableError."""
        return (await find(self.url, self.model, chat=False, timeout_s=_TIMEOUT_S, key=self.key)).endpoint


def record(
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
                told = ServerError(endpoint.url, f"prompt {prompt.name}: {error.problem}")
                if error.kind != "rejected":
                    raise told from error
                leave_out(told)

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
