"""Cases that broke other servers: each finds its fault in a pair that has it, and skips what is not there."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import seeded_faults as faults
from tests.fakes.said import Said
from tests.unit.measure.verify.conftest import TINY, Verified
from trtspec.base.errors import ServerError
from trtspec.client.endpoint import AskError
from trtspec.measure.verify.cases import CASES, NAMES, Suite
from trtspec.measure.verify.prompts import VerifyPrompt, Vocabulary
from trtspec.measure.verify.result import CaseResult
from trtspec.measure.verify.sides import ChatAnswer, Sides, VerificationSettings, VerifyAnswer, VerifyRequest
from trtspec.measure.verify.tolerance import tolerance

CHATS = ("tools", "reasoning")
PROMPTS = ("code-1", "prose-1", "list-1")
SETTINGS = VerificationSettings(lengths=(4,), max_tokens=8, dtype="float32", draws=0, cases=NAMES)
WHOLE = '{"colour": "red", "even": true}'
CALL = (("paint", WHOLE),)


def test_an_honest_pair_passes_what_it_can_do(float32_build: Path, verified: Verified) -> None:
    result = verified(float32_build, SETTINGS, PROMPTS)
    states = {case.name: case.state for case in result.cases}
    assert states == dict.fromkeys(NAMES, "ok") | dict.fromkeys(CHATS, "skipped"), result.cases
    assert all("no chats" in case.found for case in result.cases if case.name in CHATS)
    assert result.is_lossless, result.reasons


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("bursts", faults.fails_from_twelve_on),
        ("alike", faults.mixes_texts_that_begin_alike),
        ("cancels", faults.is_upset_by_a_cancel),
        ("long", faults.forgets_what_is_far),
        ("stops", faults.misses_stops_inside_a_round),
        ("logprobs", faults.shifts_log_probs),
        ("sampled", faults.ignores_top_k),
        ("sampled", faults.draws_anew_each_time),
        ("json", faults.ignores_guides),
    ],
)
def test_a_case_finds_its_fault(
    name: str, fault: faults.Fault, float32_build: Path, verified: Verified, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = replace(SETTINGS, cases=(name,))
    result = verified(float32_build, asked, PROMPTS, partial(fault, monkeypatch))
    (case,) = result.cases
    assert (case.name, case.state) == (name, "fault"), case
    assert case.found
    assert f"1 of 1 cases failed: {name}" in result.reasons


@dataclass
class Chats(Said):
    """A table that chats: without drafts it says `alone`, and with them `drafting`."""

    alone: ChatAnswer | Exception = field(default_factory=ChatAnswer)
    drafting: ChatAnswer | Exception = field(default_factory=ChatAnswer)

    async def chat(self, body: Mapping[str, Any], num_draft_tokens: int | None) -> ChatAnswer:
        said = self.alone if num_draft_tokens == 0 else self.drafting
        if isinstance(said, Exception):
            raise said
        return said


class OneSeed(Chats):
    """Draws with the seed of the request without drafts, and with one seed for all with them."""

    async def ask(self, question: VerifyRequest) -> VerifyAnswer:
        seed = question.sampling.seed or 0 if question.num_draft_tokens == 0 else 7
        return VerifyAnswer((2,) if question.sampling.is_greedy else (2, 100 + seed), "")


def judged(name: str, alone: ChatAnswer | Exception, drafting: ChatAnswer | Exception) -> CaseResult:
    return of_case(name, Chats((1,), (2,), (2,), alone=alone, drafting=drafting))


def of_case(name: str, side: Chats) -> CaseResult:
    settings = VerificationSettings(lengths=(None,), cases=(name,))

    async def main() -> CaseResult:
        prompts = [VerifyPrompt("one", "a", (1,))]
        suite = Suite(Sides(side, side), Vocabulary.load(TINY / "target"), prompts, settings)
        await suite.ask_plain()
        await suite.ask_drafted()
        (case,) = await suite.judged(tolerance("float32", None))
        return case

    return asyncio.run(main())


def refused() -> ServerError:
    error = ServerError("a server", "400: it has no tools")
    error.__cause__ = AskError("rejected", "400: it has no tools", 0.0)
    return error


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        ("tools", ChatAnswer(calls=CALL), ChatAnswer(calls=(("paint", WHOLE[:-4]),))),
        ("tools", ChatAnswer(calls=CALL), ChatAnswer("I paint")),
        ("reasoning", ChatAnswer(WHOLE, "Let me see."), ChatAnswer("</think>" + WHOLE, "Let me see.")),
        ("reasoning", ChatAnswer(WHOLE, "Let me see."), ChatAnswer(WHOLE)),
        ("tools", ChatAnswer(calls=CALL), ServerError("a server", "500: illegal memory access")),
    ],
)
def test_a_case_of_chats_finds_its_fault(name: str, right: ChatAnswer, wrong: ChatAnswer | Exception) -> None:
    assert judged(name, right, right).state == "ok"
    assert judged(name, right, wrong).state == "fault"


@pytest.mark.parametrize(
    ("name", "alone", "reason"),
    [
        ("tools", refused(), "a table: 400: it has no tools"),
        ("tools", ChatAnswer("I paint"), "a table: calls no tool where one is required"),
        ("reasoning", ChatAnswer(WHOLE), "a table: does not reason before an answer with a grammar"),
    ],
)
def test_what_a_server_has_not_is_skipped_with_its_reason(
    name: str, alone: ChatAnswer | Exception, reason: str
) -> None:
    found = judged(name, alone, alone)
    assert (found.state, found.found) == ("skipped", reason)


def test_one_seed_for_all_requests_is_found() -> None:
    found = of_case("sampled", OneSeed((1,), (2,), (2,), top_log_probs=0))
    assert (found.state, found.found) == ("fault", "every seed gives the same text")


def test_only_the_new_side_refuses() -> None:
    assert judged("tools", ChatAnswer(calls=CALL), refused()).state == "skipped"


def test_each_case_names_what_it_finds() -> None:
    assert len(set(NAMES)) == len(CASES)
    assert all(case.finds for case in CASES)
