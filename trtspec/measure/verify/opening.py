"""Opens both sides of a verification: engines in this process, a server, or two."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from trtspec.base.errors import UnavailableError
from trtspec.client.finding import find
from trtspec.client.http import Streams
from trtspec.measure.verify.in_process import InProcess, load_build
from trtspec.measure.verify.openai_subject import OpenAiSubject
from trtspec.measure.verify.prompts import Vocabulary
from trtspec.measure.verify.subject import Sides, Subject
from trtspec.measure.verify.triton_subject import TritonSubject

_TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """The address of a server."""

    url: str
    model: str | None
    """The model's name; None for the usual model, or the only one."""
    key: str | None = None


@asynccontextmanager
async def in_this_process(build: Path, model_name: str) -> AsyncIterator[Sides]:
    """Yields the engines of a build, loaded here; raises as `load_build` does."""
    subject = InProcess(f"{build}, in this process", load_build(build, model_name))
    try:
        yield Sides(subject, subject)
    finally:
        await subject.close()


@asynccontextmanager
async def on_servers(
    server: ServerAddress, baseline: ServerAddress | None, vocabulary: Vocabulary
) -> AsyncIterator[Sides]:
    """Yields a server, and with it one without drafts if it cannot decode plainly on request.

    Raises `UnavailableError` if no server answers, or if none can decode plainly.
    """
    async with AsyncExitStack() as stack:

        async def reach(address: ServerAddress) -> tuple[Subject, bool]:
            subject, decodes_plainly = await deployed(address, vocabulary.end_ids)
            stack.push_async_callback(subject.close)
            return subject, decodes_plainly

        speculative, decodes_plainly = await reach(server)
        if baseline is not None:
            plain, is_told = await reach(baseline)
            yield Sides(plain, speculative, 0 if is_told else None)
        elif decodes_plainly:
            yield Sides(speculative, speculative)
        else:
            repair = "name a server of the same model without drafts: --baseline URL"
            raise UnavailableError(speculative.name, "cannot decode plainly on request", repair)


async def deployed(server: ServerAddress, end_ids: Collection[int]) -> tuple[Subject, bool]:
    """Returns the server at an address, and whether it decodes plainly on request.

    Raises `UnavailableError` if no server answers, or if it does not report its tokens.
    """
    found = await find(server.url, server.model, chat=False, timeout_s=_TIMEOUT_S, key=server.key)
    endpoint = found.endpoint
    await endpoint.close()
    streams = Streams(_TIMEOUT_S, server.key)
    subject: TritonSubject | OpenAiSubject
    if endpoint.api == "triton":
        subject = TritonSubject(endpoint.url, endpoint.model, streams)
    else:
        subject = OpenAiSubject(endpoint.url, endpoint.model, streams, end_ids, owner=found.owner)
    try:
        await subject.probe()
    except BaseException:
        await streams.close()
        raise
    return subject, endpoint.plain_per_request
