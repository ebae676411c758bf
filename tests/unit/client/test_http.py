"""What is posted to a server as JSON."""

from __future__ import annotations

import asyncio

import pytest
from yarl import URL

from trtspec.client.endpoint import AskError
from trtspec.client.http import Streams


def test_a_text_that_is_not_utf_8_is_not_sent() -> None:
    async def main() -> None:
        streams = Streams(timeout_s=5)
        try:
            await anext(streams.post(URL("http://127.0.0.1:1/v1/completions"), {"prompt": "a\udcff"}, 0.0))
        finally:
            await streams.close()

    with pytest.raises(AskError, match=r"^rejected: the text is not UTF-8$"):
        asyncio.run(main())
