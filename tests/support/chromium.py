"""A real browser, asked over its DevTools protocol: what it says of a page, and how the page looks."""

from __future__ import annotations

import asyncio
import base64
import shutil
import subprocess
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp

PATH = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))),
    None,
)
_MOST = 300.0


@dataclass(frozen=True, slots=True)
class Seen:
    """What the browser saw of a page: what it complained about, and each address that it asked for."""

    complaints: tuple[str, ...]
    requests: tuple[str, ...]
    value: Any


class Tab:
    """A page of the browser; what it was asked is added to `asked`."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, asked: list[str]) -> None:
        self._socket, self._asked = socket, asked
        self._ids = count(1)
        self.events: list[dict[str, Any]] = []

    async def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._ids)
        self._asked.append(f"{method} {parameters}")
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        while True:
            message = await self._socket.receive_json(timeout=_MOST)
            if message.get("id") == number:
                assert "error" not in message, (method, message["error"])
                result: dict[str, Any] = message["result"]
                return result
            self.events.append(message)

    async def until(self, event: str) -> None:
        while not any(message.get("method") == event for message in self.events):
            self.events.append(await self._socket.receive_json(timeout=_MOST))

    async def evaluate(self, expression: str) -> Any:
        found = await self.ask("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    async def screenshot(self, file: Path, whole: bool = True) -> None:
        shot = await self.ask("Page.captureScreenshot", captureBeyondViewport=whole)
        file.write_bytes(base64.b64decode(shot["data"]))

    async def pdf(self, file: Path) -> None:
        found = await self.ask("Page.printToPDF", printBackground=False, preferCSSPageSize=True)
        file.write_bytes(base64.b64decode(found["data"]))


def look(
    page: Path | str,
    folder: Path,
    act: Callable[[Tab], Awaitable[Any]],
    width: int = 1280,
    dark: bool = False,
) -> Seen:
    """Opens a file or an address in a window; returns what `act` returned and what the browser saw."""
    assert PATH is not None
    profile, asked = folder / "profile", list[str]()
    options = (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--no-first-run",
        "--remote-debugging-port=0",
    )
    with (folder / "chromium.log").open("wb") as log:
        browser = subprocess.Popen(
            [PATH, *options, "--hide-scrollbars", f"--user-data-dir={profile}", "about:blank"],
            stderr=log,
            stdout=log,
        )
    try:
        looking = _look(browser, profile / "DevToolsActivePort", page, act, width, dark, asked)
        return asyncio.run(asyncio.wait_for(looking, _MOST))
    except asyncio.TimeoutError:
        said = (folder / "chromium.log").read_text(errors="replace")
        raise AssertionError(f"not in {_MOST:g} s: the answer to {asked[-1:]}; the browser: {said}") from None
    finally:
        browser.terminate()
        browser.wait(_MOST)


async def _look(
    browser: subprocess.Popen[bytes],
    port: Path,
    page: Path | str,
    act: Callable[[Tab], Awaitable[Any]],
    width: int,
    dark: bool,
    asked: list[str],
) -> Seen:
    while not (port.exists() and port.read_text().count("\n")):
        assert browser.poll() is None, f"the browser has ended with status {browser.returncode}"
        await asyncio.sleep(0.05)
    number = port.read_text().split()[0]
    async with aiohttp.ClientSession() as session:
        async with session.get(f"http://127.0.0.1:{number}/json/list") as answer:
            pages = [entry for entry in await answer.json(content_type=None) if entry["type"] == "page"]
        async with session.ws_connect(pages[0]["webSocketDebuggerUrl"], max_msg_size=0) as socket:
            tab = Tab(socket, asked)
            for domain in ("Page", "Network", "Log", "Runtime"):
                await tab.ask(f"{domain}.enable")
            await tab.ask(
                "Emulation.setDeviceMetricsOverride",
                width=width,
                height=844,
                deviceScaleFactor=1,
                mobile=False,
            )
            scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
            await tab.ask("Emulation.setEmulatedMedia", features=[scheme])
            await tab.ask("Page.navigate", url=page if isinstance(page, str) else page.as_uri())
            await tab.until("Page.loadEventFired")
            value = await act(tab)
            return Seen(tuple(_complaints(tab.events)), tuple(_requests(tab.events)), value)


def _complaints(events: list[dict[str, Any]]) -> list[str]:
    found = []
    for event in events:
        if event.get("method") == "Log.entryAdded":
            found.append(event["params"]["entry"]["text"])
        elif event.get("method") in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled"):
            found.append(str(event["params"]))
    return found


def _requests(events: list[dict[str, Any]]) -> list[str]:
    return [
        event["params"]["request"]["url"]
        for event in events
        if event.get("method") == "Network.requestWillBeSent"
    ]
