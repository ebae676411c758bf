"""Computes how long requests wait in a replica under constant load; pure.

Three approximations: the number of running sequences stays constant while one runs, prompts come evenly, and
a request comes at any moment of an iteration. Means are within a few per cent of a simulation. Near the load
where one of twenty requests waits in the queue, the 95th percentile may be off by half.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from trtspec.capacity.demand import Demand, Lengths
from trtspec.capacity.queueing import QueueStates, states, stretch
from trtspec.capacity.tempo import Replica

SHARE = 0.95
"""The share of requests that must meet a bound."""
_PARTS = 8
_DEVIATIONS = NormalDist().inv_cdf(SHARE)
_FINEST = 2**31
_OTHERS = 5
"""The largest number of prompts read in one iteration; more hardly ever come together."""


@dataclass(frozen=True, slots=True)
class LatencyBounds:
    """Bounds that a replica must meet."""

    time_to_first_token: float | None = None
    """Seconds to the first token, at the 95th percentile."""
    inter_token: float | None = None
    """Seconds for each token after the first, at the 95th percentile."""
    use: float = 0.85
    """The largest allowed share of a replica's capacity, for any latencies."""


@dataclass(frozen=True, slots=True)
class Steady:
    """The state of a replica at one rate; times are in seconds."""

    use: float
    """The used share of the replica's capacity."""
    texts: float
    """The mean number of running sequences."""
    waiting: float
    """The mean number of requests in the queue."""
    time_to_first_token: float
    """The 95th percentile over requests."""
    inter_token: float
    """The 95th percentile over running sequences."""
    end_to_end: float
    """The mean."""
    draft_length: int
    """The K of an iteration with the mean number of sequences."""


@dataclass(frozen=True, slots=True)
class ReplicaLatency:
    """The times of a replica with requests of given lengths, in seconds.

    Item n - 1 of a field is for n running sequences, up to the number of slots, unless the field says
    otherwise.
    """

    answers_s: tuple[float, ...]
    """The time of a whole answer, without waits for other prompts."""
    reads_s: tuple[float, ...]
    """The wait of all sequences for one prompt."""
    turns_s: tuple[float, ...]
    """The time of an iteration."""
    lengths: tuple[int, ...]
    """The draft length of an iteration."""
    prompts_s: tuple[float, ...]
    """The times of prompts, from short to long ones. Each is as likely as the others."""
    unlucky: tuple[float, ...]
    """The factor by which answers are slower than the mean through lower acceptance, at the 95th
    percentile."""
    variability: float
    """The squared coefficient of variation of an answer's tokens."""

    @property
    def places(self) -> int:
        return len(self.answers_s)

    @property
    def most(self) -> float:
        """The requests per second that a full replica answers: each sequence waits for every prompt."""
        return self.places / (self.answers_s[-1] + self.places * self.reads_s[-1])

    def slower(self, rate: float) -> list[float]:
        """Returns the factor by which prompts slow iterations down, by the number of running sequences.

        Prompts come at `rate` while slots are free, and from the queue at the rate of the answers.
        """
        below = [1 / max(1 - rate * read_s, 1e-9) for read_s in self.reads_s[:-1]]
        return [*below, 1 + self.places * self.reads_s[-1] / self.answers_s[-1]]

    def service(self, rate: float) -> list[float]:
        """Returns the requests that end per second, by the number of running sequences."""
        each = zip(self.answers_s, self.slower(rate), strict=True)
        return [number / (answer_s * slower) for number, (answer_s, slower) in enumerate(each, 1)]


def pace(replica: Replica, lengths: Lengths) -> ReplicaLatency:
    """Returns the latencies of a replica."""
    places = replica.places_for(lengths.input + lengths.output)
    answers, reads, turns, drafted, unlucky = [], [], [], [], []
    for texts in range(1, places + 1):
        turn = replica.tempo.turn(texts, lengths.context)
        # The last iteration gives more tokens than needed, by half of what drafts add.
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
    """Returns the steady state of a replica under this `demand`; None if its queue grows without end."""
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
    """Says whether a replica under this `demand` meets the bounds."""
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
    """Returns the mean number of running sequences in each state: with 1, 2, … of them."""
    below = [number * share for number, share in enumerate(queue.shares)][1:]
    return [*below, len(queue.shares) * queue.full]


def _first_later(
    found: ReplicaLatency, queue: QueueStates, rate: float, waits: float, seconds: float
) -> float:
    """Returns the probability that a first token comes later than this time.

    With a free slot, a request waits for the rest of the current iteration, which may read prompts. The next
    iteration reads its prompt, with others that came meanwhile. Without a free slot it first waits in the
    queue.
    """
    turns, prompts, shares = np.asarray(found.turns_s), np.asarray(found.prompts_s), np.asarray(queue.shares)
    reads = np.asarray(found.reads_s)
    # The share of time spent in iterations that read a prompt; none before the first sequence.
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
    """Returns the 95th percentile of a token's time over running sequences."""
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
    """Returns the seconds after which 5 % are still to come."""
    most = max(scale, 1e-3)
    while later(most) > 1 - SHARE:
        most *= 2
    part = most / _FINEST

    def is_met(parts: int) -> bool:
        return later(parts * part) <= 1 - SHARE

    return part * (1 + bisect_left(range(1, _FINEST), True, key=is_met))
