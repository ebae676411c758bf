"""Checks greedy answers: plain decoding against itself, and against speculation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from trtspec.measure.verify.prompts import VerifyPrompt, Vocabulary
from trtspec.measure.verify.result import Difference, GreedyComparison, VerifyResult
from trtspec.measure.verify.sides import (
    END,
    PLAIN,
    Side,
    Sides,
    VerificationSettings,
    VerifyAnswer,
    VerifyRequest,
    Way,
    common_rows,
    first_difference,
)
from trtspec.measure.verify.tolerance import (
    Margins,
    Tolerance,
    margins,
    most_moved,
    of_two_engines,
    tolerance,
)

TOP = 5
"""How many of the likeliest tokens have their log-probabilities compared at each position."""
CONTEXT = 40
"""How many characters of the text before a difference are shown."""

CountAnswers = Callable[[int], None]
"""Called with the number of answers so far."""


class GreedyCheck:
    """Compares the greedy answers of both sides to `prompts`.

    The reference is the target alone, with one prompt at a time, in token ids. All other requests are in
    text, as users send them.
    """

    def __init__(
        self,
        sides: Sides,
        vocabulary: Vocabulary,
        prompts: Sequence[VerifyPrompt],
        settings: VerificationSettings,
        advance: CountAnswers,
    ) -> None:
        self._sides, self._vocabulary, self._prompts = sides, vocabulary, prompts
        self._settings, self._advance = settings, advance
        self._top = min(sides.top_log_probs, TOP)

    async def plain(self) -> tuple[list[VerifyAnswer], list[VerifyAnswer]]:
        """Asks the target alone for one prompt at a time, and again for several: what differs is noise."""
        side, k = self._sides.plain, self._sides.plain_k
        alone = await self._ask(side, Way(k, 1), in_ids=True)
        return alone, await self._ask(side, Way(k, self._settings.concurrency))

    async def drafted(self) -> list[list[VerifyAnswer]]:
        """Asks the side that speculates, in each way."""
        return [await self._ask(self._sides.speculative, way) for way in self._settings.ways]

    async def judge(
        self, plain: tuple[list[VerifyAnswer], list[VerifyAnswer]], drafted: list[list[VerifyAnswer]]
    ) -> VerifyResult:
        """Returns the differences. It asks the target alone again at each position where answers differ."""
        (alone, again), settings, sides = plain, self._settings, self._sides
        bound = tolerance(settings.dtype, _most(alone, again), settings.near_tie)
        if not sides.are_alike:
            bound = of_two_engines(bound)
        noise = await self.compare(alone, again, Way(PLAIN, settings.concurrency), bound)
        pairs = zip(settings.ways, drafted, strict=True)
        compared = [await self.compare(alone, answers, way, bound) for way, answers in pairs]
        names = sides.plain.name, sides.speculative.name
        misread = self._misread(again) or self._misread(drafted[0])
        return VerifyResult(*names, bound, noise, tuple(compared), misread, subject=settings.subject)

    async def _ask(self, side: Side, way: Way, in_ids: bool = False) -> list[VerifyAnswer]:
        """Returns the answers to all prompts, in their order."""
        gate = asyncio.Semaphore(way.concurrency)

        async def one(prompt: VerifyPrompt) -> VerifyAnswer:
            async with gate:
                asked, most = prompt.token_ids if in_ids else prompt.text, self._settings.max_tokens
                answer = await side.ask(
                    VerifyRequest(asked, most, way.num_draft_tokens, top_log_probs=self._top)
                )
                self._advance(1)
                return answer

        return list(await asyncio.gather(*(one(prompt) for prompt in self._prompts)))

    async def compare(
        self,
        expected: Sequence[VerifyAnswer],
        found: Sequence[VerifyAnswer],
        way: Way,
        bound: Tolerance,
    ) -> GreedyComparison:
        """Returns the differences, each with its margin.

        The log-probabilities of two engines are not checked against the bound: each sums in another order
        everywhere.
        """
        differences = []
        for prompt, one, other in zip(self._prompts, expected, found, strict=True):
            place = first_difference(one, other)
            if place is not None:
                differences.append(await self._parted(prompt, one, other, place, bound))
            elif one.text != other.text:
                differences.append(self._other_text(prompt, one, other))
            if self._sides.are_alike and (numbers := self._numbers(prompt, one, other, bound)) is not None:
                differences.append(numbers)
        counted = [answer for answer in found if answer.drafted is not None]
        return GreedyComparison(
            *way,
            len(self._prompts),
            sum(len(answer.token_ids) for answer in found),
            tuple(differences),
            _most(expected, found),
            sum(answer.drafted or 0 for answer in counted) if counted else None,
            sum(answer.accepted or 0 for answer in counted) if counted else None,
        )

    async def _parted(
        self, prompt: VerifyPrompt, one: VerifyAnswer, other: VerifyAnswer, place: int, bound: Tolerance
    ) -> Difference:
        expected, found = (answer.token_ids[place : place + 1] for answer in (one, other))
        before = one.token_ids[:place]
        tokens = [*expected, *found]
        question = VerifyRequest((*prompt.token_ids, *before), 1, self._sides.plain_k)
        measured = await margins(self._sides.plain, question, tokens, self._vocabulary.end_ids, bound)
        is_tie = len(tokens) > 1 and measured.within(bound)
        return Difference(
            prompt.name,
            "tokens",
            "near tie" if is_tie else "fault",
            place,
            self._context(prompt, before),
            self._name(expected),
            self._name(found),
            self._meaning(measured, expected, found, bound),
            measured.largest,
            measured.is_at_least,
        )

    def _meaning(
        self, measured: Margins, expected: tuple[int, ...], found: tuple[int, ...], bound: Tolerance
    ) -> str:
        if not (expected and found):
            return "one answer stops without an end token where the other continues"
        worse = max(measured.behind, key=measured.behind.__getitem__)
        least = "at least " if measured.is_at_least else ""
        said = "both are equally likely to the target"
        if measured.largest:
            better, other = self._name((measured.likeliest,)), self._name((worse,))
            said = f"the target prefers {better} to {other} by {least}{measured.largest:.2g} nats"
        if measured.within(bound):
            return f"{said}, and rounding moves up to {bound.value:.2g}: chance decides between them"
        return f"{said}, and rounding moves at most {bound.value:.2g}"

    def _other_text(self, prompt: VerifyPrompt, one: VerifyAnswer, other: VerifyAnswer) -> Difference:
        pairs = enumerate(zip(one.text, other.text, strict=False))
        shorter = min(len(one.text), len(other.text))
        place = next((at for at, (a, b) in pairs if a != b), shorter)
        expected, found = (repr(answer.text[place : place + CONTEXT]) for answer in (one, other))
        meaning = "the same tokens became another text; the position counts characters"
        before = one.text[max(place - CONTEXT, 0) : place]
        return Difference(prompt.name, "text", "fault", place, before, expected, found, meaning)

    def _numbers(
        self, prompt: VerifyPrompt, one: VerifyAnswer, other: VerifyAnswer, bound: Tolerance
    ) -> Difference | None:
        """Returns the first position where the log-probabilities after the same text differ by more than
        rounding."""
        for place, pair in enumerate(common_rows(one, other)):
            if (far := most_moved([pair]) or 0.0) > bound.value:
                likeliest = [max(row, key=row.__getitem__) for row in pair]
                expected, found = (
                    f"{self._name((token,))} at {row[token]:.3g}"
                    for row, token in zip(pair, likeliest, strict=True)
                )
                meaning = (
                    f"the log-probabilities at this position differ by {far:.2g} nats, though the text "
                    f"before is the same; rounding moves at most {bound.value:.2g}"
                )
                what = self._context(prompt, one.token_ids[:place]), expected, found, meaning, far
                return Difference(prompt.name, "numbers", "fault", place, *what)
        return None

    def _misread(self, answers: Sequence[VerifyAnswer]) -> tuple[Difference, ...]:
        """Returns the prompts whose number of tokens on the server differs from the tokenizer's."""
        wrong = []
        for prompt, answer in zip(self._prompts, answers, strict=True):
            count, right = answer.num_input_tokens, len(prompt.token_ids)
            if count is not None and count != right:
                meaning = (
                    f"the server made {count} tokens of this prompt, but its tokenizer makes {right}"
                    + "; the usual reason is a second begin token" * (count == right + 1)
                )
                start, expected, found = prompt.text[:CONTEXT], f"{right} tokens", f"{count} tokens"
                wrong.append(Difference(prompt.name, "prompt", "fault", 0, start, expected, found, meaning))
        return tuple(wrong)

    def _context(self, prompt: VerifyPrompt, before: Sequence[int]) -> str:
        return (prompt.text + self._vocabulary.text(before))[-CONTEXT:]

    def _name(self, tokens: Sequence[int]) -> str:
        if not tokens:
            return "nothing"
        return "the end" if tokens[0] == END else self._vocabulary.name(tokens[0])


def _most(expected: Sequence[VerifyAnswer], found: Sequence[VerifyAnswer]) -> float | None:
    pairs = zip(expected, found, strict=True)
    return most_moved(rows for one, other in pairs for rows in common_rows(one, other))
