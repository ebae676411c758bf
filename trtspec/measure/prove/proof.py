"""Holds what was found of two servers, and what follows from it; pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from math import sqrt
from typing import Any, Literal

from trtspec.measure.bench.result import Arms, BenchResult, DraftAcceptance, Interval, LoadResult, to_json
from trtspec.measure.bench.statistics import unpaired_ratio
from trtspec.measure.bench.summary import are_comparable, fails_often, verdict
from trtspec.measure.html.numbers import percent, times
from trtspec.measure.verify.result import VerifyResult

TOGETHER = 0.99
"""The confidence of all intervals of a proof together: by chance one in a hundred proofs has a wrong one."""
MOST_LOSS = 0.05
"""The largest loss of right answers that another quantization may have."""
_Z = 2.576
"""The half width of an interval of 99 %, in standard deviations."""

Outcome = Literal["proven", "refuted", "open"]


def each_confidence(loads: int) -> float:
    """Returns the confidence of one interval, by Bonferroni's bound."""
    return 1 - (1 - TOGETHER) / loads


@dataclass(frozen=True, slots=True)
class Accuracy:
    """The right answers of both servers to the same questions."""

    questions: int
    both: int
    only_old: int
    only_new: int

    @property
    def old(self) -> float:
        return (self.both + self.only_old) / self.questions

    @property
    def new(self) -> float:
        return (self.both + self.only_new) / self.questions

    @property
    def change(self) -> Interval:
        """The difference of the shares, new minus old, with its interval of 99 %.

        Agresti and Min (2005), "Simple improved confidence intervals for comparing matched proportions": half
        an observation is added to each cell of the table.
        """
        n, lost, won = self.questions + 2, self.only_old + 0.5, self.only_new + 0.5
        middle = (won - lost) / n
        half = _Z * sqrt((won + lost) - (won - lost) ** 2 / n) / n
        return Interval(self.new - self.old, max(middle - half, -1.0), min(middle + half, 1.0))


@dataclass(frozen=True, slots=True)
class Wanted:
    """Holds what is asked for."""

    at_least: float | None = None
    """The least ratio of the speeds, new over old, at each load; None judges no speed."""
    prices: tuple[float, float] | None = None
    """Dollars an hour of the old server, and of the new one."""
    is_equal: bool = True
    """False for servers that may differ, as two quantizations do: right answers are compared."""


@dataclass(frozen=True, slots=True)
class Proof:
    """The comparison of an old server with a new one."""

    old: str
    new: str
    wanted: Wanted
    texts: VerifyResult | None
    """None if the texts could not be compared."""
    left_out: str
    """The reason why they could not be."""
    bench: BenchResult
    """The new server is the arm with drafts, the old one that without."""
    acceptance: tuple[DraftAcceptance | None, DraftAcceptance | None]
    """That of the old server, and of the new one, at all loads; None if no drafts are known."""
    accuracy: Accuracy | None = None
    command: str = ""

    @property
    def outcome(self) -> Outcome:
        judged = [outcome for outcome, _ in self._judgements()]
        return next((each for each in ("refuted", "open") if each in judged), "proven")

    @property
    def words(self) -> str:
        """The verdict in one sentence."""
        said = [words for outcome, words in self._judgements() if outcome == self.outcome]
        name = {"proven": "proven", "refuted": "refuted", "open": "not proven"}[self.outcome]
        return f"{name}: {'; '.join((*said, *self._speeds()))}"

    def cost(self, level: LoadResult) -> tuple[float | None, float | None]:
        """Returns dollars for a million tokens of the old server, and of the new one, at a load."""
        if self.wanted.prices is None:
            return None, None
        arms = level.arms.plain, level.arms.speculative
        speeds = [arm.tokens_per_second.value if arm else 0.0 for arm in arms]
        old, new = (
            price / 3600 / speed * 1e6 if speed else None
            for price, speed in zip(self.wanted.prices, speeds, strict=True)
        )
        return old, new

    def _judgements(self) -> Iterator[tuple[Outcome, str]]:
        """Yields what is judged of the texts, of the requests, and of the speed if one is asked for."""
        if self.bench.is_partial:
            yield "open", "it was stopped early"
        if not self.wanted.is_equal:
            yield self._of_answers()
        else:
            yield from self._of_texts()
        yield from self._of_requests()
        least = self.wanted.at_least
        if least is None:
            return
        ratios = [level.speedup for level in self.bench.levels]
        if any(ratio and ratio.high < least for ratio in ratios):
            yield "refuted", f"the new server is less than {least:g}x as fast as asked for"
        elif not ratios or any(ratio is None or ratio.low < least for ratio in ratios):
            yield "open", f"{least:g}x the speed is within the interval of a load, or none is known"

    def _of_texts(self) -> Iterator[tuple[Outcome, str]]:
        if self.texts is None:
            yield "open", f"the texts were not compared, since {self.left_out}"
            return
        if self.texts.is_lossless:
            yield "proven", same_words(self.texts)
        if self.texts.faults:
            yield "refuted", "; ".join(self.texts.faults)
        if self.texts.doubts:
            yield "open", "; ".join(self.texts.doubts)

    def _of_requests(self) -> Iterator[tuple[Outcome, str]]:
        """Yields the worst load of those at which a server fails requests."""
        refuted = dict[float, str]()
        doubtful = dict[float, str]()
        for level in self.bench.levels:
            old, new = level.arms.plain, level.arms.speculative
            for who, arm in (("new", new), ("old", old)):
                if arm and fails_often(arm):
                    found = refuted if arm is new and not fails_often(old) else doubtful
                    words = f"the {who} server fails {arm.failed} of {arm.requests} requests at {level.load}"
                    found[arm.failed / arm.requests] = words
        if refuted:
            yield "refuted", refuted[max(refuted)]
        if doubtful:
            yield "open", doubtful[max(doubtful)]

    def _of_answers(self) -> tuple[Outcome, str]:
        found = self.accuracy
        if found is None:
            why = f"the texts were not compared, since {self.left_out}"
            return "open", why if self.left_out else "no prompt has a right answer, so accuracy is not known"
        change = found.change
        words = (
            f"{percent(found.new)} right answers, {percent(found.old)} before"
            f" (a change of {change.low:+.0%} to {change.high:+.0%})"
        )
        if not found.both + found.only_old:
            return "open", f"{words}: the old server has none right, which tells nothing"
        if change.high < -MOST_LOSS:
            return "refuted", words
        return ("proven" if change.low > -MOST_LOSS else "open"), words

    def _speeds(self) -> Iterator[str]:
        """Yields the speed at the lowest and the highest load, and wherever the finding changes between."""
        found = [(level.load, level.speedup) for level in self.bench.levels if level.speedup]
        if not found:
            yield "no speed is stated"
            return
        states = [_state(ratio) for _, ratio in found]
        if set(states) == {"no difference"}:
            yield "no difference of speed was found"
            return
        shown = [
            f"{times(ratio)} as fast at {load}" if state != "no difference" else f"as fast at {load}"
            for place, ((load, ratio), state) in enumerate(zip(found, states, strict=True))
            if place in (0, len(found) - 1) or state != states[place - 1]
        ]
        yield ", ".join(shown)

    def as_json(self) -> dict[str, Any]:
        levels = [
            {"load": str(level.load), "cost_per_million_tokens": self.cost(level)}
            for level in self.bench.levels
        ]
        acceptance = [found and found.rate for found in self.acceptance]
        return {
            "outcome": self.outcome,
            "words": self.words,
            "old": self.old,
            "new": self.new,
            "wanted": asdict(self.wanted),
            "texts": self.texts and self.texts.as_dict(),
            "left_out": self.left_out,
            "speed": json.loads(to_json(self.bench)),
            "acceptance": dict(zip(("old", "new"), acceptance, strict=True)),
            "cost": levels if self.wanted.prices else None,
            "accuracy": self.accuracy and asdict(self.accuracy) | {"change": asdict(self.accuracy.change)},
            "command": self.command,
        }


def _state(ratio: Interval) -> str:
    return "faster" if ratio.low > 1 else "slower" if ratio.high < 1 else "no difference"


def same_words(texts: VerifyResult) -> str:
    """Returns in words by what the texts are the same."""
    ties = sum(len(way.near_ties) for way in texts.comparisons)
    count = sum(way.texts for way in texts.comparisons)
    said = f"the texts are equal within rounding ({count} greedy answers, {ties} part at a near tie"
    if texts.sampling:
        tells = any(view.tells for view in texts.sampling.views)
        said += ", sampled text has one distribution" if tells else ", samples tell nothing"
    skipped = sum(case.state == "skipped" for case in texts.cases)
    passed = len(texts.cases) - skipped
    if texts.cases:
        said += f", {passed} cases passed and {skipped} were skipped"
    return said + ")"


def counted(pairs: Sequence[tuple[bool, bool]]) -> Accuracy | None:
    """Returns the accuracy of pairs that say whether the old and the new answer are right; None for none."""
    if not pairs:
        return None
    both, old, new = (pairs.count(pair) for pair in ((True, True), (True, False), (False, True)))
    return Accuracy(len(pairs), both, old, new)


def merged(old: BenchResult, new: BenchResult) -> BenchResult:
    """Returns one result of two runs with the same plan: the old server is the arm without drafts.

    The ratios have Welch's intervals, since nothing was measured alternately.
    """
    known = {level.load: level.arms.speculative for level in old.levels}
    confidence, found = new.settings.confidence, []
    for level in new.levels:
        if (before := known.get(level.load)) is not None:
            after = level.arms.speculative
            arms = Arms(after, before)
            ratio = unpaired_ratio(after.blocks, before.blocks, confidence)
            found.append(LoadResult(level.load, arms, ratio if are_comparable(level.load, arms) else None))
    apart = "the servers were measured one after the other, so the ratios contain what else the machine did"
    return replace(
        new,
        server=replace(new.server, plain_by="baseline", baseline_url=old.server.url),
        levels=tuple(found),
        verdict=verdict(found, (apart, *new.verdict.notes)),
        is_partial=old.is_partial or new.is_partial,
    )
