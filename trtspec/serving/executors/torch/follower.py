"""Guides as the engine follows them: which tokens its rows may choose.

TensorRT-LLM's `GuidedDecoder` masks one row of logits a request and starts anew with each request; here every
row of a verification has its own mask, and a text goes on in the next request.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from trtspec.serving.bounded_calls import BoundedCalls
from trtspec.serving.errors import Busy, GuideError, TooAmbiguous
from trtspec.serving.executor import GUIDE_REFUSED, Request
from trtspec.serving.guides.compiler import MAX_MASK_S, TOO_AMBIGUOUS, Bitmasks, Grammar
from trtspec.serving.text import Text

ENDED, NOTHING = -1, -2
"""What a row chooses in place of a token: that the text ends, and that nothing may follow."""

GUIDES_BUSY = "The engine is busy with other guides, which take too long; try again later"

MAX_STALL_S = 0.2
"""The longest that all requests wait for what one guide has to say to one step, in a processor's time."""


@dataclass(frozen=True, slots=True)
class Masks:
    """The tokens that rows of a step may choose.

    There is one row for each prefix of a draft up to the first forbidden token.
    """

    allowed: npt.NDArray[np.bool_]
    """The tokens that each row may choose, `[rows, vocab_size]`.

    The end tokens are among them where the text may end.
    """
    is_complete: list[bool]
    """For each row, True if the guide lets the text end there."""
    end_ids: frozenset[int]

    def read(self, chosen: list[int]) -> list[int]:
        """Returns the tokens that the rows chose, with `ENDED` for what ends the text.

        Rows without a mask come behind a forbidden token of a draft, so nobody reads them.
        """
        return [
            ENDED if token in self.end_ids or (token == NOTHING and complete) else token
            for token, complete in zip(chosen, self.is_complete, strict=False)
        ] + chosen[len(self.is_complete) :]


class GrammarMatcher:
    """A matcher that goes along with one text; `taken` of its generated tokens lie behind it."""

    def __init__(self, grammar: Grammar) -> None:
        self._matcher, self._vocab_size = grammar.matcher(), grammar.vocab_size
        self.taken = 0

    def take(self, token_ids: list[int]) -> None:
        """Goes on behind tokens of the text; raises `GuideError` where the grammar forbids one."""
        for token_id in token_ids:
            if not self._matcher.accept(token_id):
                raise GuideError(f"The guide forbids token {self.taken} of what was generated before")
            self.taken += 1

    def back(self, taken: int) -> None:
        """Goes back to the first `taken` tokens."""
        self._matcher.back(self.taken - taken)
        self.taken = taken

    def masks(self, draft: list[int], vocab_size: int, end_ids: frozenset[int], num_endless: int) -> Masks:
        """Returns the masks of the rows behind each prefix of the draft; `num_endless` of them have no end.

        Raises `TooAmbiguous` for a grammar so ambiguous that a mask takes long.
        """
        bitmasks = Bitmasks(len(draft) + 1, self._vocab_size)
        is_complete: list[bool] = []
        start = self.taken
        try:
            for row, token_id in enumerate([*draft, None]):
                begin = time.thread_time()
                self._matcher.fill(bitmasks, row)
                if time.thread_time() - begin > MAX_MASK_S:
                    raise TooAmbiguous(TOO_AMBIGUOUS)
                is_complete.append(bitmasks.ends(row))
                if token_id is None or token_id in end_ids or not bitmasks.allows(row, token_id):
                    break
                self.take([token_id])
        finally:
            self.back(start)
        allowed = bitmasks.unpacked(len(is_complete))[:, :vocab_size]
        for end_id in end_ids:
            if end_id < vocab_size:
                allowed[:, end_id] = is_complete
                allowed[: max(num_endless, 0), end_id] = False
        return Masks(allowed, is_complete, end_ids)


class GuidedText:
    """The guide of one request: of the tokens of `text` from `start` to `end`, and of those that follow.

    `masks` are those of the next step, and `error` says why there can be none. `said` is what the follower
    has not taken yet.
    """

    def __init__(self, request: Request, grammar: Grammar, text: Text, end: int) -> None:
        guide = request.guide
        assert guide is not None
        self.key, self.grammar, self.text = (guide.guide_type, guide.guide), grammar, text
        self.start, self.end = end - request.num_guided, end
        self.end_ids = frozenset(guide.end_ids)
        if request.end_id not in (None, -1):
            self.end_ids |= {request.end_id}
        self.follower: GrammarMatcher | None = None
        self.said: list[int] = []
        self.masks: Masks | None = None
        self.error: str | None = None

    def begin(self, follower: GrammarMatcher | None) -> None:
        """Goes behind what was generated before, with a follower of that text if there is one."""
        follower = follower or GrammarMatcher(self.grammar)
        try:
            follower.take(self.text[self.start + follower.taken : self.end])
            self.follower = follower
        except GuideError as error:
            self.fail(str(error))

    def mask(self, draft: list[int], vocab_size: int, num_endless: int) -> None:
        """Finds out what the rows behind each prefix of the draft may choose."""
        assert self.follower is not None
        try:
            self.follower.take(self.said)
            self.said = []
            self.masks = self.follower.masks(draft, vocab_size, self.end_ids, num_endless)
        except TooAmbiguous as error:
            self.refuse(str(error))
        except GuideError as error:
            self.fail(str(error))

    def fail(self, error: str) -> None:
        """Ends the request, and no other one with this grammar."""
        self.masks, self.error = None, error

    def refuse(self, problem: str) -> None:
        """Ends the request, and any other one with this grammar."""
        self.grammar.problem = problem
        self.fail(f"{GUIDE_REFUSED}{problem}")


class Followers:
    """The followers of texts between their requests, up to `most`, the latest ones.

    A follower is kept with the very `Text`, whose beginning never changes, so that a round only reads what
    the last one added. They work on a thread of their own: a guide from a stranger may need any time, which
    nobody waits for.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: OrderedDict[int, GuidedText] = OrderedDict()
        self._calls = BoundedCalls(MAX_STALL_S, "guides-followed")

    def begin(self, guided: GuidedText, draft: list[int], vocab_size: int, num_endless: int) -> None:
        """Gives a text its follower, behind what was generated before, and if it has a draft its masks."""
        before = self._kept.pop(id(guided.text), None)
        follower = before.follower if before is not None and _continues(guided, before) else None

        def work() -> None:
            guided.begin(follower)
            if draft and guided.error is None:
                guided.mask(draft, vocab_size, num_endless)

        self._follow(guided, work)

    def mask(self, guided: GuidedText, draft: list[int], vocab_size: int, num_endless: int) -> None:
        """Finds out what the rows behind each prefix of the draft may choose."""
        self._follow(guided, partial(guided.mask, draft, vocab_size, num_endless))

    def keep(self, guided: GuidedText) -> None:
        """Keeps the follower for the next request of its text, behind what this one was given."""
        if guided.follower is None or guided.error is not None:
            return
        guided.follower.back(guided.end - guided.start)
        guided.said = []
        self._kept[id(guided.text)] = guided
        if len(self._kept) > self._most:
            self._kept.popitem(last=False)

    def close(self) -> None:
        """Ends the thread; nothing is followed from then on."""
        self._calls.close()

    def _follow(self, guided: GuidedText, work: Callable[[], None]) -> None:
        if guided.grammar.problem is not None:
            guided.refuse(guided.grammar.problem)
            return
        try:
            self._calls.make(work)
        except TimeoutError:
            guided.refuse(TOO_AMBIGUOUS)
        except Busy:
            guided.fail(GUIDES_BUSY)


def _continues(guided: GuidedText, before: GuidedText) -> bool:
    same = guided.text is before.text and guided.start == before.start and guided.key == before.key
    return same and guided.end >= before.end
