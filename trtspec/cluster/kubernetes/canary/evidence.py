"""Counts the requests of two builds' pods since a step began, and checks the new one's bounds; pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from trtspec.client.scrape import Scrape
from trtspec.cluster.kubernetes.pods import Pod, summary
from trtspec.deployment.rollout.bounds import (
    LEAST_ACCEPTANCE,
    MOST_FIRST_OUTPUT,
    MOST_TIME_PER_TOKEN,
    BoundState,
    Check,
    acceptance,
    errors,
    ratio,
    requests,
)
from trtspec.deployment.rollout.evidence import ArmCounts, MeanTimes, ScoredDrafts, is_of_one_process
from trtspec.serving.metrics import COUNTED, STARTED

Counted = dict[str, float]
"""Counters of one pod by their names; those of a bucket have its upper bound in braces."""

_FIRST, _NEXT = "trtspec:time_to_first_token_seconds", "trtspec:inter_token_latency_seconds"
_TOKENS, _DONE = "trtspec:generation_tokens", "trtspec:request_success"
_FAILED = "failed"
_KINDS = ("engine_failure", "not_finite", "timed_out", "internal", "refused")
"""Kinds of `trtspec:request_errors` that the build may cause; clients cause the others."""
_DRAFTS = tuple(
    f"trtspec:spec_decode_{name}" for name in ("num_drafts", "num_draft_tokens", "num_accepted_tokens")
)


def counted(scrape: Scrape, model: str) -> Counted:
    """Returns those counters of a pod that the bounds use."""
    names = (COUNTED, STARTED, _DONE, _TOKENS, *_DRAFTS, f"{_FIRST}_sum", f"{_NEXT}_sum")
    found = {name: scrape.total(name, model=model) for name in names}
    found[_FAILED] = sum(scrape.total("trtspec:request_errors", model=model, kind=kind) for kind in _KINDS)
    for name in (_FIRST, _NEXT):
        for labels, value in scrape.of(f"{name}_bucket", model=model):
            found[f"{name}{{{labels['le']}}}"] = value
    return found


def grown(before: Mapping[str, Counted], now: Mapping[str, Counted]) -> Counted:
    """Returns the sum of what the pods have counted since. A pod that restarted counts from its start."""
    total: Counted = {}
    for pod, counters in now.items():
        old = before.get(pod, {})
        since = old if is_of_one_process(old, counters) else {}
        for name, value in counters.items():
            total[name] = total.get(name, 0.0) + max(value - since.get(name, 0.0), 0.0)
    return total


def arm(counters: Counted) -> ArmCounts:
    """Returns the completions of one build, and their times.

    The time per token is the time between two outputs divided by the tokens of an output. The outputs of one
    completion are alike, so the error is computed from as many values as there are completions. That
    overestimates it.
    """
    done = counters.get(_DONE, 0.0)
    first, following = _times(counters, _FIRST), _times(counters, _NEXT)
    tokens = counters.get(_TOKENS, 0.0) - first.count
    per_token = MeanTimes(0, 0.0, 0.0)
    if following.count and tokens > 0 and done:
        mean = counters[f"{_NEXT}_sum"] / tokens
        spread = following.error * math.sqrt(following.count)
        per_token = MeanTimes(int(done), mean, mean * spread / following.mean / math.sqrt(done))
    return ArmCounts(
        int(done + counters.get(_FAILED, 0.0)), int(counters.get(_FAILED, 0.0)), first, per_token
    )


def drafts(counters: Counted) -> ScoredDrafts:
    return ScoredDrafts(*(int(counters.get(name, 0.0)) for name in _DRAFTS))


def _times(counters: Counted, name: str) -> MeanTimes:
    """Returns the mean of a histogram and its error. Values are taken as spread evenly within a bucket."""
    start = f"{name}{{"
    bounds = sorted(
        (float(key[len(start) : -1].replace("+Inf", "inf")), value)
        for key, value in counters.items()
        if key.startswith(start)
    )
    if not bounds or not bounds[-1][1]:
        return MeanTimes(0, 0.0, 0.0)
    count, low, below, middles, squares = bounds[-1][1], 0.0, 0.0, 0.0, 0.0
    for bound, number in bounds:
        high = bound if math.isfinite(bound) else 2 * low
        middles += (number - below) * (low + high) / 2
        squares += (number - below) * (low * low + low * high + high * high) / 3
        low, below = high, number
    # The spread comes from the buckets alone: their own mean may be off by half a bucket.
    variance = max(squares / count - (middles / count) ** 2, 0.0)
    return MeanTimes(int(count), counters[f"{name}_sum"] / count, math.sqrt(variance / count))


_NAMES = ("new", "old")


def check(canary: Counted, stable: Counted, pods: Sequence[Pod], wanted: int, silent: int) -> list[Check]:
    """Returns the bounds of a step at which both builds serve, by their counters since it began.

    They are those of a roll-out, with the old build in place of plain decoding. `pods` are the new one's, of
    which `silent` are ready but give no metrics.
    """
    new, old = arm(canary), arm(stable)
    drafted, usual = drafts(canary), drafts(stable)
    checks = [_pods(pods, wanted, silent), requests(new, old, _NAMES)]
    if drafted.drafts or usual.drafts:
        # The new build is not to blame for texts on which the old one does worse.
        least = min(LEAST_ACCEPTANCE, usual.per_token) if usual.drafts else LEAST_ACCEPTANCE
        checks.append(acceptance(drafted, new, least))
    checks.append(errors(new, old, "old"))
    checks.append(ratio("time per token", new.per_token, old.per_token, MOST_TIME_PER_TOKEN, "old"))
    checks.append(ratio("first output", new.first_token, old.first_token, MOST_FIRST_OUTPUT, "old"))
    return checks


def _pods(pods: Sequence[Pod], wanted: int, silent: int) -> Check:
    """Returns the check that no pod of the new build has restarted."""
    restarts = sum(each.restarts for pod in pods for each in pod.containers if not each.is_init)
    ready = sum(pod.is_ready for pod in pods)
    name, bound = "pods", "all ready, none restarted"
    if restarts:
        return Check(name, bound, f"{restarts} restarts", BoundState.BROKEN)
    if silent:
        return Check(name, bound, f"{silent} of {ready} ready ones give no metrics", BoundState.OPEN)
    if ready < wanted:
        return Check(name, bound, summary(list(pods)), BoundState.OPEN)
    return Check(name, bound, f"{ready} ready", BoundState.HOLDS)
