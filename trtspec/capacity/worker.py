"""Simulates one replica: its queue, its slots, and the iterations of the running sequences."""

from __future__ import annotations

import math
import random
from bisect import bisect_left
from dataclasses import dataclass

from trtspec.capacity.demand import SimulatedRequest
from trtspec.capacity.tempo import Replica, Turn
from trtspec.serving.admission import Admission, Ticket

_MOST_WAITING = 10**9
_STEPS = 32
"""The largest number of steps without drafts before the growing contexts are updated."""


@dataclass(frozen=True, slots=True)
class Done:
    """A request that was answered; times are in seconds."""

    job: SimulatedRequest
    first: float
    ended: float

    @property
    def time_to_first_token(self) -> float:
        return self.first - self.job.arrival

    @property
    def end_to_end(self) -> float:
        return self.ended - self.job.arrival

    @property
    def inter_token(self) -> float | None:
        """The mean time of a token after the first text; None for fewer than two tokens."""
        return (self.ended - self.first) / (self.job.output - 1) if self.job.output > 1 else None


@dataclass(slots=True)
class _Text:
    job: SimulatedRequest
    unread: int
    left: int
    first: float = 0.0


@dataclass(slots=True)
class _Run:
    """The iterations in progress."""

    begin: float
    """The time at which the first iteration began."""
    seconds: float
    """The time of each iteration."""
    steps: int
    """The number of iterations."""
    turn: Turn
    drafting_s: float
    """The seconds from the beginning in which drafts are proposed."""

    @property
    def end(self) -> float:
        return self.begin + self.steps * self.seconds


class Worker:
    """Serves requests as the coordinator does: it admits them, and all running sequences share each
    iteration.

    An iteration also reads prompts, up to the replica's `most_rows` tokens; a prompt gives its first tokens
    at the end of the iteration that finishes it. A sequence that arrives during steps joins after the current
    step. One that arrives during drafting gets a draft before all are verified.
    """

    def __init__(self, replica: Replica, seed: str) -> None:
        self._replica, self._dice = replica, random.Random(seed)  # noqa: S311
        self._admission = Admission(replica.places, replica.kv_tokens, _MOST_WAITING)
        self._texts: dict[Ticket, _Text] = {}
        self._working: dict[Ticket, _Text] = {}
        self._run: _Run | None = None
        self.version = 0
        self.busy_s = 0.0

    @property
    def present(self) -> int:
        """The number of its requests, including those in the queue."""
        return len(self._texts)

    @property
    def end(self) -> float | None:
        """The end of the current iterations; None while idle."""
        return self._run.end if self._run else None

    def take(self, job: SimulatedRequest, now: float) -> None:
        """Takes a request. That may make `end` earlier."""
        ticket = Ticket(job.input + job.output + self._replica.longest_draft)
        text = self._texts[ticket] = _Text(job, job.input, job.output)
        if self._admission.arrive(ticket):
            self._working[ticket] = text
            self._join(text, now)

    def finish(self, now: float) -> list[Done]:
        """Finishes the current iterations, and starts the next one; returns the answered requests."""
        run = self._run
        assert run is not None
        self.busy_s += run.steps * run.seconds
        self._run = None
        done: list[Done] = []
        for ticket, text in list(self._working.items()):
            if text.unread:
                continue
            if not text.first:
                text.first = now
            text.left -= self._tokens(run)
            if text.left <= 0:
                done.append(Done(text.job, text.first, now))
                del self._working[ticket], self._texts[ticket]
                for other in self._admission.leave(ticket):
                    self._working[other] = self._texts[other]
        self._begin(now)
        return done

    def _tokens(self, run: _Run) -> int:
        """Returns how many tokens a sequence gets: the target's own, and the accepted draft tokens."""
        survival = run.turn.survival
        if not survival:
            return run.steps
        # Survival falls with the position; the first position not above the random number is not accepted.
        return 1 + bisect_left(survival, -self._dice.random(), key=lambda share: -share)

    def _join(self, text: _Text, now: float) -> None:
        """Ends the running steps with the current one, or starts if nothing runs."""
        run = self._run
        if run is None:
            self._begin(now)
            return
        drafted_s = now - run.begin
        if drafted_s < run.turn.drafting_s and text.unread <= self._replica.most_rows:
            # All wait for its prompt, and for its draft, which has the length of theirs.
            more_s = max(drafted_s + run.turn.drafting_s - run.drafting_s, 0.0)
            more_s += self._replica.tempo.prompt_s(text.unread, has_drafts=True)
            text.unread = 0
            run.drafting_s += more_s
            run.seconds += more_s
            self.version += 1
            return
        steps = min(run.steps, max(1, math.ceil((now - run.begin) / run.seconds)))
        if steps < run.steps:
            run.steps = steps
            self.version += 1

    def _begin(self, now: float) -> None:
        self.version += 1
        if not self._working:
            return
        rows, read, context, ready = self._replica.most_rows, 0, 0, 0
        longest = _STEPS
        for text in self._working.values():
            if text.unread:
                part = min(text.unread, rows - read)
                text.unread -= part
                read += part
            if not text.unread:
                ready += 1
                context += text.job.input + text.job.output - text.left
                longest = min(longest, text.left)
        turn = self._replica.tempo.turn(max(ready, 1), context / ready if ready else rows)
        if read:
            prompt_s = self._replica.tempo.prompt_s(read, bool(turn.survival))
            self._run = _Run(now, turn.seconds + prompt_s, 1, turn, turn.drafting_s)
        else:
            steps = 1 if turn.survival else max(longest, 1)
            self._run = _Run(now, turn.seconds, steps, turn, turn.drafting_s)
