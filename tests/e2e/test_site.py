"""The documentation as a site, in a browser: who searches it finds the page, and reads each command whole."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.docs.site import ROOT, _repository
from tests.support.chromium import PATH, Tab, look

needs_a_browser = pytest.mark.skipif(
    PATH is None or find_spec("material") is None, reason="needs Chromium, and the extra docs"
)
QUESTIONS = {
    "CUDA out of memory": "troubleshooting",
    "tokenizer mismatch": "troubleshooting",
    "LiteLLM": "how-to/litellm",
    "LangChain": "how-to/langchain",
    "Open WebUI": "how-to/open-webui",
    "update a model without downtime": "how-to/canary",
    "LoRA": "reference/models",
    "slower with speculation": "explanation/speculation",
    "KV cache share of two models": "explanation/plan",
    "does it change the output": "how-to/verify",
    "how many GPUs do I need": "how-to/size-a-fleet",
    "JSON schema": "how-to/guided-decoding",
    "acceptance rate prometheus": "reference/metrics",
    "speculative decoding CPU": "tutorials/laptop",
}
"""The page that answers each question: it is among the first three."""
FOUND = """[...document.querySelectorAll('.md-search-result__item')]
  .map(item => item.querySelector('a').pathname.slice(1).replace('.html', ''))"""
TYPE = """(() => {
  const query = document.querySelector('[data-md-component=search-query]');
  query.focus();
  query.value = %s;
  query.dispatchEvent(new Event('keyup'));
})()"""
COVERED = """[...document.querySelectorAll('.md-typeset pre')].filter(block => {
  const button = block.querySelector('.md-code__nav, .md-clipboard');
  const [code, over] = [block.querySelector('code'), button].map(each => each.getBoundingClientRect());
  return over.left < code.right;
}).map(block => block.textContent)"""
BUTTONS = "document.querySelectorAll('.md-code__nav, .md-clipboard').length"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("site")
    words = ["build", "--quiet", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    subprocess.run([sys.executable, "-m", "mkdocs", *words], cwd=ROOT, check=True, env=environment)

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *_: object) -> None:
            """Keeps the requests to itself."""

    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


async def until_there(tab: Tab, expression: str) -> None:
    while not await tab.evaluate(expression):
        await asyncio.sleep(0.05)


async def found_by(tab: Tab, question: str) -> list[str]:
    """Types a question into the empty search of the page; returns the pages that it finds."""
    for typed, count in (("", "== 0"), (question, "> 0")):
        await tab.evaluate(TYPE % json.dumps(typed))
        await until_there(tab, f"{FOUND}.length {count}")
    pages: list[str] = await tab.evaluate(FOUND)
    return pages


@needs_a_browser
def test_who_searches_finds_the_page_among_the_first_three(site: str, tmp_path: Path) -> None:
    async def ask(tab: Tab) -> dict[str, list[str]]:
        return {question: await found_by(tab, question) for question in QUESTIONS}

    found = look(f"{site}/index.html", tmp_path, ask).value
    first = {question: pages[:3] for question, pages in found.items()}
    assert {question: pages for question, pages in first.items() if QUESTIONS[question] not in pages} == {}
    assert not [page for pages in found.values() for page in pages if page.startswith("repository/tests")]


@needs_a_browser
def test_no_copy_button_covers_a_command(site: str, tmp_path: Path) -> None:
    async def covered(tab: Tab) -> tuple[list[str], bool]:
        await until_there(tab, f"{BUTTONS} > 0")
        ours: list[str] = await tab.evaluate(COVERED)
        await tab.evaluate("document.querySelector('link[href$=\"site.css\"]').remove()")
        return ours, bool(await tab.evaluate(COVERED))

    assert look(f"{site}/how-to/share-engines.html", tmp_path, covered).value == ([], True)


@pytest.mark.parametrize(
    ("environment", "url"),
    [
        (
            {"GITHUB_SERVER_URL": "https://github.example", "GITHUB_REPOSITORY": "a/b"},
            "https://github.example/a/b",
        ),
        ({"CI_PROJECT_URL": "https://gitlab.example/a/b"}, "https://gitlab.example/a/b"),
    ],
)
def test_the_site_links_to_the_repository_that_builds_it(environment: dict[str, str], url: str) -> None:
    assert _repository(environment) == url
