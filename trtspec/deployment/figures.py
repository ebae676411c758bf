"""Computes the figures of a deployment from two scrapes of its metrics; pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from trtspec.base.errors import UnavailableError
from trtspec.client.scrape import Scrape
from trtspec.gateway.refusals import NAME as REFUSALS
from trtspec.serving.metrics import COUNTED, KV_FRACTION, STARTED


@dataclass(frozen=True, slots=True)
class ServerFigures:
    """The figures of a deployment over the last `seconds`.

    Shares are 0 to 1, times in seconds, rates per second. A figure is None if nothing happened that it could
    be computed from.
    """

    model: str
    seconds: float
    running: int
    places: int
    """The number of requests that can run at once."""
    waiting: int
    queue_size: int
    """The number of requests that can wait."""
    longest_wait: float
    tokens_per_second: float
    prompt_tokens_per_second: float
    requests_per_second: float
    rounds_per_second: float
    acceptance: float | None
    """The share of draft tokens that were accepted."""
    acceptance_by_origin: dict[str, float]
    """The same, by where the draft tokens came from."""
    tokens_per_draft: float | None
    """The mean number of tokens that a draft brings: the accepted ones, and the target's own."""
    mean_k: float | None
    """The mean length of drafts; a burst of the target alone counts as 0."""
    rounds_by_k: dict[int, float]
    """The share of rounds by the number of draft tokens."""
    time_to_first_token: tuple[float, float] | None
    """The quantiles of 50 % and 95 %."""
    inter_token_latency: tuple[float, float] | None
    """The quantiles of 50 % and 95 %."""
    kv_use: dict[str, float]
    """The use of the KV caches by engine."""
    draft_available: bool
    speculation_share: float
    """The share of requests that have drafts."""
    shadow_share: float
    """The share of requests whose drafts are only scored."""
    shadow_acceptance: float | None
    """The share of those drafts' tokens that would have been accepted."""
    fallbacks: dict[str, float]
    """The rate by reason."""
    errors: dict[str, float]
    """The rate of the model's errors by kind."""
    refusals: dict[str, float]
    """The rate of refusals in front of the model by reason."""


def models(scrape: Scrape) -> list[str]:
    """Returns the names of the models that a server has metrics of."""
    return sorted({labels["model"] for labels, _ in scrape.of("trtspec:num_requests_running")})


def choose(scrape: Scrape, name: str | None, url: str) -> str:
    """Returns the model of that name, or the only one; raises `UnavailableError`."""
    found = models(scrape)
    if not found:
        raise UnavailableError(url, "has no metrics of trtspec", "name the metrics port of trtspec deploy")
    if name is None and len(found) == 1:
        return found[0]
    if name not in found:
        problem = f"has no model {name}" if name else "has several models"
        raise UnavailableError(url, f"{problem}: {', '.join(found)}", "name one with --model-name")
    return name


def between(before: Scrape, now: Scrape, model: str) -> ServerFigures:
    """Returns the figures; a server that restarted in between counts from its start."""
    look = _Looks(before, now, model)
    grown, grown_by, gauge, quantiles = look.grown, look.grown_by, look.gauge, look.quantiles
    # Counters are reported once a second, together with the time that they have counted.
    elapsed = max(now.at - before.at, 1e-9)
    seconds = grown(COUNTED) or elapsed
    drafted = grown_by("trtspec:spec_decode_num_draft_tokens", "origin")
    accepted = {origin: grown("trtspec:spec_decode_num_accepted_tokens", origin=origin) for origin in drafted}
    drafts, rounds = grown("trtspec:spec_decode_num_drafts"), grown_by("trtspec:rounds", "num_draft_tokens")
    num_rounds = sum(rounds.values())
    return ServerFigures(
        model=model,
        seconds=seconds,
        running=int(gauge("trtspec:num_requests_running")),
        places=int(gauge("trtspec:max_num_requests_running")),
        waiting=int(gauge("trtspec:num_requests_waiting")),
        queue_size=int(gauge("trtspec:max_num_requests_waiting")),
        longest_wait=gauge("trtspec:longest_wait_seconds"),
        tokens_per_second=grown("trtspec:generation_tokens") / seconds,
        prompt_tokens_per_second=grown("trtspec:prompt_tokens") / seconds,
        requests_per_second=grown("trtspec:request_success") / seconds,
        rounds_per_second=num_rounds / seconds,
        acceptance=_share(sum(accepted.values()), sum(drafted.values())),
        acceptance_by_origin={origin: accepted[origin] / number for origin, number in drafted.items()},
        tokens_per_draft=1 + sum(accepted.values()) / drafts if drafts else None,
        mean_k=_share(grown("trtspec:num_draft_tokens_chosen"), num_rounds),
        rounds_by_k={int(length): number / num_rounds for length, number in rounds.items()},
        time_to_first_token=quantiles("trtspec:time_to_first_token_seconds"),
        inter_token_latency=quantiles("trtspec:inter_token_latency_seconds"),
        kv_use=_kv_use(now, model),
        draft_available=gauge("trtspec:draft_available") == 1,
        speculation_share=gauge("trtspec:speculation_share"),
        shadow_share=gauge("trtspec:shadow_share"),
        shadow_acceptance=_share(
            grown("trtspec:shadow_num_accepted_tokens"), grown("trtspec:shadow_num_draft_tokens")
        ),
        fallbacks={why: n / seconds for why, n in grown_by("trtspec:fallbacks", "reason").items()},
        errors={kind: n / seconds for kind, n in grown_by("trtspec:request_errors", "kind").items()},
        refusals={why: n / elapsed for why, n in grown_by(REFUSALS, "reason").items()},
    )


class _Looks:
    """Two scrapes of the metrics of one model."""

    def __init__(self, before: Scrape, now: Scrape, model: str) -> None:
        self._before, self._now, self._model = before, now, model
        began = [look.total(STARTED, model=model) for look in (before, now)]
        self._is_same = began[0] == began[1]

    def grown(self, name: str, **labels: str) -> float:
        """Returns how much a counter has grown."""
        new, old = (look.total(name, model=self._model, **labels) for look in (self._now, self._before))
        # The processes in front of the server may continue to count.
        is_same = self._is_same or name == REFUSALS
        return new - old if is_same and new >= old else new

    def grown_by(self, name: str, label: str) -> dict[str, float]:
        """Returns the growth for each value of a label that has any."""
        values = dict.fromkeys(labels[label] for labels, _ in self._now.of(name, model=self._model))
        found = {value: self.grown(name, **{label: value}) for value in values}
        return {value: number for value, number in sorted(found.items()) if number}

    def gauge(self, name: str) -> float:
        return self._now.total(name, model=self._model)

    def quantiles(self, name: str) -> tuple[float, float] | None:
        """Returns the median and the 95th percentile of a histogram; None for one without values."""
        bounds = {labels["le"] for labels, _ in self._now.of(f"{name}_bucket", model=self._model)}
        buckets = sorted((float(bound), self.grown(f"{name}_bucket", le=bound)) for bound in bounds)
        found = [quantile(share, buckets) for share in (0.5, 0.95)]
        return None if math.isnan(found[0]) else (found[0], found[1])


def quantile(share: float, buckets: list[tuple[float, float]]) -> float:
    """Returns a quantile as Prometheus's `histogram_quantile` does; not a number for no values.

    `buckets` are upper bounds, which ascend to infinity, with how many values are at most these. Values are
    taken as spread evenly within a bucket; in the last bucket the result is its lower bound.
    """
    if len(buckets) < 2 or not buckets[-1][1]:
        return math.nan
    rank = share * buckets[-1][1]
    index = next(index for index, (_, number) in enumerate(buckets) if number >= rank)
    if math.isinf(buckets[index][0]):
        return buckets[index - 1][0]
    low, below = buckets[index - 1] if index else (0.0, 0.0)
    bound, number = buckets[index]
    return low + (bound - low) * (rank - below) / (number - below)


def _kv_use(now: Scrape, model: str) -> dict[str, float]:
    """Returns the use of the KV caches by engine; engines that are models of their own tell it themselves."""
    used = {labels["engine"]: use for labels, use in now.of("trtspec:kv_cache_usage_perc", model=model)}
    return used or {
        labels["model"]: use for labels, use in now.of(KV_FRACTION, kv_cache_block_type="fraction")
    }


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None
