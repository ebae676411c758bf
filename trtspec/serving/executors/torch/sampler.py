"""The sampler, which chooses tokens from logits.

The order is that of TensorRT-LLM: the guide (`batch_manager/guidedDecoder.cpp`), then as in its decoding
layers embedding bias, temperature, penalties, bans, min-p, top-k, top-p. Random numbers depend only on the
number of the draw and the token id. Two engines that draw with the same number get the same noise, so a draft
proposes what its target is likely to sample (Daliri et al. 2024, "Coupling without communication and
drafter-invariant speculative decoding", arXiv 2408.07978). Every token is still the target's own sample.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trtspec.serving.executor import LEAST_LOG_PROB, LogProb, SamplingConfig
from trtspec.serving.executors.torch.follower import BROKEN, NOTHING, Masks


class Bias:
    """Adds a bias to the logits of some tokens, on the `device` of the logits."""

    def __init__(self, bias: Mapping[int, float], device: torch.device) -> None:
        self._token_ids = torch.tensor(list(bias), dtype=torch.int64, device=device)
        self._values = torch.tensor(list(bias.values()), dtype=torch.float32, device=device)

    def add(self, logits: Tensor) -> None:
        """Adds the bias to `logits`, float32 `[rows, vocab_size]`, in place."""
        logits[:, self._token_ids] += self._values


class Penalties:
    """The penalties for repetition, presence and frequency, as in TensorRT-LLM, by the first `read` tokens.

    Each token of the sequence is counted once, on the `device` of the logits. Only logits of its tokens are
    changed, since a vocabulary may be a hundred times as large.
    """

    def __init__(self, sampling: SamplingConfig, vocab_size: int, device: torch.device) -> None:
        self._repetition = sampling.repetition_penalty or 1.0
        self._presence, self._frequency = sampling.presence_penalty or 0.0, sampling.frequency_penalty or 0.0
        self.read = 0
        self._counts = torch.zeros(vocab_size, device=device)
        self._seen = torch.empty(0, dtype=torch.int64, device=device)

    def add(self, token_ids: list[int]) -> None:
        """Counts the next tokens of the sequence."""
        self.read += len(token_ids)
        new = self._tensor(token_ids)
        # A token that is twice among the new ones is in `_seen` twice, which does no harm.
        self._seen = torch.cat([self._seen, new[self._counts[new] == 0]])
        self._counts.index_add_(0, new, self._counts.new_ones(len(token_ids)))

    def apply(self, logits: Tensor, draft: list[int]) -> None:
        """Changes `logits`, float32 `[len(draft) + 1, vocab_size]`, in place; row j follows `draft[:j]`.

        The draft, which may be rejected, counts only in its rows. Forbidden logits, which are -inf, stay so.
        """
        seen = torch.cat([self._seen, self._tensor(draft)]) if draft else self._seen
        counts = self._counts[seen].repeat(len(draft) + 1, 1)
        for row, token_id in enumerate(draft, 1):
            counts[row:] += seen == token_id
        values, is_counted = logits.index_select(1, seen), counts > 0
        is_forbidden = values.isneginf()
        if self._repetition != 1:
            punished = torch.where(values < 0, values * self._repetition, values / self._repetition)
            values = torch.where(is_counted, punished, values)
        values -= counts.mul_(self._frequency).add_(is_counted, alpha=self._presence)
        # An overflow of a penalty would make them NaN, which argmax prefers to any number.
        values.masked_fill_(is_forbidden, float("-inf"))
        logits.index_copy_(1, seen, values)

    def _tensor(self, token_ids: list[int]) -> Tensor:
        return torch.tensor(token_ids, dtype=torch.int64, device=self._counts.device)


WORD = 2**64
GOLDEN = 0x9E3779B97F4A7C15


@dataclass(frozen=True, slots=True)
class TokenChoice:
    """The choice of tokens for `rows` consecutive rows of logits. Row j comes after `draft[:j]`."""

    sampling: SamplingConfig
    number: int
    """The number of the first row's draw."""
    generated: int
    """The number of tokens that the request already has."""
    end_id: int | None
    history: Callable[[int], list[int]]
    """Called with n, it returns the last n tokens of the sequence."""
    draft: list[int]
    bad_words: Sequence[Sequence[int]] = ()
    bias: Bias | None = None
    masks: Masks | None = None
    """The masks of the guide for the first rows. Later rows have none."""
    penalties: Penalties | None = None
    """The penalties by all tokens of the sequence."""

    @property
    def rows(self) -> int:
        return len(self.draft) + 1

    @property
    def is_plain(self) -> bool:
        """True if the token is the one with the largest logit."""
        return (
            self.sampling.is_greedy and not self.changes_logits and self.bias is None and self.masks is None
        )

    @property
    def changes_logits(self) -> bool:
        """True if `change` has an effect."""
        return self.penalties is not None or bool(self.bad_words) or self._forbids_end

    @property
    def _forbids_end(self) -> bool:
        return (self.sampling.min_tokens or 0) > self.generated and self.end_id not in (None, -1)

    def mask(self, logits: Tensor) -> None:
        """Sets `logits` `[rows, vocab_size]` of tokens that the guide forbids to -inf, in place."""
        if self.masks is not None:
            allowed = torch.from_numpy(self.masks.allowed).to(logits.device)
            logits[: len(allowed)].masked_fill_(~allowed, float("-inf"))

    def change(self, logits: Tensor) -> None:
        """Applies penalties, bad words and `min_tokens` to `logits` `[rows, vocab_size]`, in place."""
        if self.penalties is not None:
            self.penalties.apply(logits, self.draft)
        if self.bad_words:
            self._ban(logits)
        if self._forbids_end:
            logits[: (self.sampling.min_tokens or 0) - self.generated, self.end_id] = float("-inf")

    def _ban(self, logits: Tensor) -> None:
        """Bans, in each row, the tokens that would complete a bad word with the tokens before it."""
        before = self.history(max(map(len, self.bad_words)) - 1)
        for row in range(self.rows):
            text = before + self.draft[:row]
            logits[row, [word[-1] for word in self.bad_words if _ends_with(text, word[:-1])]] = float("-inf")


def choose(logits: Tensor, choices: list[TokenChoice], names: Tensor | None = None) -> list[int]:
    """Returns a token for each row of `logits` `[rows, vocab_size]`, which are those of all choices in order.

    If a guide and the bans leave no token, the row chooses `NOTHING`. If its logits have NaN, a positive
    infinity or no other number than -inf, it chooses `BROKEN`. `names` int64 `[vocab_size]` are the
    ids for the noise of tokens; None stands for their own.
    """
    # On CPUs `max` is faster than `argmax`, and the largest number is NaN if any is.
    largest, likeliest = logits.max(-1)
    if not all(choice.is_plain for choice in choices):
        likeliest = torch.tensor(_chosen(logits, choices, names), device=logits.device)
    return torch.where(largest.isfinite(), likeliest, BROKEN).tolist()


def _chosen(logits: Tensor, choices: list[TokenChoice], names: Tensor | None) -> list[int]:
    logits = logits.to(torch.float32, copy=True)
    first = 0
    for choice in choices:
        choice.mask(logits[first : first + choice.rows])
        if choice.bias is not None:
            choice.bias.add(logits[first : first + choice.rows])
        first += choice.rows
    heat = [_temperature(choice.sampling) for choice in choices for _ in range(choice.rows)]
    if any(degree != 1 for degree in heat):
        logits /= torch.tensor(heat, device=logits.device)[:, None]
    sampled: list[int] = []
    numbers: list[int] = []
    first = 0
    for choice in choices:
        if choice.changes_logits:
            choice.change(logits[first : first + choice.rows])
        if not choice.sampling.is_greedy:
            sampled += range(first, first + choice.rows)
            numbers += range(choice.number, choice.number + choice.rows)
        first += choice.rows
    tokens = _greedy(logits)
    if sampled:
        configs = [choice.sampling for choice in choices for _ in range(choice.rows)]
        drawn = _sample(logits[sampled], [configs[row] for row in sampled], numbers, names)
        for row, token in zip(sampled, drawn, strict=True):
            tokens[row] = token
    return tokens if all(choice.masks is None for choice in choices) else _without_nothing(logits, tokens)


def _without_nothing(logits: Tensor, tokens: list[int]) -> list[int]:
    chosen = logits.gather(1, torch.tensor(tokens, device=logits.device)[:, None])
    is_nothing = chosen.flatten().isneginf().tolist()
    return [NOTHING if nothing else token for token, nothing in zip(tokens, is_nothing, strict=True)]


def log_probs(logits: Tensor, tokens: list[int], widths: list[int]) -> list[LogProb]:
    """Returns the logarithm of softmax of `logits` `[rows, vocab_size]` at each row's token, in float32.

    Each has as many likeliest tokens of its row as its width.
    """
    logits = logits.float()
    total = logits.logsumexp(-1, keepdim=True)
    chosen = logits.gather(1, torch.tensor(tokens, device=logits.device)[:, None])
    values: list[float] = (chosen - total).clamp_min(LEAST_LOG_PROB).flatten().tolist()
    widest = min(max(widths), logits.shape[1])
    if not widest:
        return [LogProb(value) for value in values]
    likeliest, token_ids = logits.topk(widest)
    tops = zip(token_ids.tolist(), (likeliest - total).clamp_min(LEAST_LOG_PROB).tolist(), strict=True)
    return [
        LogProb(value, tuple(zip(ids[:width], own[:width], strict=True)))
        for value, (ids, own), width in zip(values, tops, widths, strict=True)
    ]


def noise(numbers: list[int], token_ids: Tensor) -> Tensor:
    """Returns standard Gumbel noise, float32 `[rows, ids]`, for `token_ids` int64 `[rows or 1, ids]`.

    It is SplitMix64 (Steele, Lea, Flood 2014): the state is the mixed number of the draw, and the step is the
    token id. Integers wrap at 64 bits in PyTorch. A shift to the right copies the sign, which a mask removes.
    """
    keys = [_signed(_mix(number * GOLDEN % WORD)) for number in numbers]
    bits = token_ids * _signed(GOLDEN) + torch.tensor(keys, device=token_ids.device)[:, None]
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        bits = (bits ^ _shifted(bits, shift)).mul_(_signed(factor))
    bits = _shifted(bits ^ _shifted(bits, 31), 11)
    uniform = bits.double().add_(0.5).mul_(2.0**-53)
    return uniform.log_().neg_().log_().neg_().float()


def _ends_with(text: list[int], tokens: Sequence[int]) -> bool:
    return len(tokens) <= len(text) and text[len(text) - len(tokens) :] == list(tokens)


def _greedy(logits: Tensor) -> list[int]:
    tokens: list[int] = logits.argmax(-1).tolist()
    return tokens


def _temperature(sampling: SamplingConfig) -> float:
    return 1.0 if sampling.is_greedy or sampling.temperature is None else sampling.temperature


def _sample(
    logits: Tensor, configs: list[SamplingConfig], numbers: list[int], names: Tensor | None
) -> list[int]:
    """Returns the tokens of largest logit + noise that pass the filters (the Gumbel-max trick)."""
    vocab_size, device = logits.shape[1], logits.device
    if any(config.min_p for config in configs):
        least = torch.tensor([config.min_p or 0.0 for config in configs], device=device).log()[:, None]
        logits = logits.masked_fill(logits < logits.amax(-1, keepdim=True) + least, float("-inf"))
    widths = [_width(config, vocab_size) for config in configs]
    drawn: dict[int, int] = {}
    for width in {*widths}:
        rows = [row for row, other in enumerate(widths) if other == width]
        part, own = logits[rows], [numbers[row] for row in rows]
        picked = _draw(part, [configs[row] for row in rows], own, width, names)
        drawn |= zip(rows, picked, strict=True)
    return [drawn[row] for row in range(len(configs))]


def _width(config: SamplingConfig, vocab_size: int) -> int:
    """Returns the number of likeliest tokens that top-k and top-p need sorted; 0 for none."""
    if config.top_k and config.top_k < vocab_size:
        return config.top_k
    return vocab_size if (config.top_p or 1.0) < 1 else 0


def _draw(
    logits: Tensor, configs: list[SamplingConfig], numbers: list[int], width: int, names: Tensor | None
) -> list[int]:
    """Returns tokens drawn from the `width` likeliest of each row; 0 stands for all, unsorted."""
    if not width:
        every = torch.arange(logits.shape[1], device=logits.device) if names is None else names
        return _greedy(logits + noise(numbers, every[None]))
    values, token_ids = logits.topk(width)
    before = values.softmax(-1).cumsum(-1).roll(1, -1)
    before[:, 0] = 0
    top_p = torch.tensor([config.top_p or 1.0 for config in configs], device=logits.device)
    values = values.masked_fill(before >= top_p[:, None], float("-inf"))
    own = token_ids if names is None else names[token_ids]
    winners = (values + noise(numbers, own)).argmax(-1, keepdim=True)
    return list(token_ids.gather(1, winners).flatten().tolist())


def _mix(word: int) -> int:
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 % WORD
    word = (word ^ word >> 27) * 0x94D049BB133111EB % WORD
    return word ^ word >> 31


def _signed(word: int) -> int:
    return word - WORD if word >= WORD // 2 else word


def _shifted(bits: Tensor, places: int) -> Tensor:
    """Returns the bits shifted to the right, with zeros from the left."""
    return bits.bitwise_right_shift(places).bitwise_and_(2 ** (64 - places) - 1)
