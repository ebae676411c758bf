"""What TensorRT-LLM makes of the draft of a sampled request, beside the torch executor's model.

From `layers/externalDraftTokensLayer.cpp` and `kernels/speculativeDecoding/externalDraftTokensKernels.cu`:

* Without draft logits the target draws a token. If that is the draft's, it is accepted. If not, it is thrown
  away, and what is said is drawn anew from the whole distribution, the draft's token included.
* With draft logits, whose softmax knows no temperature, the token is accepted with min(1, p / q). If it is
  not, what is said is drawn from max(p - q, 0), normalized.

Greedy requests and requests without drafts are the torch executor's own.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.fakes.around import Around
from tests.fakes.trimming import Keep, keep_all
from trtspec.serving.executor import FinishReason, Listener, Request, Response, SamplingConfig
from trtspec.serving.executors.torch.torch_executor import TorchExecutor
from trtspec.serving.executors.validation import Refused, validate

Row = npt.NDArray[np.float64]
Uniform = Callable[[], float]


@dataclass(frozen=True)
class DraftLogits:
    """`rows` `[draft, vocab]`, read when they are needed, and the constant threshold if there is one."""

    rows: Any
    threshold: float | None = None


def stream(seed: int) -> Uniform:
    """The numbers of one request, of a draft's as of a target's: both begin as the seed says."""
    return np.random.default_rng(seed).random


def draw(probabilities: Row, number: float) -> int:
    """As the top-p kernel: the likeliest first, until their sum passes the number."""
    order = np.argsort(-probabilities, kind="stable")
    sums = np.cumsum(probabilities[order])
    return int(order[min(int(np.searchsorted(sums, number * sums[-1], side="right")), len(order) - 1)])


def masked(logits: Row, sampling: SamplingConfig) -> Row:
    """The distribution of a token after temperature, top-k and top-p, as Hugging Face defines them."""
    probabilities = _softmax(logits / (1.0 if sampling.temperature is None else sampling.temperature))
    order = np.argsort(-probabilities, kind="stable")
    if sampling.top_k:
        probabilities[order[sampling.top_k :]] = 0
        probabilities /= probabilities.sum()
    before = np.cumsum(probabilities[order]) - probabilities[order]
    probabilities[order[before >= (sampling.top_p or 1.0)]] = 0
    kept: Row = probabilities / probabilities.sum()
    return kept


def accept(
    target: Row, token: int, draft: Row | None, uniform: Uniform, threshold: float | None
) -> int | None:
    """What is said in place of the draft's token; None if that is accepted."""
    if draft is None:
        return None if draw(target, uniform()) == token else draw(target, uniform())
    least = uniform() if threshold is None else threshold
    probabilities = _softmax(draft)
    if target[token] / probabilities[token] >= least:
        return None
    return draw(np.maximum(target - probabilities, 0), uniform())


class ExternalDrafts(Around):
    """The executor of an engine that verifies external drafts; `keep` says what it leaves of each."""

    def __init__(self, inner: TorchExecutor, keep: Keep = keep_all) -> None:
        super().__init__(inner)
        self._inner: TorchExecutor = inner
        self._torch, self._keep = inner, keep
        self._allowed = inner.limits
        # It is asked for whole distributions.
        inner.limits = replace(inner.limits, max_top_log_probs=inner.limits.vocab_size)
        self._ids = itertools.count(-2, -1)
        self._tasks: dict[int, tuple[asyncio.Task[None], Listener]] = {}
        self._known: dict[tuple[int, ...], Row] = {}

    def enqueue_request(self, request: Request, listener: Listener, logits: DraftLogits | None = None) -> int:
        if not (draft := request.draft_token_ids):
            return self._torch.enqueue_request(request, listener)
        kept = self._keep(len(draft))
        if request.sampling.is_greedy or not kept:
            cut = replace(request, draft_token_ids=draft[:kept])
            return self._torch.enqueue_request(cut, lambda said: listener(replace(said, num_verified=kept)))
        number = next(self._ids)
        work = self._verify(number, request, list(draft[:kept]), listener, logits)
        self._tasks[number] = asyncio.get_running_loop().create_task(work), listener
        return number

    def cancel_request(self, request_id: int) -> None:
        if request_id > 0:
            self._torch.cancel_request(request_id)
        elif request_id in self._tasks:
            task, listener = self._tasks.pop(request_id)
            task.cancel()
            said = Response(request_id, [], is_final=True, finish_reason=FinishReason.CANCELLED)
            asyncio.get_running_loop().call_soon(listener, said)

    def shutdown(self) -> None:
        for number in list(self._tasks):
            self.cancel_request(number)
        self._torch.shutdown()

    async def _verify(
        self, number: int, request: Request, draft: list[int], listener: Listener, logits: DraftLogits | None
    ) -> None:
        await asyncio.sleep(0)
        try:
            valid = validate(replace(request, draft_token_ids=draft), self._allowed)
            tokens, reason = await self._verified(request, valid.draft_token_ids, logits)
            said = Response(number, tokens[: valid.max_tokens], True, reason, num_verified=len(draft))
        except Refused as refused:
            said = Response(number, [], is_final=True, error=str(refused))
        if self._tasks.pop(number, None):
            listener(said)

    async def _verified(
        self, request: Request, draft: list[int], logits: DraftLogits | None
    ) -> tuple[list[int], FinishReason]:
        text, uniform = list(request.input_token_ids), stream(request.sampling.seed or 0)
        said: list[int] = []
        for position, token in enumerate([*draft, None]):
            target = await self._target(request, text + said, position)
            if token is None:
                own: int | None = draw(target, uniform())
            else:
                row = None if logits is None else np.asarray(logits.rows[position], np.float64)
                own = accept(target, token, row, uniform, logits.threshold if logits else None)
            chosen = token if own is None else own
            if chosen == request.end_id:
                return said, FinishReason.END_ID
            assert chosen is not None
            said.append(chosen)
            if own is not None:
                break
        return said, FinishReason.LENGTH

    async def _target(self, request: Request, text: Sequence[int], position: int) -> Row:
        logits = (await self._logits(tuple(text))).copy()
        for token, bias in request.embedding_bias.items():
            logits[token] += bias
        for word in request.bad_words:
            if list(text[len(text) - len(word) + 1 :]) == list(word[:-1]):
                logits[word[-1]] = -np.inf
        if position < (request.sampling.min_tokens or 0) and request.end_id not in (None, -1):
            logits[request.end_id] = -np.inf
        return masked(logits, request.sampling)

    async def _logits(self, text: tuple[int, ...]) -> Row:
        """The logarithm of the model's own distribution behind a text."""
        if text not in self._known:
            size = self._torch.limits.vocab_size
            asked = Request(text, max_tokens=1, return_log_probs=True, top_log_probs=size)
            heard: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
            self._torch.enqueue_request(asked, heard.set_result)
            response = await heard
            assert response.log_probs, response.error
            row = np.empty(size)
            ids, values = zip(*response.log_probs[0].top, strict=True)
            row[list(ids)] = values
            self._known[text] = row
        return self._known[text]


def _softmax(logits: Row) -> Row:
    weights = np.exp(logits - logits.max())
    probabilities: Row = weights / weights.sum()
    return probabilities
