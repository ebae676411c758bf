"""An executor's listeners as something to await."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from trtspec.serving.errors import EngineFailure
from trtspec.serving.executor import Executor, Request, Response


async def answer(executor: Executor, request: Request) -> Response:
    """The one response of a request that does not stream.

    Raises `EngineFailure` with the engine's error. Cancelling the task that waits cancels the request.
    """
    heard: asyncio.Future[Response] = asyncio.get_running_loop().create_future()

    def listen(response: Response) -> None:
        if not heard.done():
            heard.set_result(response)

    request_id = executor.enqueue_request(request, listen)
    try:
        response = await heard
    except asyncio.CancelledError:
        executor.cancel_request(request_id)
        raise
    return _checked(response)


async def answers(executor: Executor, request: Request) -> AsyncGenerator[Response, None]:
    """The responses of a request that streams, the final one included.

    Raises `EngineFailure` with the engine's error. Closing the generator, or cancelling the task that waits,
    cancels the request.
    """
    heard: asyncio.Queue[Response] = asyncio.Queue()
    request_id = executor.enqueue_request(request, heard.put_nowait)
    is_final = False
    try:
        while not is_final:
            response = await heard.get()
            is_final = response.is_final
            yield _checked(response)
    finally:
        if not is_final:
            executor.cancel_request(request_id)


def _checked(response: Response) -> Response:
    if response.error is not None:
        raise EngineFailure(response.error)
    return response
