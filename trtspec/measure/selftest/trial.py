"""Sends trial requests to a loaded engine, and holds what came of it: plain types, also in NVIDIA's image."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any

from trtspec.serving.executor import Executor, Request, Response

WAIT_S = 60.0
"""The seconds that an answer may take."""
Likely = Callable[[Sequence[int], int], Awaitable[Mapping[int, float]]]
"""Returns this number of the likeliest next tokens of a text, with their probabilities relative to each
other."""


class Ruling(str, Enum):
    """The verdicts of a check."""

    OK = "ok"
    DIFFERS = "differs"
    NOT_TRIED = "not tried"
    """There is nothing to try here."""
    LEFT_OUT = "left out"
    """This machine could have tried it, and did not."""


TARGET = "answers are not the target's, even without a draft: do not serve with this release"
DRAFTS = "answers change with drafts: serve without them"
SAMPLES = "sampled answers have another distribution with drafts: use them for greedy requests alone"
WISHES = "requests with this field are answered as if they had not asked for it"
WORK = "the engine works in vain, and drafts save less time than they could"
LAYOUT = "servers of this layout do not run here: choose the other one in serving.layout"
"""What a check that fails means for whoever serves such a build."""


class Differs(Exception):
    """Something differs from what trtspec relies on; `str()` says what was expected and what was found."""


class NotTried(Exception):
    """A check has nothing to try here; `str()` is the reason."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The verdict of one check on one build."""

    build: str
    """The name of the build, such as "bf16"; "machine" for what is checked before anything is built."""
    check: str
    rule: str
    """The rule: a sentence that must be true."""
    source: str
    """The source of the rule."""
    means: str
    """The consequence for who serves such a build if the rule does not hold."""
    state: Ruling
    found: str
    """The numbers found, the difference, or the reason why nothing was tried."""
    seconds: float = 0.0
    measured: Mapping[str, float] = field(default_factory=dict)
    """Numbers by their names, for comparisons of builds."""

    @property
    def words(self) -> str:
        """Returns what was found, with its meaning if it differs."""
        return f"{self.found}; so {self.means}" if self.state is Ruling.DIFFERS else self.found

    def as_dict(self) -> dict[str, Any]:
        """Returns it for JSON."""
        return asdict(self) | {"state": self.state.value}

    @classmethod
    def of_dict(cls, values: dict[str, Any]) -> Outcome:
        """Reads what `as_dict` returned."""
        return cls(**{**values, "state": Ruling(values["state"])})


def expect(found: object, expected: object, where: str) -> None:
    """Raises `Differs` if both are not equal; `where` names what they are."""
    if found == expected:
        return
    at = ""
    if isinstance(found, list) and isinstance(expected, list):
        same = [one == other for one, other in zip(found, expected, strict=False)]
        at = f"; number {(*same, False).index(False) + 1} is the first that differs"
    raise Differs(f"{where}: expected {expected}, found {found}{at}")


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt, and its certain greedy continuation."""

    prompt: tuple[int, ...]
    text: tuple[int, ...]
    """The reference's tokens up to the first one that rounding could change."""


async def final(is_over: asyncio.Future[None]) -> None:
    """Waits for a final response; raises `Differs` if none comes."""
    try:
        await asyncio.wait_for(is_over, WAIT_S)
    except asyncio.TimeoutError:
        raise Differs(f"no final response within {WAIT_S:g} s") from None


@dataclass(frozen=True, slots=True)
class Trial:
    """An executor, and the reference texts of its model."""

    executor: Executor
    questions: Sequence[Question]
    """Each has a text of more than `k` tokens."""
    likely: Likely
    k: int
    """The length of the drafts that are tried; 0 for an engine that verifies none."""
    end_ids: tuple[int, ...] = ()
    decode: Callable[[Sequence[int]], str] | None = None
    """Returns the text of tokens; None without a tokenizer."""
    measured: dict[str, float] = field(default_factory=dict)
    """What a rule measures, by its name."""

    def wrong(self, token: int) -> int:
        """Returns another token."""
        return (token + 1) % self.executor.limits.vocab_size

    async def hear(self, request: Request) -> list[Response]:
        """Returns all responses to a request; the last is final.

        Raises `Differs` for a response out of order, and for none within `WAIT_S` seconds.
        """
        heard: list[Response] = []
        is_over = asyncio.get_running_loop().create_future()

        def listen(response: Response) -> None:
            heard.append(response)
            if response.is_final and not is_over.done():
                is_over.set_result(None)

        number = self.executor.enqueue_request(request, listen)
        expect(heard, [], "responses before enqueue_request has returned")
        await final(is_over)
        await asyncio.sleep(0)
        expect(
            [one.is_final for one in heard], [False] * (len(heard) - 1) + [True], "which response is final"
        )
        expect({one.request_id for one in heard}, {number}, "request ids of the responses")
        return heard

    async def ask(self, *requests: Request) -> list[Response]:
        """Enqueues all requests at once, without streaming, and returns the answer to each.

        Raises `Differs` as `hear` does, for several responses to one request, and for an error.
        """
        answers = []
        for heard in await asyncio.gather(*map(self.hear, requests)):
            expect(len(heard), 1, "responses to a request that does not stream")
            if heard[0].error is not None:
                raise Differs(f"refused: {heard[0].error}")
            answers.append(heard[0])
        return answers

    def right(self, question: Question, request: Request, answer: Response) -> list[int]:
        """Returns the expected answer for the draft tokens that the engine reports as verified."""
        text, draft = list(question.text), list(request.draft_token_ids)
        if answer.num_verified is not None:
            draft = draft[: answer.num_verified]
        if not draft:
            return text[: request.max_tokens]
        agreed = next((i for i, token in enumerate(draft) if token != text[i]), len(draft))
        return text[: min(agreed + 1, request.max_tokens)]

    async def tokens(self, request: Request) -> list[int]:
        """Returns the tokens of the answer to one request."""
        [answer] = await self.ask(request)
        return list(answer.token_ids)


Run = Callable[[Trial], Awaitable[str]]


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule to try on an engine."""

    name: str
    rule: str
    """The rule: a sentence that must be true."""
    source: str
    """The source of the rule."""
    means: str
    """The consequence if it does not hold."""
    run: Run
    """Returns the finding in a few words; raises `Differs` or `NotTried`."""
    of_drafts: bool = True
    """True if it needs an engine that verifies drafts."""

    async def outcome(self, trial: Trial, build: str = "") -> Outcome:
        """Tries the rule; any other exception also counts as a difference."""
        start = time.monotonic()
        state, found = Ruling.OK, ""
        try:
            if self.of_drafts and not trial.k:
                raise NotTried("the engine verifies no drafts")
            found = await self.run(trial)
        except NotTried as reason:
            state, found = Ruling.NOT_TRIED, str(reason)
        except Exception as error:
            state = Ruling.DIFFERS
            found = str(error) if isinstance(error, Differs) else f"{type(error).__name__}: {error}"
        took, measured = time.monotonic() - start, dict(trial.measured)
        trial.measured.clear()
        return Outcome(build, self.name, self.rule, self.source, self.means, state, found, took, measured)


def check(name: str, source: str, means: str = "", *, of_drafts: bool = True) -> Callable[[Run], Rule]:
    """Turns a function into a check; the first line of its docstring is the rule."""
    means = means or (DRAFTS if of_drafts else TARGET)
    return lambda run: Rule(name, str(run.__doc__).partition("\n")[0], source, means, run, of_drafts)
