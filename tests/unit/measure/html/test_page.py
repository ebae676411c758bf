"""The report: well formed, whole in itself, with every number that matters, and hostile words only words."""

from __future__ import annotations

import re
from dataclasses import fields, is_dataclass, replace
from typing import Any
from xml.etree.ElementTree import Element, fromstring

import pytest

from tests.fakes.bench_result import level, result
from trtspec.measure.bench.result import Arms, BenchedServer, BenchResult, BenchVerdict
from trtspec.measure.html.document import as_html
from trtspec.measure.html.page import advice, headline, page

HOSTILE = (
    "<script>alert(1)</script>",
    "</style><style>*{display:none}</style>",
    "\"><img src='http://example.com/x' onerror=alert(1)>",
    "{{ 7 * 7 }}{% raw %}",
    "&lt;b&gt; &amp;",
    "<!-- -->]]>",
)


def tree(found: BenchResult) -> Element:
    """The report as strict XML, which refuses what a browser would guess at."""
    return fromstring(as_html(page(found)))


def words(element: Element) -> str:
    return " ".join("".join(element.itertext()).split())


def test_the_report_page_loads_no_resources_and_runs_no_scripts() -> None:
    root = tree(result())
    tags = {element.tag.rpartition("}")[2] for element in root.iter()}
    assert not tags & {"script", "link", "img", "iframe", "object", "embed", "form", "a", "image"}
    names = {name for element in root.iter() for name in element.attrib}
    assert not [name for name in names if name.startswith("on") or name == "src"]
    assert all(element.get("href", "#").startswith("#") for element in root.iter())
    styles = [words(root.find("head/style") or root), *(element.get("style", "") for element in root.iter())]
    assert not re.search(r"url\(|@import", " ".join(styles))
    assert len(list(root.iter("style"))) == 1, "a rule inside a plot would hold for the whole page"
    policy = next(meta for meta in root.iter("meta") if meta.get("http-equiv") == "Content-Security-Policy")
    assert "default-src 'none'" in policy.attrib["content"]


def texts(value: Any, said: list[str]) -> Any:
    """A copy of a result in which every text that is free is hostile; `said` gets each of them."""
    if is_dataclass(value) and not isinstance(value, type):
        changed = {
            field.name: texts(getattr(value, field.name), said)
            for field in fields(value)
            if "Literal" not in str(field.type) and field.name != "started"
        }
        return replace(value, **changed)
    if isinstance(value, str):
        said.append(f"{HOSTILE[len(said) % len(HOSTILE)]} {len(said)}")
        return said[-1]
    if isinstance(value, tuple):
        return tuple(texts(part, said) for part in value)
    if isinstance(value, dict):
        return {texts(key, said): texts(part, said) for key, part in value.items()}
    return value


def test_hostile_words_stay_words() -> None:
    said: list[str] = []
    found: BenchResult = texts(result(words="x"), said)
    found = replace(found, verdict=replace(found.verdict, notes=(HOSTILE[0],)))
    root = tree(found)
    text = words(root)
    model, workload = found.model, found.workload
    shown = (model.name, model.target, workload.name, workload.source, found.server.url, found.verdict.words)
    assert [name for name in shown if name and " ".join(name.split()) not in text] == []
    assert {element.tag for element in root.iter()} == {element.tag for element in tree(result()).iter()}


@pytest.mark.usefixtures("without_plots")
def test_characters_that_no_html_file_may_have_are_escaped_in_the_page() -> None:
    name = "a\x00b\x1b[31m\u202ec\ud800"
    html = as_html(page(replace(result(), model=replace(result().model, recipe=name))))
    assert "a\\u0000b\\u001b[31m\\u202ec\\ud800" in html
    fromstring(html.encode())


def test_every_number_that_matters_is_there() -> None:
    found = result()
    root = tree(found)
    cells = [words(cell) for cell in root.iter() if cell.tag in ("td", "th")]
    for one in found.levels:
        assert one.speedup is not None
        assert f"{one.speedup.value:.2f}x {one.speedup.low:.2f} - {one.speedup.high:.2f}" in cells
        arm = one.arms.speculative
        for times in (arm.time_to_first_token, arm.inter_token, arm.between_pieces):
            assert times is not None
            for seconds in (times.p50, times.p90, times.p95, times.p99, times.mean):
                assert any(re.fullmatch(r"[\d,.]+", cell) and near(cell, seconds * 1e3) for cell in cells)
        assert arm.drafts is not None
        assert f"{arm.drafts.acceptance.verifications:,}" in cells
        assert any(near(cell, arm.tokens_per_second.value) for cell in cells)
    text = words(root)
    for name in ("coding", "roleplay", "recipes/tiny/target", "break-even 24", "AMD EPYC 9R14", "20 ms"):
        assert name in text


def near(cell: str, value: float) -> bool:
    try:
        return abs(float(cell.split()[0].replace(",", "")) / value - 1) < 0.006
    except (ValueError, IndexError):
        return False


@pytest.mark.usefixtures("without_plots")
@pytest.mark.parametrize(
    ("verdict", "heading", "what"),
    [
        (BenchVerdict("a", "on"), "Worth it, at every load that was measured", "Leave drafts on"),
        (BenchVerdict("a", "up_to", 24.0, 24.0), "Worth it, up to 24 streams", "Use drafts up to 24 streams"),
        (BenchVerdict("a", "off"), "Not worth it as it is", "Serve without drafts"),
        (
            BenchVerdict("a", "undecided"),
            "It depends on the load",
            "Use drafts at loads whose whole interval",
        ),
    ],
)
def test_the_first_words_answer_whether_it_is_worth_it(
    verdict: BenchVerdict, heading: str, what: str
) -> None:
    root = tree(replace(result(), verdict=verdict))
    hero = root.find("body/main/section")
    assert hero is not None
    assert words(next(hero.iter("h1"))) == heading
    assert what in words(next(hero.iter("ul")))


def test_the_headline_is_not_clear_yet_when_every_interval_includes_one() -> None:
    found = replace(result({1: 1.01, 8: 0.99}), verdict=BenchVerdict("a", "undecided"))
    assert headline(found) == "Not clear yet"
    assert "Measure for longer" in advice(found)[0]


def test_loads_without_a_speed_up_are_no_reason_to_leave_drafts_on() -> None:
    """As of a rate at which many requests failed."""
    levels = tuple(
        replace(each, speedup=each.speedup if each.load.value < 4 else None) for each in result().levels
    )
    found = replace(result(), levels=levels, verdict=BenchVerdict("a", "on"))
    assert headline(found) == "Worth it, at 2 of the 7 loads that were measured"
    assert "highest measured load is 2 streams;" in advice(found)[0]


@pytest.mark.parametrize(
    ("with_plain", "heading", "repair"),
    [
        (False, "Not known: nothing was measured without drafts", "with --baseline"),
        (True, "Not known: no speed-up can be stated", "the notes say why"),
    ],
)
def test_the_headline_is_not_known_when_no_speed_up_was_measured(
    with_plain: bool, heading: str, repair: str
) -> None:
    levels = tuple(
        replace(each, speedup=None, arms=each.arms if with_plain else Arms(each.arms.speculative))
        for each in result().levels
    )
    found = replace(result(), levels=levels, verdict=BenchVerdict("a", "unmeasured"))
    assert headline(found) == heading
    assert repair in advice(found)[0]


def test_the_page_leaves_out_sections_without_measurements() -> None:
    """A server that says nothing of drafts and cannot decode without them; one load; nothing but errors."""
    whole = result()
    one = level(4, 1.5)
    bare = replace(
        one.arms.speculative,
        errors={"unreachable": 144},
        time_to_first_token=None,
        inter_token=None,
        between_pieces=None,
        end_to_end=None,
        goodput=None,
        drafts=None,
        inside=type(one.arms.speculative.inside)(),
    )
    found = replace(
        whole,
        server=BenchedServer("http://127.0.0.1:8000/v1", "openai", "none"),
        levels=(replace(one, arms=Arms(bare), speedup=None, pairs=()),),
        verdict=BenchVerdict("nothing to compare with", "unmeasured"),
        is_partial=True,
    )
    root = tree(found)
    titles = [words(title) for title in root.iter("h2")]
    facts = ["What was measured, on what", "To measure it again"]
    assert titles == ["What to do", "Tokens a second", "Requests and errors", *facts]
    text = words(root)
    assert "The run was stopped early" in text
    assert "144 requests were measured, and 144 failed" in text
    assert "not measured" in text


@pytest.mark.usefixtures("without_plots")
def test_drafts_that_do_badly_are_called_out() -> None:
    text = words(tree(result()))
    assert "Few drafts are accepted for roleplay (44%), writing (48%)" in text


def test_who_comes_second_is_not_taken_for_a_gain() -> None:
    """Pairs that differ by who began alone are no spread: each dot is of two, of which each arm began one."""
    found = result({4: 1.5})
    (one,) = found.levels
    found = replace(found, levels=(replace(one, pairs=((300.0, 100.0), (75.0, 100.0)) * 3),))
    root = tree(found)
    (plot,) = root.findall("body/main/section[1]/figure/svg")
    dots = [float(dot.attrib["y"]) for dot in plot.iter("use") if "fill-opacity" in dot.get("style", "")]
    (speedup,) = [group for group in plot.iter("g") if group.findtext("title", "").startswith("4 streams")]
    (place,) = [float(dot.attrib["y"]) for dot in speedup.iter("use")]
    assert dots == pytest.approx([place] * 3)
