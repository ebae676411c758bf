"""Computes how long requests wait in a replica whose load does not change; pure.

What is approximate: as many texts are at work for the whole time of one as at the moment that is looked at,
prompts come as evenly as their rate says, and a request comes anywhere within a turn. Beside a simulation of
the same, means are within a few per cent; where one of twenty waits in line, so that the 95th percentile is
about to rise, that may be half as long again.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from trtspec.capacity.demand import Demand, Lengths
from trtspec.capacity.queueing import QueueStates, states, stretch
from trtspec.capacity.tempo import Replica

SHARE = 0.95
"""Of requests that keep a bound."""
_PARTS = 8
_DEVIATIONS = NormalDist().inv_cdf(SHARE)
_HALVINGS = 30
_OTHERS = 5
"""So many prompts that are read together are told apart; more hardly come within a turn."""


@dataclass(frozen=True, slots=True)
class LatencyBounds:
    """Bounds that a replica must keep."""

    time_to_first_token: float | None = None
    """Seconds to the first token, for 95 of 100 requests."""
    inter_token: float | None = None
    """Seconds for each token after the first, for 95 of 100."""
    use: float = 0.85
    """The largest share of what a replica could bear that may be asked of it, whatever the latencies."""


@dataclass(frozen=True, slots=True)
class Steady:
    """The state of a replica at one rate; times are in seconds."""

    use: float
    """The share of what the replica could bear."""
    texts: float
    """The mean number of sequences at work."""
    waiting: float
    """The mean number of requests in line."""
    time_to_first_token: float
    """For 95 of 100 requests it is at most this."""
    inter_token: float
    """For 95 of 100 sequences at work it is at most this."""
    end_to_end: float
    """The mean."""
    draft_length: int
    """The K of an iteration with the mean number of sequences."""


@dataclass(frozen=True, slots=True)
class ReplicaLatency:
    """The times of a replica with requests of given lengths, in seconds.

    Item n - 1 of a field is for n sequences at work, up to the number of slots, unless the field says
    otherwise.
    """

    answers_s: tuple[float, ...]
    """The time of a whole answer, without the waits for prompts of others."""
    reads_s: tuple[float, ...]
    """The wait for each prompt."""
    turns_s: tuple[float, ...]
    """The time of an iteration."""
    lengths: tuple[int, ...]
    """The draft length of an iteration."""
    prompts_s: tuple[float, ...]
    """The times of prompts, from short to long ones. Each is as likely as the others."""
    unlucky: tuple[float, ...]
    """The factor by which 95 of 100 answers are at most slower than the mean because less was accepted."""
    variability: float
    """The squared coefficient of variation of an answer's tokens."""

    @property
    def places(self) -> int:
        return len(self.answers_s)

    @property
    def most(self) -> float:
        """The requests a second that a full replica answers: each of its texts waits for every prompt."""
        return self.places / (self.answers_s[-1] + self.places * self.reads_s[-1])

    def slower(self, rate: float) -> list[float]:
        """Returns how much longer turns take by the prompts in between, by the texts at work.

        Those come at `rate` while there are places, and from the line at the rate of the answers.
        """
        below = [1 / max(1 - rate * read_s, 1e-9) for read_s in self.reads_s[:-1]]
        return [*below, 1 + self.places * self.reads_s[-1] / self.answers_s[-1]]

    def service(self, rate: float) -> list[float]:
        """Returns how many requests end in a second, by the texts at work."""
        each = zip(self.answers_s, self.slower(rate), strict=True)
        return [number / (answer_s * slower) for number, (answer_s, slower) in enumerate(each, 1)]


def pace(replica: Replica, lengths: Lengths) -> ReplicaLatency:
    """Returns how a replica works."""
    places = replica.places_for(lengths.input + lengths.output)
    answers, reads, turns, drafted, unlucky = [], [], [], [], []
    for texts in range(1, places + 1):
        turn = replica.tempo.turn(texts, lengths.context)
        # The last turn gives more tokens than are wanted, by half of what drafts add.
        rounds = (lengths.output + (turn.tokens - 1) / 2) / turn.tokens
        answers.append(rounds * turn.seconds)
        reads.append(replica.tempo.prompt_s(lengths.input, bool(turn.survival)))
        turns.append(turn.seconds)
        drafted.append(len(turn.survival))
        unlucky.append(1 + _DEVIATIONS * math.sqrt(turn.variability / rounds))
    prompts = tuple(replica.tempo.prompt_s(part, bool(drafted[-1])) for part in lengths.prompts(_PARTS))
    return ReplicaLatency(
        tuple(answers),
        tuple(reads),
        tuple(turns),
        tuple(drafted),
        prompts,
        tuple(unlucky),
        lengths.variability,
    )


def steady(found: ReplicaLatency, demand: Demand) -> Steady | None:
    """Returns what a replica does that gets this `demand`; None where its line never ends."""
    queue = states(demand.rate, found.service(demand.rate))
    if queue is None:
        return None
    waits = stretch(demand.burstiness, found.variability)
    working = _working(queue)
    texts = max(round(sum(working)), 1)
    slower = found.slower(demand.rate)
    spent = sum(
        part * answer_s * more for part, answer_s, more in zip(working, found.answers_s, slower, strict=True)
    )
    return Steady(
        use=queue.use,
        texts=sum(working),
        waiting=(queue.mean_present - sum(working)) * waits,
        time_to_first_token=_quantile(
            lambda seconds: _first_later(found, queue, demand.rate, waits, seconds), queue.mean_wait
        ),
        inter_token=_token_quantile(found, queue, demand),
        end_to_end=queue.mean_wait * waits + found.reads_s[texts - 1] + spent / sum(working),
        draft_length=found.lengths[texts - 1],
    )


def keeps(found: ReplicaLatency, demand: Demand, bounds: LatencyBounds) -> bool:
    """Says whether a replica that gets this `demand` keeps the bounds."""
    queue = states(demand.rate, found.service(demand.rate))
    if queue is None or queue.use > bounds.use:
        return False
    if bounds.inter_token is not None and _token_quantile(found, queue, demand) > bounds.inter_token:
        return False
    if bounds.time_to_first_token is None:
        return True
    waits = stretch(demand.burstiness, found.variability)
    return _first_later(found, queue, demand.rate, waits, bounds.time_to_first_token) <= 1 - SHARE


def _working(queue: QueueStates) -> list[float]:
    """Returns how many texts are at work with 1, 2, … of them, on average over time."""
    below = [number * share for number, share in enumerate(queue.shares)][1:]
    return [*below, len(queue.shares) * queue.full]


def _first_later(
    found: ReplicaLatency, queue: QueueStates, rate: float, waits: float, seconds: float
) -> float:
    """Returns how likely a first token comes later than that.

    With a place free, a request waits for the rest of the turn that goes on, in which prompts may be read,
    and then its prompt is read in the next one, with those that came meanwhile. Without, it waits in line
    before that.
    """
    turns, prompts, shares = np.asarray(found.turns_s), np.asarray(found.prompts_s), np.asarray(queue.shares)
    reads = np.asarray(found.reads_s)
    # Of the time until now, so much was spent in turns that read a prompt; before the first text in none.
    before = np.concatenate([[0.0], turns[:-1]])
    reading = np.concatenate([[0.0], np.minimum(rate * (reads + turns), 1.0)[:-1]])
    least = turns[:, None] + prompts[None, :]
    later = np.zeros_like(least)
    for likely, rest in ((1 - reading, before), (reading, before + reads)):
        coming = np.exp(-rate * rest)
        for others in range(_OTHERS):
            late = seconds - least - others * reads[:, None]
            with np.errstate(divide="ignore", invalid="ignore"):
                missed = np.where(rest[:, None] > 0, 1 - np.clip(late / rest[:, None], 0.0, 1.0), late < 0)
            later += (likely * coming)[:, None] * missed
            coming = coming * rate * rest / (others + 1)
    below = float((shares[:, None] * later).mean(axis=1).sum())
    behind = [queue.waits_longer(max(seconds - turns[-1] - one, 0.0), waits) for one in found.prompts_s]
    return below + sum(behind) / len(behind)


def _token_quantile(found: ReplicaLatency, queue: QueueStates, demand: Demand) -> float:
    """Returns the time of a token that 95 of 100 keep, of texts at work at any moment."""
    working = _working(queue)
    each = zip(working, found.answers_s, found.slower(demand.rate), found.unlucky, strict=True)
    reached, seconds = 0.0, 0.0
    for part, answer_s, slower, unlucky in each:
        reached += part
        seconds = answer_s * slower * unlucky / demand.lengths.output
        if reached >= SHARE * sum(working):
            break
    return seconds


def _quantile(later: Callable[[float], float], scale: float) -> float:
    """Returns the seconds after which one of twenty is still to come."""
    low, high = 0.0, max(scale, 1e-3)
    while later(high) > 1 - SHARE:
        low, high = high, 2 * high
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if later(middle) > 1 - SHARE else (low, middle)
    return high
