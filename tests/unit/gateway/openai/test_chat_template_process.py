"""Chat templates that will not, or want too much, and what becomes of the prompts after them."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from trtspec.gateway.openai.chat_template import ChatTemplate, Renderer
from trtspec.gateway.openai.errors import ApiError

# What is hostile happens for the message "bomb" alone.
BOMB = "{%% if messages[0].content == 'bomb' %%}%s{%% else %%}fine{%% endif %%}{{ messages[0].content }}"
FINE = "fine{{ messages[0].content }}"
LIMIT_S = 0.5


def use(source: str, work: Callable[[Renderer], Awaitable[Any]], timeout_s: float = LIMIT_S) -> Any:
    async def run() -> Any:
        renderer = Renderer(ChatTemplate(source, {"bos_token": "<s>"}), timeout_s)
        try:
            return await work(renderer)
        finally:
            await renderer.close()

    return asyncio.run(run())


async def render(renderer: Renderer, content: str = "a", **more: Any) -> str:
    """Returns what the template writes before the message."""
    made = await renderer.render([{"role": "user", "content": content}], None, more)
    return made.removesuffix(content)


def refusal(source: str) -> ApiError:
    async def work(renderer: Renderer) -> ApiError:
        with pytest.raises(ApiError) as caught:
            await render(renderer)
        return caught.value

    error: ApiError = use(source, work)
    assert (error.status, error.param) == (400, "messages")
    return error


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages[7].content }}",
        "{{ 1 / 0 }}",
        "{{ none.x.y }}",
        "{% include 'secrets' %}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{{ '%c' % 55296 }}{{ messages[0].content }}",
        "{% for i in range(10 ** 9) %}{% endfor %}",
    ],
)
def test_what_a_template_may_not_or_will_not_do_is_the_clients_error(source: str) -> None:
    assert "refuses these messages" in refusal(source).message


def test_a_broken_template_says_so() -> None:
    assert "template cannot be read: " in refusal("{% for %}").message


@pytest.mark.parametrize(
    "bomb",
    [
        "{{ 'a' * 10 ** 9 }}",
        "{{ 'a'.ljust(10 ** 9) }}",
        "{{ 'a' | center(10 ** 9) }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ '{:1000000000}'.format(1) }}",
        "{{ (['a' * 10 ** 6] * 2000) | join }}",
        "{{ (messages * 10 ** 9) | length }}",
        "{% set n = namespace(x='ab') %}{% for i in range(40) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
        "{{ 9 ** (9 ** (8 + messages | length)) }}",
        "{% for a in range(99999) %}{% for b in range(99999) %}{% set c = b %}{% endfor %}{% endfor %}",
        "{% for a in range(99999) %}{{ 'a' * 999 }}{% endfor %}",
    ],
)
def test_a_template_that_makes_too_much_is_stopped_and_the_next_prompt_is_made(bomb: str) -> None:
    async def work(renderer: Renderer) -> None:
        for _ in range(2):
            with pytest.raises(ApiError, match="too long a prompt of these messages") as caught:
                await render(renderer, "bomb")
            assert (caught.value.status, caught.value.param) == (400, "messages")
            assert await render(renderer) == "fine"

    use(BOMB % bomb, work)
    # It was another process that made it.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 4 << 20


def test_a_prompt_that_waits_behind_one_that_is_stopped_is_made() -> None:
    async def work(renderer: Renderer) -> list[Any]:
        asked = [render(renderer, content) for content in ("a", "bomb", "b", "bomb", "c")]
        return await asyncio.gather(*asked, return_exceptions=True)

    said = use(BOMB % "{{ 9 ** (9 ** (8 + messages | length)) }}", work)
    assert said[::2] == ["fine"] * 3
    assert [type(error) for error in said[1::2]] == [ApiError, ApiError]


def test_no_short_prompt_waits_behind_a_long_one() -> None:
    async def work(renderer: Renderer) -> str:
        long = asyncio.ensure_future(render(renderer, "bomb", blob="a" * 300_000))
        said = await render(renderer)
        assert not long.done()
        long.cancel()
        return said

    slow = "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}slow"
    assert use(BOMB % slow, work, timeout_s=60) == "fine"


def test_nobody_gets_the_prompt_of_one_who_left() -> None:
    async def work(renderer: Renderer) -> str:
        await render(renderer)
        left = asyncio.ensure_future(render(renderer, "bomb"))
        while not renderer._short._turn.locked():
            await asyncio.sleep(0)
        left.cancel()
        with pytest.raises(asyncio.CancelledError):
            await left
        return await render(renderer)

    slow = "{% for a in range(9999) %}{% for b in range(300) %}{% endfor %}{% endfor %}slow"
    assert use(BOMB % slow, work, timeout_s=30) == "fine"


def test_who_leaves_in_the_middle_of_a_short_prompt_costs_no_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("trtspec.gateway.openai.chat_template._RESTART_S", 30)

    async def work(renderer: Renderer) -> None:
        await render(renderer)
        process = renderer._short._process
        left = asyncio.ensure_future(render(renderer))
        while not renderer._short._turn.locked():
            await asyncio.sleep(0)
        left.cancel()
        with pytest.raises(asyncio.CancelledError):
            await left
        assert await render(renderer) == "fine"
        assert renderer._short._process is process

    use(FINE, work, timeout_s=30)


def test_a_process_that_is_stopped_holds_the_chats_no_longer_than_its_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Another process must have begun by then, on a busy machine too.
    monkeypatch.setattr("trtspec.gateway.openai.chat_template._BESIDES_S", 5)

    async def work(renderer: Renderer) -> Any:
        await render(renderer)
        assert renderer._short._process
        os.kill(renderer._short._process.pid, signal.SIGSTOP)
        return await asyncio.gather(*(render(renderer) for _ in range(3)), return_exceptions=True)

    first, *others = use(FINE, work)
    assert isinstance(first, ApiError)
    assert (first.status, first.message) == (
        504,
        "the process that renders the chat template does not answer; try again",
    )
    assert others == ["fine", "fine"]


STARTER = """
import asyncio
from trtspec.gateway.openai.chat_template import Renderer
from trtspec.gateway.openai.chat_template import ChatTemplate

async def run():
    source = "{% if messages %}{{ 9 ** (9 ** (8 + messages | length)) }}{% endif %}"
    renderer = Renderer(ChatTemplate(source, {}), 2)
    await renderer.render([], None, {})
    print(renderer._short._process.pid, flush=True)
    await renderer.render([{"role": "user", "content": "a"}], None, {})

asyncio.run(run())
"""


def _is_there(process: Path) -> bool:
    """Says whether it runs; one that has ended has no command line, and then no folder."""
    try:
        return bool((process / "cmdline").read_bytes())
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_it_ends_with_whoever_started_it() -> None:
    """Even in the middle of something, since its time is up then too."""
    with subprocess.Popen([sys.executable, "-c", STARTER], stdout=subprocess.PIPE) as starter:
        assert starter.stdout
        process = Path("/proc", starter.stdout.readline().decode().strip())
        assert b"trtspec.gateway.openai.chat_template_process" in (process / "cmdline").read_bytes()
        starter.kill()
    deadline = time.monotonic() + 20
    while _is_there(process):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_the_bounds_let_ordinary_work_through() -> None:
    source = "{{ '-' * 40 }}{{ 3 * 4 }}{{ 2 ** 10 }}{{ '%s' % 1 }}{{ messages[0].content | length }}"
    long = "é😀" + "a" * 15_000_000
    whole = source + "{{ messages[0].content | trim }}"
    made = use(whole, lambda renderer: render(renderer, long), 30)
    assert made == "-" * 40 + f"1210241{len(long)}"


def test_more_values_do_not_replace_the_messages() -> None:
    source = "{{ enable_thinking }}{{ number }}{{ messages | length }}{{ bos_token }}"
    more: Any = {"enable_thinking": False, "number": 10**30, "messages": [1, 2], "bos_token": "x"}
    made = use(source, lambda renderer: renderer.render([], None, more))
    assert made == f"False{10**30}0<s>"
