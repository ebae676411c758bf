"""Checks that the tokens of sampled requests with drafts have the target's own distribution."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from trtspec.measure.selftest.outcome import Differs, NotTried, expect
from trtspec.measure.selftest.trial import Trial, check
from trtspec.serving.executor import Request, SamplingConfig

_CHOICES, _DRAWS = 4, 800
_Z = 3.7
"""The normal quantile beyond which a distribution counts as different; one of ten thousand equal ones exceeds
it."""


@check("sampled drafts", "rules 9 and 10: layers/externalDraftTokensLayer.cpp, acceptDraftTokens")
async def sampled_drafts(trial: Trial) -> str:
    """With one-hot draft logits the first token has the target's distribution, whatever the draft is.

    Draws the first token with the likeliest as the draft, or the second, many times.
    """
    limits = trial.executor.limits
    if not limits.drafts_samples:
        raise NotTried("the engine verifies drafts only for greedy requests")
    begun = [question.prompt[:length] for question in trial.questions for length in (2, 3)]
    known = [(prompt, await trial.likely(prompt, _CHOICES)) for prompt in begun]
    # If no choice is rare, every choice counts.
    prompt, wanted = max(known, key=lambda one: min(one[1].values()))
    worst = 0.0
    for number, drafted in enumerate(list(wanted)[:2]):
        first = 1 + number * _DRAWS
        sampling = [
            SamplingConfig(temperature=1.0, top_k=_CHOICES, seed=7919 * seed)
            for seed in range(first, first + _DRAWS)
        ]
        answers = await trial.ask(*(Request(prompt, 2, [drafted], sampling=each) for each in sampling))
        counts = Counter(answer.token_ids[0] for answer in answers)
        z = _deviation(counts, wanted, _DRAWS)
        if z > _Z or set(counts) - set(wanted):
            shares = {token: f"{counts[token] / _DRAWS:.3f}" for token in [*wanted, *counts]}
            found = f"expected { ({token: f'{p:.3f}' for token, p in wanted.items()}) }, found {shares}"
            raise Differs(f"sampled with draft token {drafted}: {found}")
        worst = max(worst, z)
    return f"2 x {_DRAWS} draws, {worst:.1f} standard deviations off at most"


@check("greedy beside sampled", "rule 11: batch_manager/createNewDecoderRequests.cpp")
async def greedy_beside_sampled(trial: Trial) -> str:
    """Draft logits belong to one slot, and change no request beside it.

    So sampled requests change no greedy one.
    """
    if not trial.executor.limits.drafts_samples:
        raise NotTried("the engine verifies drafts only for greedy requests")
    question, k = trial.questions[0], trial.k
    warm = SamplingConfig(temperature=1.5, seed=3)
    draft = question.text[:k]
    count = trial.executor.limits.max_batch_size
    requests = [
        Request(question.prompt, k + 1, draft, sampling=warm if i % 2 else SamplingConfig())
        for i in range(count)
    ]
    for request, answer in list(zip(requests, await trial.ask(*requests), strict=True))[::2]:
        right = trial.right(question, request, answer)
        expect(answer.token_ids, right, "a greedy answer beside sampled ones")
    return f"{count} at once"


@check("generation logits", "rule 12: batch_manager/trtGptModelInflightBatching.cpp")
async def generation_logits(trial: Trial) -> str:
    """A verification returns logits of the accepted positions, with one row fewer if an end token ends it."""
    raise NotTried("trtspec asks for no generation logits")


def _deviation(counts: Counter[int], wanted: Mapping[int, float], draws: int) -> float:
    """Returns Pearson's chi-square as a normal deviate (Wilson and Hilferty 1931)."""
    degrees = len(wanted) - 1
    square = sum((counts[token] - draws * p) ** 2 / (draws * p) for token, p in wanted.items())
    spread = 2 / (9 * degrees)
    return float(((square / degrees) ** (1 / 3) - (1 - spread)) / spread**0.5)


SAMPLES = (
    sampled_drafts,
    greedy_beside_sampled,
    generation_logits,
)
