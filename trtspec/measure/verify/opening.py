"""Opens both sides of a verification: engines in this process, a server, or two."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from trtspec.base.errors import UnavailableError
from trtspec.measure.verify.deployed import deployed
from trtspec.measure.verify.in_process import InProcess, load_build
from trtspec.measure.verify.prompts import Vocabulary
from trtspec.measure.verify.subject import Sides, Subject


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """The address of a server."""

    url: str
    model: str | None
    """The model's name; None for the usual model, or the only one."""
    key: str | None = None
    timeout_s: float = 300.0


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
            subject, decodes_plainly = await deployed(
                address.url, address.model, vocabulary.end_ids, address.timeout_s, address.key
            )
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
