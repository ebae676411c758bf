"""Faults as they have been made in engines and coordinators that speculate, each to be switched on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.fakes.around import Around
from trtspec.serving.executor import Executor, FinishReason, Listener, Request, Response, SamplingConfig
from trtspec.serving.executors.torch.kernels.kernel import KernelView
from trtspec.serving.executors.torch.spans import Span
from trtspec.serving.rounds import Rounds
from trtspec.serving.state import StopMatcher
from trtspec.serving.text import common_prefix
from trtspec.serving.tokenizer import Tokenizer
from trtspec.serving.triton.engines import EnginePair
from trtspec.serving.verification import StepResult

Fault = Callable[[pytest.MonkeyPatch, EnginePair], EnginePair]
ENGINE = "trtspec.serving.executors.torch"
LONGEST_ROUND = 10
"""The most rows of a verification: the longest draft, and two tokens that the cache may lack."""


def accepts_one_too_many(patch: pytest.MonkeyPatch, pair: EnginePair) -> EnginePair:
    """The first draft token that differs is accepted, and the target's own comes behind it."""

    def verify(draft: list[int], chosen: list[int], end_id: int | None, room: int) -> StepResult:
        accepted = min(common_prefix(draft, chosen, len(draft)) + 1, len(draft))
        tokens = [*draft[:accepted], chosen[accepted]][:room]
        if end_id in tokens:
            return StepResult(tokens[: tokens.index(end_id)], FinishReason.END_ID)
        return StepResult(tokens, FinishReason.LENGTH)

    patch.setattr(f"{ENGINE}.runner.verify", verify)
    return pair


def drops_the_bonus_token(patch: pytest.MonkeyPatch, pair: EnginePair) -> EnginePair:
    """The client does not get the target's own token behind a draft that was accepted whole."""
    run_round = Rounds._round

    async def without(self: Rounds, drafter: Any, origin: str, length: int, *times: float) -> Any:
        delta = await run_round(self, drafter, origin, length, *times)
        if len(delta.token_ids) <= length or delta.completion is not None:
            return delta
        lost = pair.tokenizer.detokenizer().push(delta.token_ids[-1])
        return replace(
            delta,
            text=delta.text.removesuffix(lost),
            token_ids=delta.token_ids[:length],
            log_probs=delta.log_probs and delta.log_probs[:length],
        )

    patch.setattr(Rounds, "_round", without)
    return pair


def draws_the_same_numbers_each_round(patch: pytest.MonkeyPatch, pair: EnginePair) -> EnginePair:
    """The seed of a round is that of the request, so token for token the noise is that of the last round."""

    def at_token(sampling: SamplingConfig, position: int) -> SamplingConfig:
        return sampling

    patch.setattr("trtspec.serving.state.at_token", at_token)
    return pair


def counts_rounds_for_tokens(patch: pytest.MonkeyPatch, pair: EnginePair) -> EnginePair:
    """Every request begins with the number behind its seed, however far its text is."""

    def at_token(sampling: SamplingConfig, position: int) -> SamplingConfig:
        return sampling if sampling.seed is None else replace(sampling, seed=sampling.seed + bool(position))

    patch.setattr("trtspec.serving.state.at_token", at_token)
    return pair


def forgets_the_seed(patch: pytest.MonkeyPatch, pair: EnginePair) -> EnginePair:
    """Verifications draw with a seed that is the same for every request, as an engine's default is."""

    class Seedless(Around):
        def enqueue_request(self, request: Request, listener: Listener) -> int:
            if request.draft_token_ids and not request.sampling.is_greedy:
                request = replace(request, sampling=replace(request.sampling, seed=0))
            return super().enqueue_request(request, listener)

    return replace(pair, target=Seedless(pair.target))


def keeps_a_stale_block(patch: pytest.MonkeyPatch, pair: EnginePair) -> EnginePair:
    """Where a draft token was rejected, its keys and values stay in place of those of the target's own."""

    attend = KernelView.attend

    def only_what_is_missing(self: KernelView, layer: int, heads: Tensor) -> Tensor:
        kinds, stale = 2 * self._attention.kv_heads, heads.clone()
        lines = zip(*[iter(self._texts)] * 5, strict=True)
        for slot, (_, _, start, rows, first) in zip(self._slots, lines, strict=True):
            if 1 < rows <= LONGEST_ROUND:
                stale[first, -kinds:] = slot[layer, :, start]
        return attend(self, layer, stale)

    patch.setattr(KernelView, "attend", only_what_is_missing)
    return pair


def moves_positions_of_three_drafts(patch: pytest.MonkeyPatch, pair: EnginePair) -> EnginePair:
    """Verifications of three draft tokens have all their positions one too high."""

    class Moved:
        def __init__(self, rotations: Any) -> None:
            self._rotations = rotations

        def __getitem__(self, rows: slice) -> Any:
            far = 1 if rows.stop - rows.start == 4 else 0
            return self._rotations[rows.start + far : rows.stop + far]

    model: Any = pair.target._runner._model  # type: ignore[attr-defined]
    model._rotations = Moved(model._rotations)
    return pair


def rounds_otherwise(patch: pytest.MonkeyPatch, pair: EnginePair) -> EnginePair:
    """Rows that share a step have another last digit of bfloat16, as of other orders of sums; no fault."""
    model: Any = pair.target._runner._model  # type: ignore[attr-defined]
    forward, generator = model.forward, torch.Generator().manual_seed(0)

    def rounded(token_ids: list[int], spans: list[Span], wanted: list[int]) -> Tensor:
        logits: Tensor = forward(token_ids, spans, wanted)
        if len(token_ids) == 1:
            return logits
        return logits * (1 + torch.randint(-1, 2, logits.shape, generator=generator) * 2**-8)

    patch.setattr(model, "forward", rounded)
    return pair


def begins_twice(patch: pytest.MonkeyPatch, pair: EnginePair) -> EnginePair:
    """A prompt that has its beginning written out gets a second one from the tokenizer."""

    def encode(self: Tokenizer, text: str, add_special_tokens: bool = True) -> list[int]:
        ids: list[int] = self._inner.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    patch.setattr(Tokenizer, "encode", encode)
    return pair


def begins_verifications_twice(patch: pytest.MonkeyPatch, pair: EnginePair) -> EnginePair:
    """The coordinator's text becomes tokens anew for each verification, with a second beginning."""

    class Twice(Around):
        def enqueue_request(self, request: Request, listener: Listener) -> int:
            if request.draft_token_ids:
                ids = request.input_token_ids
                request = replace(request, input_token_ids=[ids[0], *ids])
            return super().enqueue_request(request, listener)

    return replace(pair, target=Twice(pair.target))


def ignores_drafts(patch: pytest.MonkeyPatch, pair: EnginePair) -> EnginePair:
    """No fault of the text: nothing is ever drafted."""
    return replace(pair, draft=None)


class _Verifying(Around):
    """Changes the verifications: requests with a draft."""

    def verification(self, request: Request) -> Request:
        raise NotImplementedError

    def enqueue_request(self, request: Request, listener: Listener) -> int:
        changed = self.verification(request) if request.draft_token_ids else request
        return super().enqueue_request(changed, listener)


def fails_from_twelve_on(patch: pytest.MonkeyPatch, pair: EnginePair) -> EnginePair:
    """The twelfth verification at once ends with an error."""

    class Crowded(Around):
        running = 0

        def enqueue_request(self, request: Request, listener: Listener) -> int:
            if not request.draft_token_ids:
                return super().enqueue_request(request, listener)
            if self.running >= 11:
                failed = Response(-1, [], is_final=True, error="an illegal memory access was encountered")
                asyncio.get_running_loop().call_soon(listener, failed)
                return -1
            self.running += 1

            def heard(response: Response) -> None:
                self.running -= response.is_final
                listener(response)

            return super().enqueue_request(request, heard)

    return replace(pair, target=Crowded(pair.target))


def mixes_texts_that_begin_alike(patch: pytest.MonkeyPatch, pair: EnginePair) -> EnginePair:
    """A verification finds the blocks of the first text that has its first 64 tokens."""

    class Mixed(_Verifying):
        def __init__(self, inner: Executor) -> None:
            super().__init__(inner)
            self._first: dict[tuple[int, ...], list[int]] = {}

        def verification(self, request: Request) -> Request:
            ids = list(request.input_token_ids)
            if len(ids) < 64:
                return request
            first = self._first.setdefault(tuple(ids[:64]), ids)[: len(ids) - 1]
            return replace(request, input_token_ids=[*first, *ids[len(first) :]])

    return replace(pair, target=Mixed(pair.target))


def is_upset_by_a_cancel(patch: pytest.MonkeyPatch, pair: EnginePair) -> EnginePair:
    """After the first cancelled request, verifications read a token twice."""

    class Upset(_Verifying):
        is_upset = False

        def cancel_request(self, request_id: int) -> None:
            self.is_upset = True
            super().cancel_request(request_id)

        def verification(self, request: Request) -> Request:
            ids = list(request.input_token_ids)
            return (
                replace(request, input_token_ids=[*ids[:-2], ids[-1], ids[-1]]) if self.is_upset else request
            )

    return replace(pair, target=Upset(pair.target))


def forgets_what_is_far(patch: pytest.MonkeyPatch, pair: EnginePair) -> EnginePair:
    """Verifications in a context of more than 500 tokens see another beginning of it."""

    class Far(_Verifying):
        def verification(self, request: Request) -> Request:
            ids = list(request.input_token_ids)
            return replace(request, input_token_ids=ids[-400:] * 3) if len(ids) > 500 else request

    return replace(pair, target=Far(pair.target))


def misses_stops_inside_a_round(patch: pytest.MonkeyPatch, pair: EnginePair) -> EnginePair:
    """Stop strings are looked for in every other token alone."""
    push, calls = StopMatcher.push, count()

    def every_other(self: StopMatcher, text: str) -> str:
        return push(self, text) if next(calls) % 2 else text

    patch.setattr(StopMatcher, "push", every_other)
    return pair


def shifts_log_probs(patch: pytest.MonkeyPatch, pair: EnginePair) -> EnginePair:
    """The log-probabilities of a verification are those of the next token."""

    class Shifted(Around):
        def enqueue_request(self, request: Request, listener: Listener) -> int:
            def heard(response: Response) -> None:
                found = response.log_probs or []
                listener(replace(response, log_probs=[*found[1:], *found[:1]] or None))

            return super().enqueue_request(request, heard if request.draft_token_ids else listener)

    return replace(pair, target=Shifted(pair.target))


def ignores_top_k(patch: pytest.MonkeyPatch, pair: EnginePair) -> EnginePair:
    """Verifications draw from all tokens."""

    class Wide(_Verifying):
        def verification(self, request: Request) -> Request:
            return replace(request, sampling=replace(request.sampling, top_k=None))

    return replace(pair, target=Wide(pair.target))


def draws_anew_each_time(patch: pytest.MonkeyPatch, pair: EnginePair) -> EnginePair:
    """Verifications take no notice of the seed, and draw with one of their own."""
    seeds = count()

    class Anew(_Verifying):
        def verification(self, request: Request) -> Request:
            return replace(request, sampling=replace(request.sampling, seed=next(seeds) * 7919))

    return replace(pair, target=Anew(pair.target))


def ignores_guides(patch: pytest.MonkeyPatch, pair: EnginePair) -> EnginePair:
    """Verifications know no grammar."""

    class Free(_Verifying):
        def verification(self, request: Request) -> Request:
            return replace(request, guide=None)

    return replace(pair, target=Free(pair.target))
