"""A draft's own choice after each beginning of an answer, from one pass over it: teacher forcing."""

from __future__ import annotations

from pathlib import Path

import torch

from trtspec.serving.executors.torch.cache import Cache
from trtspec.serving.executors.torch.engine import read_config
from trtspec.serving.executors.torch.model import Decoder
from trtspec.serving.executors.torch.sampler import TokenChoice, choose
from trtspec.serving.executors.torch.spans import Span
from trtspec.serving.executors.torch.weights import read_tensors
from trtspec.train.tune.answer import RecordedAnswer
from trtspec.train.tune.replay import SILENCE, Choices

ROWS = 256
"""How many tokens go through the model at once; the logits of each are a row of the whole vocabulary."""
_SLOT = 1


def chosen_of(logits: torch.Tensor, answer: RecordedAnswer, place: int) -> list[int]:
    """Returns the tokens that rows of logits choose for an answer's tokens, the first of which is `place`.

    With sampling they are drawn with the numbers that the answer was drawn with.
    """
    sampling, after = answer.sampling, list(answer.tokens[place : place + len(logits) - 1])
    number = (sampling.seed or 0) + place
    return choose(logits, [TokenChoice(sampling, number, place, None, lambda _: [], after)])


class Forced:
    """A draft engine of the torch backend, asked for what it would say if the text before were the answer's.

    With sampling it draws with the numbers that the answer was drawn with, as it does beside its target. What
    a target with `vocab_size` tokens lacks ends a draft, and so does the first of `end_ids`. Raises
    `EngineLoadError`.
    """

    def __init__(self, engine_dir: Path, device: str, vocab_size: int, end_ids: tuple[int, ...]) -> None:
        config, where = read_config(engine_dir), torch.device(device)
        self._cache = Cache(config, where)
        self._model = Decoder(config, read_tensors(engine_dir, config, where), self._cache, where)
        self._most = config.limits.max_seq_len
        self._own_size, self._vocab_size, self._ends = config.vocab_size, vocab_size, set(end_ids[:1])

    @torch.inference_mode()
    def choices(self, answer: RecordedAnswer) -> Choices:
        """Returns the choices; the last is what it says behind the answer, if that ended by itself."""
        text = [*answer.prompt, *answer.tokens]
        first = len(answer.prompt) - 1
        end = len(text) if answer.stopped else len(text) - 1
        known = next((place for place, token in enumerate(text) if token >= self._own_size), len(text))
        end = min(end, known, self._most)
        chosen: list[int] = []
        for start in range(0, end, ROWS):
            rows = text[start : min(start + ROWS, end)]
            wanted = [row for row in range(len(rows)) if start + row >= first]
            logits = self._model.forward(rows, [Span(_SLOT, start, len(rows))], wanted)
            if wanted:
                chosen += chosen_of(logits, answer, len(chosen))
        self._cache.drop(_SLOT)
        return [SILENCE if self._ends_draft(token) else token for token in chosen]

    def _ends_draft(self, token: int) -> bool:
        return token >= self._vocab_size or token in self._ends
