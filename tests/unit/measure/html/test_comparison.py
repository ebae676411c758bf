"""The report of two results: which is faster, what each is worth, and what was not the same."""

from __future__ import annotations

from dataclasses import replace
from xml.etree.ElementTree import Element, fromstring

import pytest

from tests.fakes.bench_result import SPEEDUPS, acceptance, result
from trtspec.measure.bench.compare import compare
from trtspec.measure.bench.result import Arms, BenchResult, DraftFigures, OfferedLoad
from trtspec.measure.html.comparison import comparison_page
from trtspec.measure.html.document import as_html


def tree(first: BenchResult, second: BenchResult) -> Element:
    return fromstring(as_html(comparison_page(compare(first, second))))


def words(element: Element) -> str:
    return " ".join("".join(element.itertext()).split())


@pytest.mark.parametrize(
    ("factors", "heading"),
    [
        ((1.3, 1.2), "B is faster"),
        ((0.8, 0.7), "A is faster"),
        ((1.0, 1.0), "No difference was found"),
        ((1.3, 0.8), "It depends on the load which is faster"),
    ],
)
def test_the_first_words_say_which_is_faster(factors: tuple[float, float], heading: str) -> None:
    second = {1: SPEEDUPS[1] * factors[0], 16: SPEEDUPS[16] * factors[1]}
    root = tree(result(), result(second))
    assert words(next(root.iter("h1"))) == heading


def test_a_comparison_shows_differing_facts_side_by_side_and_equal_ones_once() -> None:
    other = result()
    other = replace(
        other,
        model=replace(other.model, num_draft_tokens=8),
        settings=replace(other.settings, max_tokens=128),
    )
    root = tree(result(), other)
    rows = [[words(cell) for cell in row] for row in root.iter("tr")]
    assert ["K of the server", "4", "8"] in rows
    assert ["longest answer", "256 tokens", "128 tokens"] in rows
    facts = {words(name): words(value) for name, value in (tuple(each) for each in root.findall(".//dl/div"))}
    assert facts["target"] == "recipes/tiny/target"
    assert "longest answer" not in facts


def test_runs_without_blocks_have_no_ratio_and_say_so() -> None:
    """A load generator that reports a run as a whole leaves nothing to reckon an interval from."""
    bare = result()
    levels = tuple(
        replace(
            level,
            arms=replace(level.arms, speculative=replace(level.arms.speculative, blocks=())),
        )
        for level in bare.levels
    )
    root = tree(replace(bare, levels=levels), result())
    assert words(next(root.iter("h1"))) == "Not known which is faster"
    assert "No ratio has an interval" in words(root)


def at_a_rate(seconds: float, failed: int = 0) -> BenchResult:
    """Two requests a second, each of which takes so long; tokens a second follow from the rate."""
    (level,) = result({2: 1.5}).levels
    pairs = tuple((seconds * (1 + 0.01 * way), 2 * seconds) for way in (-2, 1, 0, 1, -1, 1))
    arms = replace(level.arms, speculative=replace(level.arms.speculative, errors={"refused": failed}))
    return replace(result(), levels=(replace(level, load=OfferedLoad("rate", 2), arms=arms, pairs=pairs),))


def test_at_a_rate_the_time_of_a_request_says_which_is_faster() -> None:
    root = tree(at_a_rate(2.0), at_a_rate(1.0))
    assert words(next(root.iter("h1"))) == "B is faster"
    assert "With drafts B has 2.00x (1.97 - 2.03) at 2 requests/s the speed of A, by the mean time" in words(
        root
    )
    assert words(next(tree(at_a_rate(1.0), at_a_rate(2.0)).iter("h1"))) == "A is faster"


def test_at_a_rate_who_refuses_is_not_faster() -> None:
    root = tree(at_a_rate(2.0), at_a_rate(1.0, failed=40))
    assert words(next(root.iter("h1"))) == "Not known which is faster"


def test_runs_with_drafts_of_two_lengths_have_columns_as_far_as_each_goes() -> None:
    def drafting(length: int) -> BenchResult:
        drafts = DraftFigures("answers", acceptance(0.5, 80, length))
        levels = tuple(
            replace(level, arms=Arms(replace(level.arms.speculative, drafts=drafts)))
            for level in result().levels
        )
        return replace(result(), levels=levels)

    root = tree(drafting(2), drafting(4))
    rows = [[words(cell) for cell in row] for row in root.iter("tr")]
    assert [row for row in rows if row[0] == "3" and len(row) == 3] == [["3", "-", "50%"]]
    titles = [words(title) for title in root.iter("{http://www.w3.org/2000/svg}title")]
    titles += [words(title) for title in root.iter("title")]
    assert {title.split(":")[0] for title in titles if "position 3" in title or "position 2" in title} == {
        f"{arm}, of those whose turn came, position {place}" for arm, place in (("A", 2), ("B", 2), ("B", 3))
    }
