"""The following of guides: masks of the tokens that the rows of a step may choose.

TensorRT-LLM's `GuidedDecoder` masks one row of logits a request, and starts anew with each request. Here
every row of a verification has its own mask, and the next request of a sequence continues it.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from trtspec.serving.errors import Busy, GuideError, TooAmbiguous
from trtspec.serving.executor import GUIDE_REFUSED, GUIDE_WAITS, Request
from trtspec.serving.guides.compiler import MAX_MASK_S, TOO_AMBIGUOUS, Bitmasks, Grammar
from trtspec.serving.text import Text
from trtspec.serving.thread_pool import BoundedCalls

ENDED, NOTHING, BROKEN = -1, -2, -3
"""The choice of a row in place of a token: the end of the text, no allowed token, logits not finite."""

GUIDES_BUSY = f"{GUIDE_WAITS}the engine is busy with other guides, which take too long"

MAX_STALL_S = 0.2
"""The largest CPU time of one guide in one step, in seconds, for which all requests wait."""


@dataclass(frozen=True, slots=True)
class Masks:
    """The tokens that a request's rows may choose, a row for each prefix of the draft that is allowed."""

    allowed: npt.NDArray[np.bool_]
    """The tokens that each row may choose, `[rows, vocab_size]`, with the end tokens if the text may end."""
    is_complete: list[bool]
    """For each row, True if the guide lets the text end there."""
    end_ids: frozenset[int]

    def read(self, chosen: list[int]) -> list[int]:
        """Returns the chosen tokens, with `ENDED` in place of one that ends the text.

        Rows without a mask follow a forbidden draft token, so their choices are not used.
        """
        return [
            ENDED if token in self.end_ids or (token == NOTHING and complete) else token
            for token, complete in zip(chosen, self.is_complete, strict=False)
        ] + chosen[len(self.is_complete) :]


class GrammarMatcher:
    """A matcher that follows one sequence. It has taken the first `taken` guided tokens."""

    def __init__(self, grammar: Grammar) -> None:
        self._matcher, self._vocab_size = grammar.matcher(), grammar.vocab_size
        self.taken = 0

    def take(self, token_ids: list[int]) -> None:
        """Advances by tokens of the sequence; raises `GuideError` if the grammar forbids one."""
        for token_id in token_ids:
            if not self._matcher.accept(token_id):
                raise GuideError(f"The guide forbids token {self.taken} of what was generated before")
            self.taken += 1

    def back(self, taken: int) -> None:
        """Goes back to the first `taken` tokens."""
        self._matcher.back(self.taken - taken)
        self.taken = taken

    def masks(self, draft: list[int], vocab_size: int, end_ids: frozenset[int], num_endless: int) -> Masks:
        """Returns the masks after each prefix of the draft, of which the first `num_endless` forbid the end.

        Raises `TooAmbiguous` if a mask takes longer than `MAX_MASK_S`.
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
    """The guide of one request, for the tokens of `text` from `start` to `end` and those after them."""

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
        """The new tokens that the follower has not taken yet."""
        self.masks: Masks | None = None
        """The masks of the next step."""
        self.error: str | None = None
        """The reason why there are no masks."""

    def begin(self, follower: GrammarMatcher | None) -> None:
        """Takes the tokens that were generated before, with a follower of the sequence if there is one."""
        follower = follower or GrammarMatcher(self.grammar)
        try:
            follower.take(self.text[self.start + follower.taken : self.end])
            self.follower = follower
        except GuideError as error:
            self.fail(str(error))

    def mask(self, draft: list[int], vocab_size: int, num_endless: int) -> None:
        """Sets `masks` for the rows after each prefix of the draft."""
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
        """Fails the request, and no other one with this grammar."""
        self.masks, self.error = None, error

    def refuse(self, problem: str) -> None:
        """Fails the request and all others with this grammar."""
        self.grammar.problem = problem
        self.fail(f"{GUIDE_REFUSED}{problem}")


class Followers:
    """The followers of sequences between their requests, of which the latest `most` are kept.

    A follower is kept with its `Text`, whose prefix never changes, so that a round takes only the new tokens.
    They run on their own thread, which is awaited for a bounded time: a client's guide may need any time.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: OrderedDict[int, GuidedText] = OrderedDict()
        self._calls = BoundedCalls(MAX_STALL_S, "guides-followed")

    def begin(self, guided: GuidedText, draft: list[int], vocab_size: int, num_endless: int) -> None:
        """Gives a request its follower, and its masks if it has a draft."""
        before = self._kept.pop(id(guided.text), None)
        follower = before.follower if before is not None and _continues(guided, before) else None

        def work() -> None:
            guided.begin(follower)
            if draft and guided.error is None:
                guided.mask(draft, vocab_size, num_endless)

        self._follow(guided, work)

    def mask(self, guided: GuidedText, draft: list[int], vocab_size: int, num_endless: int) -> None:
        """Sets the masks for the rows after each prefix of the draft."""
        self._follow(guided, partial(guided.mask, draft, vocab_size, num_endless))

    def keep(self, guided: GuidedText) -> None:
        """Keeps the follower for the next request of its sequence, at the end of this one's input."""
        if guided.follower is None or guided.error is not None:
            return
        guided.follower.back(guided.end - guided.start)
        guided.said = []
        self._kept[id(guided.text)] = guided
        if len(self._kept) > self._most:
            self._kept.popitem(last=False)

    def close(self) -> None:
        """Ends the thread. No guide may be followed after that."""
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
