"""What follows from what was found of two servers, and how it is shown."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any
from xml.etree.ElementTree import fromstring

import pytest

from tests.fakes.bench_result import result
from tests.unit.measure.html.test_page import HOSTILE
from trtspec.measure.bench.result import Arms, BenchResult, Interval
from trtspec.measure.commands.prove import _questions
from trtspec.measure.html.document import as_html
from trtspec.measure.prove.proof import Accuracy, Proof, Wanted, counted, each_confidence, merged
from trtspec.measure.prove.report import ShownProof, as_markdown, check_rows, proof_page
from trtspec.measure.prove.run import contains
from trtspec.measure.verify.result import CaseResult, Difference, GreedyComparison, VerifyResult
from trtspec.measure.verify.tolerance import tolerance

FAULT = Difference("code-1", "tokens", "fault", 3, "def ", "'a'", "'b'", "the target prefers 'a'", 2.0)
NOISE = GreedyComparison(0, 1, 16, 64, (), 1e-5, 0, 0)
CASES = (CaseResult("stops", "stop strings", "ok"), CaseResult("tools", "calls", "skipped", "400: no tools"))
TEXTS = VerifyResult(
    "old", "new", tolerance("float32", 1e-5), NOISE, (replace(NOISE, num_draft_tokens=None),), cases=CASES,
    subject="servers",
)  # fmt: skip


def with_arms(bench: BenchResult, plain: dict[str, Any], speculative: dict[str, Any]) -> BenchResult:
    """Returns the result with other figures of each arm."""
    levels = []
    for level in bench.levels:
        assert level.arms.plain
        arms = Arms(replace(level.arms.speculative, **speculative), replace(level.arms.plain, **plain))
        levels.append(replace(level, arms=arms))
    return replace(bench, levels=tuple(levels))


BENCH = with_arms(result({1: 1.93, 16: 1.12, 64: 0.74}), {"errors": {}}, {"errors": {}})
PROOF = Proof("http://old/v1", "http://new/v1", Wanted(), TEXTS, "", BENCH, (None, None))


def ratios(*found: tuple[float, float, float]) -> Proof:
    levels = zip(BENCH.levels, found, strict=True)
    return replace(
        PROOF, bench=replace(BENCH, levels=tuple(replace(one, speedup=Interval(*of)) for one, of in levels))
    )


def test_equal_texts_are_proven_with_the_speed_at_both_ends() -> None:
    proof = ratios((1.9, 1.8, 2.0), (1.1, 0.9, 1.3), (0.7, 0.6, 0.8))
    assert proof.outcome == "proven"
    assert proof.words == (
        "proven: the texts are equal within rounding (16 greedy answers, 0 part at a near tie, 1 cases passed"
        " and 1 were skipped); 1.90x as fast at 1 stream, as fast at 16 streams, 0.70x as fast at 64 streams"
    )


def test_intervals_that_have_1_in_them_are_no_difference() -> None:
    proof = ratios((1.1, 0.9, 1.3), (1.02, 0.98, 1.06), (0.97, 0.9, 1.05))
    assert proof.words.endswith("; no difference of speed was found")


@pytest.mark.parametrize(
    ("found", "outcome"),
    [((1.0, 0.97, 1.03), "proven"), ((0.96, 0.9, 1.02), "open"), ((0.8, 0.7, 0.9), "refuted")],
)
def test_the_speed_that_is_asked_for_is_judged_by_its_interval(
    found: tuple[float, float, float], outcome: str
) -> None:
    proof = ratios((1.5, 1.4, 1.6), (1.2, 1.1, 1.3), found)
    assert proof.outcome == "proven", "no speed was asked for"
    assert replace(proof, wanted=Wanted(at_least=0.95)).outcome == outcome


def test_one_fault_refutes_whatever_the_speed() -> None:
    texts = replace(TEXTS, comparisons=(replace(NOISE, differences=(FAULT,)),))
    proof = replace(PROOF, texts=texts, wanted=Wanted(at_least=3.0))
    assert proof.outcome == "refuted"
    assert proof.words.startswith("refuted: the new server answers otherwise in 1 place")


@pytest.mark.parametrize(
    ("old", "new", "outcome", "words"),
    [
        (0, 10, "refuted", "the new server fails 10 of 144 requests at 64 streams"),
        (10, 0, "open", "the old server fails 10 of 144 requests at 64 streams"),
        (144, 144, "open", "server fails 144 of 144 requests"),
        (1, 1, "proven", "the texts are equal"),
    ],
)
def test_a_server_that_fails_its_requests_is_not_proven(old: int, new: int, outcome: str, words: str) -> None:
    bench = replace(BENCH, levels=BENCH.levels[-1:])
    arms = ({"requests": 144, "errors": {"failed": failed} if failed else {}} for failed in (old, new))
    proof = replace(PROOF, bench=with_arms(bench, *arms), wanted=Wanted(at_least=0.5))
    assert (proof.outcome, words in proof.words) == (outcome, True), proof.words


def test_a_proof_that_was_stopped_is_open() -> None:
    proof = replace(PROOF, bench=replace(BENCH, is_partial=True))
    assert proof.words.startswith("not proven: it was stopped early")
    assert as_markdown(proof).startswith("### Not proven")


MISREAD = Difference("code-1", "prompt", "fault", 0, "def ", "4 tokens", "5 tokens", "a second begin token")
DOUBTS = (
    replace(TEXTS, noise=replace(NOISE, differences=(FAULT,))),
    replace(TEXTS, prompts=(MISREAD,)),
    replace(TEXTS, subject="drafts"),
    replace(TEXTS, cases=(CaseResult("long", "contexts", "open", "400: too long"),)),
)


@pytest.mark.parametrize("texts", DOUBTS, ids=["noise", "tokenizer", "no drafts", "case"])
def test_what_proves_nothing_of_the_new_server_leaves_it_open(texts: VerifyResult) -> None:
    """The old server contradicts itself, or nothing was drafted: that is no fault of the new one."""
    proof = replace(PROOF, texts=texts)
    assert (proof.outcome, texts.is_lossless) == ("open", False)
    assert [row for row in check_rows(proof) if row[:2] == ("doubt", "open")]
    faulty = replace(texts, comparisons=(replace(NOISE, differences=(FAULT,), drafted=4, accepted=2),))
    assert replace(PROOF, texts=faulty).outcome == "refuted"


def test_texts_that_were_not_compared_leave_it_open() -> None:
    proof = replace(PROOF, texts=None, left_out="it does not report its tokens")
    assert (proof.outcome, "does not report its tokens" in proof.words) == ("open", True)


def test_drafts_that_never_came_while_the_speed_was_measured_are_told() -> None:
    """A policy drafts nothing on a busy machine: then both speeds are those of plain decoding."""
    assert not any(name == "accepted drafts" for name, *_ in check_rows(PROOF))
    one = replace(PROOF, texts=replace(TEXTS, subject="drafts"))
    assert ("accepted drafts", "", "nothing was drafted while the speed was measured") in check_rows(one)


def test_intervals_hold_together() -> None:
    """Bonferroni: four that err once in 400 err at most once in 100 together."""
    assert each_confidence(4) == pytest.approx(0.9975)


def test_the_change_of_accuracy_covers_the_truth() -> None:
    """Held to the exact distribution: how often the interval has the true difference."""
    from scipy.stats import multinomial

    n, lost, won = 30, 0.2, 0.1
    covered = 0.0
    for only_old in range(n + 1):
        for only_new in range(n + 1 - only_old):
            chance = multinomial.pmf(
                [only_old, only_new, n - only_old - only_new], n, [lost, won, 1 - lost - won]
            )
            change = Accuracy(n, 0, only_old, only_new).change
            covered += chance * (change.low <= won - lost <= change.high)
    assert 0.985 < covered < 0.999


@pytest.mark.parametrize(
    ("pairs", "outcome"),
    [
        ([(True, True)] * 200, "proven"),
        ([(True, True)] * 60 + [(True, False)] * 40, "refuted"),
        ([(True, True)] * 10 + [(True, False)], "open"),
        ([(False, False)] * 50, "open"),
        ([], "open"),
    ],
)
def test_other_quantizations_are_judged_by_right_answers(
    pairs: list[tuple[bool, bool]], outcome: str
) -> None:
    texts = replace(TEXTS, comparisons=(replace(NOISE, differences=(FAULT,)),))
    proof = replace(PROOF, texts=texts, wanted=Wanted(is_equal=False), accuracy=counted(pairs))
    assert proof.outcome == outcome
    assert "1 part, the median one at token 3" in as_markdown(proof)


@pytest.mark.parametrize("lost", [0, 1])
def test_our_own_questions_are_enough_to_prove_an_equal_server(lost: int) -> None:
    pairs = [(True, True)] * (len(_questions()) - lost) + [(True, False)] * lost
    proof = replace(PROOF, wanted=Wanted(is_equal=False), accuracy=counted(pairs))
    assert proof.outcome == "proven"


@pytest.mark.parametrize(
    ("said", "right", "is_right"),
    [
        (" Paris.", "Paris", True),
        ("The sum is 1,215, of course", "1215", True),
        ("It is probably A.", "B", False),
        ("A: 15", "5", False),
        ("5.5", "5", False),
        ("(B)", "B", True),
    ],
)
def test_an_answer_is_right_as_a_word_of_its_own(said: str, right: str, *, is_right: bool) -> None:
    assert contains(said, right) == is_right


def test_a_million_tokens_cost_what_the_hour_costs() -> None:
    proof = replace(PROOF, wanted=Wanted(prices=(3.6, 7.2)))
    level = proof.bench.levels[0]
    assert level.arms.plain
    old, new = proof.cost(level)
    assert old is not None
    assert old == pytest.approx(3.6 / (level.arms.plain.tokens_per_second.value * 3600) * 1e6)
    assert new == pytest.approx(old * 2 / (level.speedup.value if level.speedup else 0), rel=0.01)
    assert "$/M tokens" in as_markdown(proof)
    assert "Dollars for a million tokens" in as_html(proof_page(proof))


def test_servers_measured_apart_have_ratios_of_both_runs() -> None:
    old, new = (
        replace(
            BENCH, levels=tuple(replace(one, arms=Arms(arm(one.arms)), speedup=None) for one in BENCH.levels)
        )
        for arm in (lambda arms: arms.plain, lambda arms: arms.speculative)
    )
    found = merged(old, new)
    for level, known in zip(found.levels, BENCH.levels, strict=True):
        assert level.speedup
        assert known.speedup
        assert level.speedup.value == pytest.approx(known.speedup.value, rel=0.05)
        assert level.arms.plain == known.arms.plain
    assert "one after the other" in found.verdict.notes[0]


def test_pieces_of_text_are_no_tokens() -> None:
    """A server that counts none sends as many tokens in a piece as a round accepts."""
    speeds = {"tokens_told": False}
    old = replace(BENCH, levels=tuple(replace(one, speedup=None) for one in BENCH.levels))
    (first, *_) = merged(old, with_arms(old, {}, speeds)).levels
    assert (first.load, first.speedup) == (BENCH.levels[0].load, None)


def test_markdown_shows_words_of_servers_as_words() -> None:
    for words in (*HOSTILE, "a | b", "@everyone [x](http://e.com) `code`"):
        case = CaseResult("stops", "", "fault", words)
        shown = as_markdown(replace(PROOF, texts=replace(TEXTS, cases=(case,)), new=words))
        row = next(line for line in shown.splitlines() if line.startswith("| case stops"))
        assert row.replace("\\|", "").count("|") == 4
        assert "@everyone" not in row.replace("\\@", "")
        assert "<script" not in row.replace("\\<", "")


@pytest.mark.usefixtures("without_plots")
@pytest.mark.parametrize("hostile", HOSTILE)
def test_the_page_is_whole_and_escapes_what_servers_say(hostile: str) -> None:
    difference = replace(FAULT, context=hostile, found=hostile)
    texts = replace(TEXTS, comparisons=(replace(NOISE, differences=(difference,)),))
    root = fromstring(as_html(proof_page(replace(PROOF, texts=texts, old=hostile))))
    said = " ".join("".join(root.itertext()).split())
    assert " ".join(hostile.split()) in said
    assert "Refuted" in said


def test_a_page_without_any_speed_is_written() -> None:
    empty = replace(PROOF, bench=replace(BENCH, levels=()))
    assert "no speed is stated" in as_html(proof_page(empty))
    assert "No speed was measured." in as_markdown(empty)


def test_json_has_it_all() -> None:
    found = json.loads(json.dumps(ShownProof(PROOF).as_json()))
    assert (found["outcome"], found["texts"]["lossless"], len(found["speed"]["levels"])) == (
        "proven",
        True,
        3,
    )


def test_no_row_of_figures_is_wider_than_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    ShownProof(replace(PROOF, wanted=Wanted(prices=(120.0, 240.0)))).tell()
    rows = [
        line for line in capsys.readouterr().out.splitlines() if line[:1].isdigit() or "streams" in line[:8]
    ]
    assert rows
    assert all(len(row) <= 80 for row in rows), rows
