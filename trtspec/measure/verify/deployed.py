"""Finds a deployment's API for `verify`, and whether it decodes plainly on request."""

from __future__ import annotations

from collections.abc import Collection

from trtspec.client.finding import find
from trtspec.client.http import Streams
from trtspec.measure.verify.openai_subject import OpenAiSubject
from trtspec.measure.verify.subject import Subject
from trtspec.measure.verify.triton_subject import TritonSubject


async def deployed(
    url: str, model: str | None, end_ids: Collection[int], timeout_s: float, key: str | None = None
) -> tuple[Subject, bool]:
    """Returns the server at a URL, and whether it decodes plainly on request.

    Raises `UnavailableError` if no server answers, or if it does not report its tokens.
    """
    found = await find(url, model, chat=False, timeout_s=timeout_s, key=key)
    endpoint = found.endpoint
    await endpoint.close()
    streams = Streams(timeout_s, key)
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
