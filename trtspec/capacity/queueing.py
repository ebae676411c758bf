"""Computes a queue in front of slots whose speed depends on how many are in use; pure.

Requests of one replica are a birth and death process: they come at a rate, and with n running they end at the
rate `service[n - 1]`. Its states have the product form of M/M/k (Kleinrock, "Queueing systems" I, section
3.1), of which M/M/k is the case where the rate grows with n (section 3.5). While all requests have slots they
share the engines equally. Then the states depend only on the mean length of answers, not on their
distribution (Kelly, "Reversibility and stochastic networks", 1979, section 3.3). With a queue in front of the
slots that no longer holds; `stretch` corrects the wait as Allen and Cunneen do for G/G/k (Allen,
"Probability, statistics, and queueing theory", 1990, section 5.3.6), which is exact for M/M/k and M/G/1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class QueueStates:
    """The probabilities of each number of requests in a replica."""

    shares: tuple[float, ...]
    """Item n is the probability of n requests, for each n below the number of slots."""
    full: float
    """The probability that all slots are in use.

    It is also the probability of a wait: arrivals of a Poisson process see time averages.
    """
    drain: float
    """The rate at which the queue gets shorter."""
    use: float
    """The rate of arriving requests divided by the replica's capacity."""

    @property
    def mean_wait(self) -> float:
        """The mean seconds in the queue of all requests, including those that did not wait."""
        return self.full / self.drain

    @property
    def mean_present(self) -> float:
        """The mean number of requests, including those in the queue."""
        places = len(self.shares)
        working = sum(number * share for number, share in enumerate(self.shares))
        return working + self.full * (places + self.use / (1 - self.use))

    def wait(self, share: float, stretched: float = 1.0) -> float:
        """Returns the seconds in the queue that this share of the requests does not exceed, with waits
        multiplied by `stretched`."""
        if self.full <= 1 - share:
            return 0.0
        return math.log(self.full / (1 - share)) / self.drain * stretched


def states(rate: float, service: Sequence[float]) -> QueueStates | None:
    """Returns the states of a replica that gets `rate` requests per second; None if its queue grows without
    end."""
    use = rate / service[-1]
    if use >= 1:
        return None
    logs = np.concatenate([[0.0], np.cumsum(np.log(rate / np.asarray(service, float)))])
    weights = np.exp(logs - logs.max())
    *below, last = weights.tolist()
    full = last / (1 - use)
    whole = sum(below) + full
    return QueueStates(tuple(one / whole for one in below), full / whole, service[-1] - rate, use)


def stretch(arrivals: float, service: float) -> float:
    """Returns the factor of waits compared with exponential gaps and lengths, by Allen and Cunneen.

    Both arguments are squared coefficients of variation.
    """
    return (arrivals + service) / 2
