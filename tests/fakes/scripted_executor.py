"""An executor without a model: it honours the contract, and what it says is a function of the text so far.

A request that samples draws token i of what it generates with number `seed + i`."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from trtspec.serving.executor import FinishReason, KvReuse, Limits, Listener, LogProb, Request, Response
from trtspec.serving.executors.validation import Refused, Valid, validate
from trtspec.serving.state import NUM_SEEDS
from trtspec.serving.verification import decode, verify

NextToken = Callable[[Sequence[int]], int]


def babble(vocab_size: int, context: int = 4) -> NextToken:
    """A language in which the last few tokens decide the next one, without short cycles."""

    def next_token(sequence: Sequence[int]) -> int:
        return zlib.crc32(repr((len(sequence), list(sequence[-context:]))).encode()) % vocab_size

    return next_token


def echo(text: Sequence[int], end_id: int, prompt_len: int = 1) -> NextToken:
    """A language that says `text` after a prompt of `prompt_len` tokens, then the end token."""

    def next_token(sequence: Sequence[int]) -> int:
        said = len(sequence) - prompt_len
        return text[said] if said < len(text) else end_id

    return next_token


def agreeing(language: NextToken, vocab_size: int, agreement: float) -> NextToken:
    """A draft's language: says what `language` says for a share `agreement` of all prefixes."""

    def next_token(sequence: Sequence[int]) -> int:
        dice = zlib.crc32(repr(("draft", list(sequence))).encode()) / 2**32
        token = language(sequence)
        return token if dice < agreement else (token + 1) % vocab_size

    return next_token


def choose(
    language: NextToken,
    sequence: Sequence[int],
    vocab_size: int,
    bad_words: Iterable[Sequence[int]] = (),
    number: int | None = None,
) -> int:
    """What a scripted executor says next: other things with another random number, and no bad word.

    The next token that is not banned takes the place of one that is.
    """
    token = language(sequence if number is None else [*sequence, number])
    banned = {
        word[-1] for word in bad_words if list(sequence[len(sequence) - len(word) + 1 :]) == [*word[:-1]]
    }
    while token in banned:
        token = (token + 1) % vocab_size
    return token


def scripted_log_prob(sequence: Sequence[int], token_id: int) -> float:
    """What a scripted executor says of a token behind a text."""
    return -zlib.crc32(repr((list(sequence), token_id)).encode()) / 2**30


class ScriptedExecutor:
    """Runs all requests in step: one token or one verification each, every `delay` seconds (0: every tick).

    `requests` holds everything that was enqueued, in order, and `cancelled` the ids that were cancelled, for
    tests to look at. `fails` may return the text of an error with which a request ends at once.
    """

    def __init__(
        self,
        limits: Limits,
        next_token: NextToken,
        delay: float = 0.0,
        fails: Callable[[Request], str | None] = lambda request: None,
    ) -> None:
        self.limits = limits
        self.kv_tokens: int | None = None
        self.failure: str | None = None
        self.progress = 0
        self.requests: list[Request] = []
        self.cancelled: list[int] = []
        self.next_token, self._delay, self._fails = next_token, delay, fails
        self._flight: dict[int, _Flight] = {}
        self._tick: asyncio.Handle | None = None

    @property
    def in_flight(self) -> int:
        return len(self._flight)

    def take_kv_use(self) -> float | None:
        return None

    @property
    def kv_reuse(self) -> KvReuse | None:
        return None

    def enqueue_request(self, request: Request, listener: Listener) -> int:
        # The text may grow.
        self.requests.append(replace(request, input_token_ids=tuple(request.input_token_ids)))
        request_id = len(self.requests)
        error = self._fails(request)
        try:
            if error is not None:
                raise Refused(error)
            flight = _Flight(request, validate(request, self.limits), listener)
        except Refused as refusal:
            response = Response(request_id, [], is_final=True, error=str(refusal))
            asyncio.get_running_loop().call_soon(listener, response)
            return request_id
        self._flight[request_id] = flight
        self._wake()
        return request_id

    def cancel_request(self, request_id: int) -> None:
        flight = self._flight.pop(request_id, None)
        if flight is not None:
            self.cancelled.append(request_id)
            response = Response(request_id, flight.unsent()[0], True, FinishReason.CANCELLED)
            asyncio.get_running_loop().call_soon(flight.listener, response)

    def shutdown(self) -> None:
        for request_id in list(self._flight):
            self.cancel_request(request_id)

    def _wake(self) -> None:
        if self._tick is None and self._flight:
            self._tick = asyncio.get_running_loop().call_later(self._delay, self._step)

    def _step(self) -> None:
        self._tick = None
        self.progress += 1
        try:
            for request_id in list(self._flight)[: self.limits.max_batch_size]:
                if request_id in self._flight:
                    self._advance(request_id, self._flight[request_id])
        finally:  # A listener that raises must not stop the others.
            self._wake()

    def _advance(self, request_id: int, flight: _Flight) -> None:
        reason = flight.step(self.next_token, self.limits.vocab_size)
        final = reason is not FinishReason.NOT_FINISHED
        if final:
            del self._flight[request_id]
        if flight.request.streaming or final:
            tokens, log_probs = flight.unsent()
            flight.listener(Response(request_id, tokens, final, reason, log_probs=log_probs))


class _Flight:
    """One request on its way."""

    def __init__(self, request: Request, valid: Valid, listener: Listener) -> None:
        self.request, self.valid, self.listener = request, valid, listener
        self.generated: list[int] = []
        self.sent = 0

    def step(self, language: NextToken, vocab_size: int) -> FinishReason:
        text, draft = self.valid.text[: self.valid.prompt_len] + self.generated, self.valid.draft_token_ids
        chosen = [
            choose(language, text + draft[:n], vocab_size, self.request.bad_words, self.number(n))
            for n in range(len(draft) + 1)
        ]
        room = self.valid.max_tokens - len(self.generated)
        if draft:
            outcome = verify(draft, chosen, self.request.end_id, room)
        else:
            outcome = decode(chosen[0], self.request.end_id, room)
        self.generated += outcome.token_ids
        return outcome.finish_reason

    def number(self, ahead: int) -> int | None:
        """The random number of the token that is `ahead` of the next one; None for a greedy request."""
        sampling = self.request.sampling
        if sampling.is_greedy or sampling.seed is None:
            return None
        return (sampling.seed + len(self.generated) + ahead) % NUM_SEEDS

    def unsent(self) -> tuple[list[int], list[LogProb] | None]:
        first, tokens = self.sent, self.generated[self.sent :]
        self.sent = len(self.generated)
        if not self.request.return_log_probs:
            return tokens, None
        text = self.valid.text[: self.valid.prompt_len] + self.generated
        places = range(self.valid.prompt_len + first, len(text))
        return tokens, [self._log_prob(text[:place], text[place]) for place in places]

    def _log_prob(self, before: list[int], token_id: int) -> LogProb:
        others = range(self.request.top_log_probs)
        return LogProb(
            scripted_log_prob(before, token_id),
            tuple((other, scripted_log_prob(before, other)) for other in others),
        )
