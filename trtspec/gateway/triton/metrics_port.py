"""The public port of the metrics: Triton's, followed by the counters of refusals in front of Triton."""

from __future__ import annotations

import asyncio
import re

from aiohttp import ClientError, ClientSession, ClientTimeout, web
from yarl import URL

from trtspec.gateway.refusals import Refusals

PATH = "/metrics"
_LATEST = ClientTimeout(total=5)
# The model updates the values of a histogram one by one, a hundred of them in some milliseconds.
_AGAIN_S, _MOST_LOOKS = 0.01, 5
_ENDS = re.compile(r'^(trtspec:\w+)_(?:count\{|bucket\{.*le="\+Inf").*\} (\S+)$', re.MULTILINE)
_API_LATEST = ClientTimeout(total=1)
# The session of the front does not decompress bodies.
_PLAIN = {"Accept-Encoding": "identity"}


class MetricsPort:
    """Answers with the metrics of `triton`, and with 503 without it, so that Prometheus sees it is down.

    `api` is the address of the refusals of OpenAI's API, None without such an API. While it does not answer,
    these are left out.
    """

    def __init__(self, refusals: Refusals, api: URL | None) -> None:
        self._refusals, self._api = refusals, api
        self.triton: URL | None = None

    async def answer(self, request: web.BaseRequest, session: ClientSession) -> web.Response:
        if request.path != PATH:
            return web.Response(status=404, text=f"the metrics are at {PATH}\n")
        if request.method not in ("GET", "HEAD"):
            return web.Response(status=405, text="the metrics are read\n", headers={"Allow": "GET, HEAD"})
        if self.triton is None:
            return web.Response(status=503, text="the server is not running\n")
        try:
            for _ in range(_MOST_LOOKS):
                async with session.get(self.triton, timeout=_LATEST, headers=_PLAIN) as answer:
                    text, status = await answer.text(), answer.status
                    kind = answer.headers.get("Content-Type")
                if is_whole(text):
                    break
                await asyncio.sleep(_AGAIN_S)
        except (ClientError, asyncio.TimeoutError):
            return web.Response(status=503, text="the server does not answer\n")
        if status == 200:
            text += self._refusals.text() + await self._apis(session)
        return web.Response(status=status, text=text, headers={"Content-Type": kind or "text/plain"})

    async def _apis(self, session: ClientSession) -> str:
        """Returns the values from OpenAI's API without comments: the front's own values have them."""
        if self._api is None:
            return ""
        try:
            async with session.get(self._api, timeout=_API_LATEST, headers=_PLAIN) as answer:
                text = await answer.text() if answer.status == 200 else ""
        except (ClientError, asyncio.TimeoutError):
            return ""
        return "".join(line for line in text.splitlines(keepends=True) if not line.startswith("#"))


def is_whole(text: str) -> bool:
    """Says whether no histogram is in the middle of an update.

    Prometheus would derive wrong rates from a partial update: with only the small buckets updated, all later
    values would seem to be the slowest.
    """
    ends: dict[str, set[str]] = {}
    for name, value in _ENDS.findall(text):
        ends.setdefault(name, set()).add(value)
    return all(len(values) == 1 for values in ends.values())
