"""Cases that broke other servers: each finds its fault in a pair that has it, and skips what is not there."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
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
from trtspec.measure.verify.verification import verify

CHATS = ("tools", "reasoning")
PROMPTS = ("code-1", "prose-1", "list-1")
SETTINGS = VerificationSettings(lengths=(4,), max_tokens=8, dtype="float32", draws=0, cases=NAMES)
FAULTS = [
    ("bursts", faults.fails_from_twelve_on),
    ("alike", faults.mixes_texts_that_begin_alike),
    ("cancels", faults.is_upset_by_a_cancel),
    ("long", faults.forgets_what_is_far),
    ("stops", faults.misses_stops_inside_a_round),
    ("logprobs", faults.shifts_log_probs),
    ("sampled", faults.ignores_top_k),
    ("sampled", faults.draws_anew_each_time),
    ("json", faults.ignores_guides),
]
WHOLE = '{"colour": "red", "even": true}'
CALL = (("paint", WHOLE),)


@pytest.mark.sweep
def test_an_honest_pair_passes_what_it_can_do(float32_build: Path, verified: Verified) -> None:
    result = verified(float32_build, SETTINGS, PROMPTS)
    states = {case.name: case.state for case in result.cases}
    assert states == dict.fromkeys(NAMES, "ok") | dict.fromkeys(CHATS, "skipped"), result.cases
    assert all("no chats" in case.found for case in result.cases if case.name in CHATS)
    assert result.is_lossless, result.reasons


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        pytest.param(*each, marks=pytest.mark.sweep if each[0] in ("sampled", "json") else ())
        for each in FAULTS
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


def of_case(
    name: str, side: Chats, prompts: Sequence[VerifyPrompt] = (VerifyPrompt("one", "a", (1,)),)
) -> CaseResult:
    settings = VerificationSettings(lengths=(None,), cases=(name,))

    async def main() -> CaseResult:
        suite = Suite(Sides(side, side), Vocabulary.load(TINY / "target"), prompts, settings, lambda _: None)
        await suite.ask_plain()
        await suite.ask_drafted()
        (case,) = await suite.judged(tolerance("float32", None))
        return case

    return asyncio.run(main())


def refused(problem: str = "400: it has no tools", kind: str = "rejected") -> ServerError:
    error = ServerError("a server", problem)
    error.__cause__ = AskError(kind, problem, 0.0)
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
        (
            "tools",
            ChatAnswer(calls=(("paint", '{"color": "red"}'),)),
            "a table: calls a tool with other arguments than it takes",
        ),
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


def test_what_only_the_new_side_refuses_is_open() -> None:
    found = judged("tools", ChatAnswer(calls=CALL), refused())
    assert (found.state, found.found) == (
        "open", "a table: 400: it has no tools, where plain decoding answers",
    )  # fmt: skip


def test_a_reasoning_that_is_cut_is_no_fault() -> None:
    cut = ChatAnswer("", "Let me see. Let me", is_cut=True)
    assert judged("reasoning", ChatAnswer(WHOLE, "Let me see."), cut).state == "open"


class Limited(Chats):
    """Refuses what its error says, whatever is asked with drafts."""

    async def ask(self, question: VerifyRequest) -> VerifyAnswer:
        if question.num_draft_tokens != 0 and isinstance(self.drafting, Exception):
            raise self.drafting
        return VerifyAnswer((2,), "")


def test_a_limit_of_requests_is_no_fault_and_no_end() -> None:
    side = Limited((1,), (2,), (2,), drafting=refused("429: rate limit", "refused"))
    found = of_case("bursts", side)
    assert (found.state, found.found) == ("skipped", "a table: 429: rate limit")


def test_who_refuses_a_text_of_the_length_that_it_reports_is_at_fault() -> None:
    side = Limited((1,), (2,), (2,), drafting=refused("400: too long"))
    side.longest = 128
    found = of_case("long", side)
    assert (found.state, "reports 128 tokens, but refuses a text that fits" in found.found) == ("fault", True)


def test_prompts_of_one_name_are_told_apart() -> None:
    """A workload may call every row `math`."""

    class Echo(Chats):
        async def ask(self, question: VerifyRequest) -> VerifyAnswer:
            return VerifyAnswer((ord(str(question.prompt)[-1]),), str(question.prompt))

    prompts = [VerifyPrompt("math", text, (1,)) for text in "ab"]
    assert of_case("bursts", Echo((1,), (2,), (2,)), prompts).state == "ok"


def test_each_case_names_what_it_finds() -> None:
    assert len(set(NAMES)) == len(CASES)
    assert all(case.finds for case in CASES)


class Dying(Said):
    """Answers two requests with drafts, and nothing after the third."""

    asked = 0

    async def ask(self, question: VerifyRequest) -> VerifyAnswer:
        self.asked += question.num_draft_tokens != 0
        if self.asked > 2:
            raise ServerError(self.name, "500: illegal memory access")
        return await super().ask(question)


def test_one_server_that_a_case_ends_is_judged_by_what_it_said_before() -> None:
    """The near tie is measured by asking the server again, which is then gone."""
    side = Dying((1,), (2,), (3,), rows={0: {2: -0.7, 3: -0.7}})
    settings = VerificationSettings(lengths=(None,), dtype="float32", draws=0, cases=("bursts", "alike"))
    prompts = [VerifyPrompt("one", "a", (1,))]
    words = Vocabulary.load(TINY / "target")
    result = asyncio.run(verify(Sides(side, side), words, prompts, settings, lambda _: None))
    assert [case.state for case in result.cases] == ["fault", "skipped"]
    assert [len(way.near_ties) for way in result.comparisons] == [1, 1]
    assert result.faults == ["1 of 2 cases failed: bursts"]
