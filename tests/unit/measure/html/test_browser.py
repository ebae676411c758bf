"""The report as a browser shows it: without a complaint or a request, narrow, dark and printed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.fakes.bench_result import result
from tests.support.chromium import PATH, Seen, Tab, look
from tests.unit.measure.prove.test_proof import PROOF
from trtspec.measure.html.document import as_html
from trtspec.measure.html.page import page
from trtspec.measure.prove.report import proof_page

pytestmark = pytest.mark.skipif(PATH is None, reason="needs Chromium")

WIDTHS = "[document.documentElement.scrollWidth, innerWidth]"
FIRST_SCREEN = """[...document.querySelectorAll('h1, .hero ul, .hero .plot')]
  .map(element => Math.round(element.getBoundingClientRect().bottom))"""
CUT_OFF = """[...document.querySelectorAll('td, th, dd, dt')]
  .filter(cell => cell.scrollWidth > cell.clientWidth + 1).map(cell => cell.textContent)"""
SMALLEST_TEXT = """Math.min(...[...document.querySelectorAll('.plot text')].map(text =>
  parseFloat(getComputedStyle(text).fontSize) * text.getScreenCTM().a))"""
CONTRAST = """(() => {
  const parse = colour => colour.match(/[\\d.]+/g).map(Number);
  const light = colour => parse(colour).slice(0, 3).map(c => c / 255)
    .map(c => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const under = element => {
    for (let at = element; at; at = at.parentElement) {
      const colour = getComputedStyle(at).backgroundColor;
      if (parse(colour)[3] !== 0) return colour;
    }
  };
  const poor = [];
  for (const element of document.querySelectorAll('body *:not(title)')) {
    if (![...element.childNodes].some(node => node.nodeType === 3 && node.textContent.trim())) continue;
    const style = getComputedStyle(element);
    const colour = element instanceof SVGElement ? style.fill : style.color;
    const [one, other] = [light(colour), light(under(element))];
    const ratio = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    if (ratio < 4.5) poor.push([element.textContent.trim().slice(0, 40), ratio]);
  }
  return poor;
})()"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(as_html(page(result())), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A proof of two servers, of which one has a name that no line can hold."""
    proof = replace(PROOF, old="x" * 120)
    path = tmp_path_factory.mktemp("compared") / "report.html"
    path.write_text(as_html(proof_page(proof)), encoding="utf-8")
    return path


@pytest.mark.parametrize("kind", ["file", "compared"])
def test_narrow(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    file: Path = request.getfixturevalue(kind)

    async def ask(tab: Tab) -> list[object]:
        return [await tab.evaluate(script) for script in (WIDTHS, FIRST_SCREEN, CUT_OFF, SMALLEST_TEXT)]

    seen = look(file, tmp_path, ask, width=390)
    quiet(seen, file)
    (content, window), _, cut_off, smallest = seen.value
    assert (content, window) == (390, 390)
    assert cut_off == []
    assert smallest > 9.5


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_wide(file: Path, tmp_path: Path, dark: bool) -> None:
    async def ask(tab: Tab) -> list[object]:
        paper = "getComputedStyle(document.body).backgroundColor"
        return [await tab.evaluate(script) for script in (WIDTHS, FIRST_SCREEN, CONTRAST, paper)]

    seen = look(file, tmp_path, ask, dark=dark)
    quiet(seen, file)
    (content, window), bottoms, poor, paper = seen.value
    assert content == window
    assert len(bottoms) == 3
    assert max(bottoms) < 800
    assert poor == []
    assert (paper == "rgb(255, 255, 255)") is not dark


def test_printed(file: Path, tmp_path: Path) -> None:
    """On A4 nothing is wider than the paper, and what is printed of a dark screen is light."""

    async def ask(tab: Tab) -> list[object]:
        await tab.ask("Emulation.setEmulatedMedia", media="print")
        found = [await tab.evaluate(script) for script in (WIDTHS, CUT_OFF, CONTRAST)]
        await tab.pdf(tmp_path / "report.pdf")
        return found

    a4_within_margins = 695
    seen = look(file, tmp_path, ask, width=a4_within_margins, dark=True)
    quiet(seen, file)
    (content, window), cut_off, poor = seen.value
    assert content == window
    assert cut_off == []
    assert poor == []
    pages = (tmp_path / "report.pdf").read_bytes().count(b"/Type /Page\n")
    assert 4 <= pages <= 9


def test_the_page_may_do_nothing(tmp_path: Path) -> None:
    """Were something hostile to get through all the same, the page's own policy would stop it."""
    html = as_html(page(result()))
    file = tmp_path / "report.html"
    inside = "<script>document.title = 'ran'</script><img src='http://127.0.0.1:9/x'></main>"
    file.write_text(html.replace("</main>", inside), encoding="utf-8")

    async def ask(tab: Tab) -> object:
        return await tab.evaluate("document.title")

    seen = look(file, tmp_path, ask)
    assert seen.value == "tiny"
    assert len(seen.complaints) == 2


def quiet(seen: Seen, file: Path) -> None:
    assert seen.complaints == ()
    assert seen.requests == (file.as_uri(),)
