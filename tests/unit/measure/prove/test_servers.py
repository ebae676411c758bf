"""The servers that `prove` is told: addresses, recipes, and commands that it starts and ends."""

from __future__ import annotations

import asyncio
import shlex
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.support.processes import command_lines
from tests.unit.measure.verify.conftest import TINY
from trtspec.base.errors import MeasureError, ServerError
from trtspec.measure.prove.servers import ProvedServer, opened
from trtspec.measure.verify.opening import begin

FAKE = (
    f"{shlex.quote(sys.executable)} -m tests.fakes.openai_server --model {TINY / 'target'} --host 127.0.0.1"
)


def started(server: ProvedServer, said: list[str]) -> bool:
    async def main() -> bool:
        async with AsyncExitStack() as stack:
            assert server.start
            await begin(server.start, stack, said.append)
            return bool(running(server))

    return asyncio.run(main())


def running(server: ProvedServer) -> list[list[str]]:
    port = server.address.url.rpartition(":")[2].partition("/")[0]
    return [line for _, line in command_lines() if port in line]


def test_an_address_is_shown_without_its_password() -> None:
    with opened("https://me:secret@host/v1", None, None, "a") as server:
        assert (server.name, server.start, server.address.model) == ("https://host/v1", None, "a")


def test_a_command_is_started_on_a_free_port_and_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[4]))
    monkeypatch.chdir(tmp_path)
    with opened(
        f"{FAKE} --served-model-name one --api-key secret --dtype float32", None, None, None
    ) as server:
        pass
    assert "secret" not in server.name
    assert (server.tokenizer, server.dtype) == (TINY / "target", "float32")
    said: list[str] = []
    with opened(f"{FAKE} --served-model-name one", None, None, None) as server:
        assert started(server, said)
        assert said[0].startswith("starting ")
    assert not running(server)


def test_a_command_that_ends_is_told_with_its_last_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = f"{shlex.quote(sys.executable)} -c 'import sys; sys.exit(\"no such device\")'"
    with opened(words, None, None, None) as server, pytest.raises(ServerError, match="no such device"):
        started(server, [])


def test_other_words_are_no_server() -> None:
    with pytest.raises(MeasureError, match="is no server"), opened("nobody", None, None, None):
        pass
