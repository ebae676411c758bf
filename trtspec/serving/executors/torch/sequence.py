"""The sequences of requests in the engine, and the scheduler of their rows. No I/O."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from trtspec.serving.executor import FinishReason, LogProb, Request, Response
from trtspec.serving.executors.torch.follower import GuidedText
from trtspec.serving.executors.torch.sampler import Bias, Penalties
from trtspec.serving.executors.validation import Valid
from trtspec.serving.guides.compiler import Grammar


class EngineSequence:
    """A sequence of tokens: the first `prompt_len` of `text`, and the generated ones in `new`.

    `text` may grow meanwhile, but is not read beyond the prompt. `seed` is the number of the first token's
    draw. Without a `grammar` the sequence is not guided.
    """

    def __init__(
        self, request_id: int, request: Request, valid: Valid, seed: int, grammar: Grammar | None = None
    ) -> None:
        self.request_id, self.sampling, self.end_id = request_id, request.sampling, request.end_id
        self.text, self.prompt_len, self.draft_token_ids = valid.text, valid.prompt_len, valid.draft_token_ids
        self.max_tokens, self.seed = valid.max_tokens, seed
        self.bad_words, self.embedding_bias = request.bad_words, request.embedding_bias
        self.bias: Bias | None = None
        """None until it is first applied."""
        self.guided: GuidedText | None = None
        if grammar is not None:
            self.guided = GuidedText(request, grammar, valid.text, valid.prompt_len)
        self.new: list[int] = []
        self.penalties: Penalties | None = None
        """None until they are first applied."""
        self.log_probs: list[LogProb] | None = [] if request.return_log_probs else None
        """Those of `new`; None if the request has no `return_log_probs`."""
        self.top_log_probs = request.top_log_probs
        self._is_verification = bool(valid.draft_token_ids)
        self.slot = -1
        self.computed = 0
        """The number of tokens, from the first, that the cache holds."""
        self.reused = 0
        """The number of tokens that the cache held when the sequence began."""
        self._streaming, self._sent = request.streaming, 0

    @property
    def length(self) -> int:
        return self.prompt_len + len(self.new)

    @property
    def longest(self) -> int:
        """The largest number of tokens that the cache needs to hold."""
        return self.prompt_len + (len(self.draft_token_ids) or self.max_tokens)

    @property
    def room(self) -> int:
        """The number of tokens that may still be generated."""
        return self.max_tokens - len(self.new)

    @property
    def num_endless(self) -> int:
        """The number of next tokens that may not be an end token; 0 or less for none."""
        return (self.sampling.min_tokens or 0) - len(self.new)

    @property
    def missing(self) -> int:
        """The number of tokens that the cache lacks, the draft included."""
        return self.length - self.computed + len(self.draft_token_ids)

    def tokens(self, start: int, end: int) -> list[int]:
        """Returns the tokens from `start` to `end` of the prompt and `new` together, without other copies."""
        prompt_len = self.prompt_len
        if start >= prompt_len:
            return self.new[start - prompt_len : end - prompt_len]
        if end <= prompt_len:
            return self.text[start:end]
        return self.text[start:prompt_len] + self.new[: end - prompt_len]

    def history(self, last: int) -> list[int]:
        """Returns a copy of the `last` tokens."""
        return self.tokens(max(0, self.length - last), self.length)

    def response(self, reason: FinishReason) -> Response | None:
        """Returns the response to send now; None if there is none."""
        final = reason is not FinishReason.NOT_FINISHED
        if not final and not self._streaming:
            return None
        new = self.new[self._sent :]
        log_probs = None if self.log_probs is None else self.log_probs[self._sent :]
        self._sent = len(self.new)
        # A guide may have cut the draft.
        verified = len(self.draft_token_ids) if self._is_verification else None
        return Response(self.request_id, new, final, reason, None, log_probs, verified, self.reused)


# The rows of a step with prompts, which all others wait for. All rows of a step share one reading of the
# weights. With enough rows the products take longer than the reading. Then each row costs the same, and
# larger steps only delay others. Enough is half the operations that the device makes while it reads a byte,
# times the bytes of a weight: 16 to 70 rows on CPUs (2 cores to 100, float32), 300 on an H100 (990 TFLOP/s
# and 3.35 TB/s, bfloat16). These are several times that.
MAX_ROWS = {"cpu": 256, "cuda": 2048}

# The largest number of rows of one sequence in one step, which bounds its mask: each row has all positions.
CHUNK = 512


@dataclass(frozen=True, slots=True)
class Work:
    """The new rows of a sequence in a step."""

    sequence: EngineSequence
    rows: int
    """The number of new rows: tokens that the cache lacks, then the draft."""
    choices: int
    """The last rows with logits, one for each prefix of the draft; 0 if the chunk does not end the prompt."""


@dataclass(frozen=True, slots=True)
class StepScheduler:
    """Fills each step with rows, those of decoding sequences first.

    A decoding sequence has one row or a verification. All of these are in the step, since they are few.
    Prompts share the remaining rows, in chunks, first come, first served. They get at least a quarter of
    `max_rows`, and at least as many as the decoding sequences, so that long drafts of many sequences do not
    delay the first tokens of others.
    """

    max_rows: int
    """The number of rows that fill a step. A step has more if prompts would get too few."""
    short: int
    """A sequence that lacks at most this many tokens is decoding."""

    def schedule(self, running: Iterable[EngineSequence]) -> list[Work]:
        """Returns the work of a step, sorted by rows and then by length: neighbours share attention."""
        works, prompts = [], []
        for sequence in running:
            if sequence.missing <= self.short:
                works.append(Work(sequence, sequence.missing, len(sequence.draft_token_ids) + 1))
            else:
                prompts.append(sequence)
        decoding = sum(work.rows for work in works)
        budget = max(self.max_rows - decoding, self.max_rows // 4, decoding)
        for sequence in prompts:
            rows, choices, most = sequence.missing, len(sequence.draft_token_ids) + 1, min(budget, CHUNK)
            if rows > most:
                # The rows with logits stay together, in the step that finishes the prompt.
                rows, choices = min(most, rows - choices), 0
            budget -= rows
            if rows:
                works.append(Work(sequence, rows, choices))
        return sorted(works, key=lambda work: (work.rows, work.sequence.computed))
