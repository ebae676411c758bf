"""Asks for what has broken servers that draft, a case for each kind of fault.

A case asks the plain side, and then the side that drafts, so that two servers can take turns. It judges both
afterwards. Where the plain side has not the feature, the case is skipped, which is no pass. Where only the
side that drafts refuses it, the case is open.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice
from typing import Any

from trtspec.base.errors import ServerError, TrtspecError, UnavailableError
from trtspec.client.endpoint import AskError
from trtspec.measure.verify.greedy import CountAnswers, GreedyCheck
from trtspec.measure.verify.prompts import VerifyPrompt, Vocabulary
from trtspec.measure.verify.result import CaseResult, CaseState
from trtspec.measure.verify.sides import (
    END,
    PROBED,
    ChatAnswer,
    ChatSide,
    Side,
    Sides,
    VerificationSettings,
    VerifyAnswer,
    VerifyRequest,
    Way,
)
from trtspec.measure.verify.tolerance import Tolerance
from trtspec.serving.errors import GuideError, RequestError
from trtspec.serving.executor import SamplingConfig

TOKENS = 24
"""The most tokens of an answer: several rounds of most draft lengths."""
FEW = 4
"""The prompts of a case that asks each of them several times."""
BURSTS = (4, 16, 64)
"""Two engines of 2026 crash from 4 requests at once on: vllm-project/vllm#40756, sgl-project/sglang#35822."""
LONGEST = 8192
"""The longest context that is tried; prompts beyond would take minutes."""
_CANCELLED, _CANCEL_S, _CANCELLED_TOKENS = 8, 0.02, 512
_SEEDS, _JSON_TOKENS, _CHAT_TOKENS = 6, 96, 512
_SHARED = 600
"""The characters that prompts of the case `alike` have in common: several blocks of a KV cache."""

SCHEMA = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "green", "blue"]}, "even": {"type": "boolean"}},
    "required": ["colour", "even"],
    "additionalProperties": False,
}
_FORMAT = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}
_TOOL = {"type": "function", "function": {"name": "paint", "parameters": SCHEMA}}
_QUESTION = [{"role": "user", "content": "Choose one of red, green and blue. Is the number 4 even?"}]


class MissingFeature(Exception):
    """A side has not what a case asks for; the argument says why."""


class SideNotAsked(MissingFeature):
    """A side was too busy for a case, or had ended before it: the case says nothing of it."""


@dataclass(frozen=True, slots=True)
class CaseAsking:
    """Asks one side the questions of cases."""

    side: Side
    num_draft_tokens: int | None
    prompts: Sequence[VerifyPrompt]
    vocabulary: Vocabulary
    concurrency: int
    is_reference: bool
    """True for the plain side, which is asked for one prompt at a time."""
    longest: int | None
    """The most tokens of a prompt and its answer that both sides take; None if neither reports that."""

    async def ask(
        self, prompt: str | tuple[int, ...], max_tokens: int = TOKENS, **options: Any
    ) -> VerifyAnswer:
        return await self.side.ask(VerifyRequest(prompt, max_tokens, self.num_draft_tokens, **options))

    async def answers(
        self, prompts: Sequence[VerifyPrompt], at_once: int | None = None, **options: Any
    ) -> list[VerifyAnswer]:
        """Returns the answer to each prompt; `at_once` are in flight, of the reference one."""
        gate = asyncio.Semaphore(1 if self.is_reference else at_once or self.concurrency)

        async def one(prompt: VerifyPrompt) -> VerifyAnswer:
            async with gate:
                return await self.ask(prompt.text, **options)

        return list(await asyncio.gather(*map(one, prompts)))

    async def chat(self, **body: Any) -> ChatAnswer:
        if not isinstance(self.side, ChatSide):
            raise MissingFeature("has no chats of OpenAI's API")
        return await self.side.chat(
            {"messages": _QUESTION, "max_tokens": _CHAT_TOKENS, **body}, self.num_draft_tokens
        )


@dataclass(frozen=True, slots=True)
class CaseJudge:
    """Judges the answers of both sides."""

    sides: Sides
    vocabulary: Vocabulary
    settings: VerificationSettings
    bound: Tolerance

    async def same(
        self, prompts: Sequence[VerifyPrompt], old: Sequence[VerifyAnswer], new: Sequence[VerifyAnswer]
    ) -> list[str]:
        """Returns each difference that rounding does not explain, in words."""
        check = GreedyCheck(self.sides, self.vocabulary, prompts, self.settings, lambda _: None)
        found = await check.compare(old, new, Way(None, 1), self.bound)
        return [
            f"{one.prompt}: {one.found} in place of {one.expected}: {one.meaning}" for one in found.faults
        ]


Answers = tuple[Sequence[VerifyPrompt], Sequence[VerifyAnswer]]
Judge = Callable[[Any, Any, CaseJudge], Awaitable[Iterable[str]]]


async def _same(old: Answers, new: Answers, judge: CaseJudge) -> Iterable[str]:
    known = dict(zip(*old, strict=True))
    return await judge.same(new[0], [known[prompt] for prompt in new[0]], new[1])


@dataclass(frozen=True, slots=True)
class FaultCase:
    """A case: the kind of fault that it finds, its questions to a side, and its judgement of both sides."""

    name: str
    finds: str
    ask: Callable[[CaseAsking], Awaitable[Any]]
    judge: Judge = _same
    """Returns each fault in words."""


async def _bursts(asking: CaseAsking) -> Answers:
    if asking.is_reference:
        return asking.prompts, await asking.answers(asking.prompts)
    asked = [list(islice(cycle(asking.prompts), size)) for size in BURSTS]
    answers = [answer for burst in asked for answer in await asking.answers(burst, len(burst))]
    return [prompt for burst in asked for prompt in burst], answers


async def _alike(asking: CaseAsking) -> Answers:
    begin = "\n".join(prompt.text for prompt in asking.prompts)[:_SHARED]
    texts = [(prompt.name, f"{begin}\n{prompt.text}") for prompt in asking.prompts]
    prompts = [VerifyPrompt(name, text, asking.vocabulary.encode(text)) for name, text in texts]
    return prompts, await asking.answers(prompts)


async def _cancels(asking: CaseAsking) -> Answers:
    if not asking.is_reference:
        asked = islice(cycle(asking.prompts), _CANCELLED)
        most = min(_CANCELLED_TOKENS, (asking.longest or LONGEST) // 2)
        work = [asyncio.ensure_future(asking.ask(prompt.text, most, ignores_end=True)) for prompt in asked]
        for each in work:
            # Each is at another place of its answer.
            await asyncio.sleep(_CANCEL_S)
            each.cancel()
        await asyncio.gather(*work, return_exceptions=True)
    return asking.prompts, await asking.answers(asking.prompts)


async def _long(asking: CaseAsking) -> Answers:
    if not asking.longest:
        raise MissingFeature("does not report the longest text that it takes")
    most = min(asking.longest, LONGEST)
    ids = asking.vocabulary.encode("\n".join(prompt.text for prompt in asking.prompts))
    # Half of the context, and all of it, up to the last token that fits.
    texts = [tuple(islice(cycle(ids), size - TOKENS)) for size in (most // 2, most)]
    prompts = [VerifyPrompt(f"{len(ids)} tokens", "", ids) for ids in texts]
    try:
        return prompts, [await asking.ask(prompt.token_ids) for prompt in prompts]
    except TrtspecError as error:
        if asking.is_reference or (asking.side.longest or 0) < most or not (words := refusal(error)):
            raise
        problem = f"reports {asking.side.longest} tokens, but refuses a text that fits: {words}"
        raise ServerError(asking.side.name, problem) from None


async def _log_probs(asking: CaseAsking) -> Answers:
    if not asking.side.top_log_probs:
        raise MissingFeature("reports no log-probabilities of token ids")
    return asking.prompts, await asking.answers(
        asking.prompts, top_log_probs=min(asking.side.top_log_probs, 5)
    )


async def _judge_log_probs(old: Answers, new: Answers, judge: CaseJudge) -> Iterable[str]:
    found = list(await _same(old, new, judge))
    for prompt, answer in zip(*new, strict=True):
        tokens = [token for token in answer.token_ids if token != END]
        if len(answer.rows) != len(tokens):
            found.append(f"{prompt.name}: {len(answer.rows)} log-probabilities for {len(tokens)} tokens")
            continue
        for place, (token, row) in enumerate(zip(tokens, answer.rows, strict=True)):
            if max(row.values()) - row.get(token, min(row.values()) - judge.bound.value) > judge.bound.value:
                name = judge.vocabulary.name(token)
                found.append(f"{prompt.name}, token {place}: {name} is not the likeliest that is reported")
                break
    return found


@dataclass(frozen=True, slots=True)
class _Stopped:
    prompt: VerifyPrompt
    whole: VerifyAnswer
    stop: str
    answer: VerifyAnswer


async def _stops(asking: CaseAsking) -> list[_Stopped]:
    found = []
    for prompt in asking.prompts[:FEW]:
        whole = await asking.ask(prompt.text)
        if whole.token_ids and not whole.text:
            raise MissingFeature("reports no text beside token ids")
        for third in (1, 2):
            # Wherever it begins, most likely within a token.
            stop = whole.text[len(whole.text) * third // 3 :][:3]
            if stop:
                found.append(_Stopped(prompt, whole, stop, await asking.ask(prompt.text, stop=(stop,))))
    return found


async def _judge_stops(old: list[_Stopped], new: list[_Stopped], judge: CaseJudge) -> Iterable[str]:
    found = []
    for one in new:
        said, expected = one.answer.text, one.whole.text[: one.whole.text.find(one.stop)]
        if said == expected:
            continue
        if one.stop in said or one.whole.text.startswith(said) or said.startswith(expected):
            found.append(f"{one.prompt.name}: {said!r} before {one.stop!r}, in place of {expected!r}")
            continue
        pair = [
            tuple(token for token in answer.token_ids if token != END) for answer in (one.whole, one.answer)
        ]
        shorter = min(map(len, pair))
        whole, stopped = (VerifyAnswer(tokens[:shorter], "") for tokens in pair)
        found += await judge.same([one.prompt], [whole], [stopped])
    return found


@dataclass(frozen=True, slots=True)
class _Sampled:
    greedy: Answers
    """With top-k 1."""
    narrow: Sequence[VerifyAnswer]
    """With top-k 2, and the two likeliest tokens; empty without log-probabilities."""
    seeded: Sequence[str]
    """Each with a seed of its own."""
    again: Sequence[str]
    """With the same seeds."""


async def _sampled(asking: CaseAsking) -> _Sampled:
    few, warm = asking.prompts[:FEW], SamplingConfig(temperature=1.0, seed=1)
    greedy = await asking.answers(few, sampling=replace(warm, top_k=1))
    narrow = []
    if asking.side.top_log_probs >= 2:
        narrow = await asking.answers(few, sampling=replace(warm, top_k=2), top_log_probs=2)
    seeds = [replace(warm, seed=seed) for seed in range(1, _SEEDS + 1)] * 2
    said = [" ".join(map(str, (await asking.ask(few[-1].text, sampling=each)).token_ids)) for each in seeds]
    return _Sampled((few, greedy), narrow, said[:_SEEDS], said[_SEEDS:])


async def _judge_sampled(old: _Sampled, new: _Sampled, judge: CaseJudge) -> Iterable[str]:
    found = [f"with top-k 1, {each}" for each in await _same(old.greedy, new.greedy, judge)]
    for prompt, answer in zip(new.greedy[0], new.narrow, strict=False):
        for token, row in zip(answer.token_ids, answer.rows, strict=False):
            second = sorted(row.values())[-2:][0]
            if row.get(token, second - judge.bound.value - 1) < second - judge.bound.value:
                found.append(f"{prompt.name}: {judge.vocabulary.name(token)} is not among the top 2")
                break
    if len(set(new.seeded)) == 1 < len(set(old.seeded)):
        found.append("every seed gives the same text")
    changed = [sum(a != b for a, b in zip(side.seeded, side.again, strict=True)) for side in (old, new)]
    # Rounding may turn a draw now and then, but not most of them.
    if not changed[0] and changed[1] > _SEEDS // 2:
        found.append(f"{changed[1]} of {_SEEDS} seeds give another text when they are repeated")
    return found


def _is_whole(text: str) -> bool:
    """Says whether a text is JSON by the schema of these cases."""
    try:
        found = json.loads(text)
    except ValueError:
        return False
    return (
        isinstance(found, dict)
        and found.keys() == {"colour", "even"}
        and found["colour"] in ("red", "green", "blue")
        and isinstance(found["even"], bool)
    )


async def _json(asking: CaseAsking) -> Answers:
    schema, few = json.dumps(SCHEMA), asking.prompts[:FEW]
    answers = await asking.answers(few, max_tokens=_JSON_TOKENS, json_schema=schema)
    if asking.is_reference and not any(_is_whole(answer.text) for answer in answers):
        raise MissingFeature("gives no JSON where a schema is asked for")
    return few, answers


async def _judge_json(old: Answers, new: Answers, judge: CaseJudge) -> Iterable[str]:
    pairs = zip(new[0], old[1], new[1], strict=True)
    return [
        f"{prompt.name}: {after.text[:60]!r} is no JSON of the schema"
        for prompt, before, after in pairs
        if _is_whole(before.text) and not _is_whole(after.text)
    ]


async def _tools(asking: CaseAsking) -> ChatAnswer:
    said = await asking.chat(tools=[_TOOL], tool_choice="required")
    if asking.is_reference and not said.calls:
        raise MissingFeature("calls no tool where one is required")
    if asking.is_reference and _wrong(said):
        raise MissingFeature("calls a tool with other arguments than it takes")
    return said


def _wrong(said: ChatAnswer) -> list[tuple[str, str]]:
    return [call for call in said.calls if call[0] != "paint" or not _is_whole(call[1])]


async def _judge_tools(old: ChatAnswer, new: ChatAnswer, judge: CaseJudge) -> Iterable[str]:
    if not new.calls:
        return [f"no tool is called, in place of {old.calls[0][0]}: {new.text[:60]!r}"]
    return [f"a call of {name!r} with {arguments[:60]!r}" for name, arguments in _wrong(new)]


async def _reasoning(asking: CaseAsking) -> ChatAnswer:
    said = await asking.chat(response_format=_FORMAT)
    if asking.is_reference and not said.reasoning:
        raise MissingFeature("does not reason before an answer with a grammar")
    if asking.is_reference and not _is_whole(said.text):
        raise MissingFeature("gives no JSON after its reasoning")
    if said.is_cut:
        raise MissingFeature(f"does not end its reasoning within {_CHAT_TOKENS} tokens")
    return said


async def _judge_reasoning(old: ChatAnswer, new: ChatAnswer, judge: CaseJudge) -> Iterable[str]:
    found = [] if new.reasoning else ["there is no reasoning"]
    return [*found, *([] if _is_whole(new.text) else [f"{new.text[:60]!r} is no JSON of the schema"])]


CASES = (
    FaultCase("bursts", "crashes and mixed-up batches from 4, 16 or 64 requests at once on", _bursts),
    FaultCase("alike", "KV blocks of one prompt in the answer to another that begins alike", _alike),
    FaultCase("cancels", "slots or blocks that a cancelled request leaves behind", _cancels),
    FaultCase("long", "contexts beyond the length of the draft, and the last token that fits", _long),
    FaultCase("stops", "stop strings that are missed inside accepted tokens", _stops, _judge_stops),
    FaultCase("logprobs", "log-probabilities that belong to other tokens", _log_probs, _judge_log_probs),
    FaultCase("sampled", "top-k and seeds that drafts do not heed", _sampled, _judge_sampled),
    FaultCase("json", "accepted tokens that break a JSON schema", _json, _judge_json),
    FaultCase("tools", "calls of tools that drafts break", _tools, _judge_tools),
    FaultCase(
        "reasoning", "a grammar that begins at the wrong place after reasoning", _reasoning, _judge_reasoning
    ),
)
"""Every case, in the order in which they run."""
NAMES = tuple(case.name for case in CASES)


def refusal(error: TrtspecError) -> str | None:
    """Returns the words of a server, or of engines, that take no such request; None for another failure."""
    cause = error.__cause__
    is_refused = isinstance(error, UnavailableError) or isinstance(cause, (RequestError, GuideError))
    return error.problem if is_refused or (isinstance(cause, AskError) and cause.kind == "rejected") else None


def _is_busy(error: TrtspecError) -> bool:
    """Says whether a server took no request since it had too many."""
    return isinstance(error.__cause__, AskError) and error.__cause__.kind == "refused"


async def _has_ended(side: Side) -> bool:
    """Says whether a side answers nothing any more."""
    try:
        await side.ask(VerifyRequest(PROBED, 1))
    except TrtspecError as error:
        return not _is_busy(error)
    return False


class Suite:
    """Runs cases: asks the plain side, then the side that drafts, and judges at the end."""

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
        self._cases = [case for case in CASES if case.name in settings.cases]
        self._longest: int | None = None
        self._old: Mapping[str, Any] = {}
        self._new: Mapping[str, Any] = {}

    async def ask_plain(self) -> None:
        # Of two servers that take turns, only the first is known yet. The second may then refuse the case.
        known = self._sides.plain.longest, self._sides.speculative.longest
        self._longest = min(filter(None, known), default=None)
        self._old = await self._ask(self._sides.plain, self._sides.plain_k, is_reference=True)

    async def ask_drafted(self) -> None:
        """Asks with the longest draft that is tried, or the deployment's own."""
        longest = max((length for length in self._settings.lengths if length), default=None)
        self._new = await self._ask(self._sides.speculative, longest, is_reference=False)

    async def judged(self, bound: Tolerance) -> tuple[CaseResult, ...]:
        judge = CaseJudge(self._sides, self._vocabulary, self._settings, bound)
        return tuple([await self._judged(case, judge) for case in self._cases])

    async def _ask(self, side: Side, length: int | None, *, is_reference: bool) -> dict[str, Any]:
        """Returns the answers of each case; an error in their place."""
        of = self._settings.concurrency
        asking = CaseAsking(side, length, self._prompts, self._vocabulary, of, is_reference, self._longest)
        found, ended_in = dict[str, Any](), ""
        for case in self._cases:
            try:
                if ended_in:
                    raise SideNotAsked(f"does not answer any more since the case {ended_in}")
                found[case.name] = await case.ask(asking)
            except MissingFeature as missing:
                found[case.name] = missing
            except TrtspecError as error:
                is_busy = _is_busy(error)
                found[case.name] = SideNotAsked(error.problem) if is_busy else error
                has_failed = isinstance(error, ServerError) and not (is_busy or refusal(error))
                if has_failed and await _has_ended(side):
                    ended_in = case.name
            self._advance(1)
        return found

    async def _judged(self, case: FaultCase, judge: CaseJudge) -> CaseResult:
        old, new = self._old[case.name], self._new[case.name]
        plain, speculative = self._sides.plain.name, self._sides.speculative.name

        def result(state: CaseState, found: str = "") -> CaseResult:
            return CaseResult(case.name, case.finds, state, found)

        if isinstance(old, (MissingFeature, TrtspecError)):
            return result("skipped", f"{plain}: {_words(old)}")
        if isinstance(new, SideNotAsked):
            return result("skipped", f"{speculative}: {new}")
        if isinstance(new, MissingFeature) or (isinstance(new, TrtspecError) and refusal(new)):
            return result("open", f"{speculative}: {_words(new)}, where plain decoding answers")
        if isinstance(new, TrtspecError):
            return result("fault", new.problem)
        try:
            faults = list(await case.judge(old, new, judge))
        except TrtspecError as error:
            return result("open", f"cannot be judged: {error}")
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        return result("fault", faults[0] + more) if faults else result("ok")


def _words(error: MissingFeature | TrtspecError) -> str:
    return error.problem if isinstance(error, TrtspecError) else str(error)
