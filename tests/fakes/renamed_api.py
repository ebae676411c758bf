"""Passes OpenAI's API at a URL on, on a port that it prints, with models that somebody else owns.

python -m tests.fakes.renamed_api http://127.0.0.1:9000/v1
"""

from __future__ import annotations

import asyncio
import sys

import aiohttp
from aiohttp import web


async def main(api: str) -> None:
    async with aiohttp.ClientSession() as session:

        async def pass_on(request: web.Request) -> web.StreamResponse:
            url, body = api + request.path.removeprefix("/v1"), await request.read()
            headers = {"Content-Type": "application/json"}
            async with session.request(request.method, url, data=body, headers=headers) as found:
                answer = web.StreamResponse(status=found.status)
                await answer.prepare(request)
                async for piece in found.content.iter_any():
                    await answer.write(piece.replace(b'"owned_by":"trtspec"', b'"owned_by":"someone"'))
                return answer

        app = web.Application()
        app.router.add_route("*", "/{path:.*}", pass_on)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        print(runner.addresses[0][1], flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
