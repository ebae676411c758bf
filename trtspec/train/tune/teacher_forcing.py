"""Computes a draft's choice after each prefix of an answer in one pass: teacher forcing."""

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
"""The tokens of one pass; each has a row of logits for the whole vocabulary."""
_SLOT = 1


def chosen_of(logits: torch.Tensor, answer: RecordedAnswer, place: int) -> list[int]:
    """Returns the tokens chosen by rows of logits for an answer's tokens from `place` on.

    Sampling uses the same random numbers as the answer.
    """
    sampling, after = answer.sampling, list(answer.tokens[place : place + len(logits) - 1])
    number = (sampling.seed or 0) + place
    return choose(logits, [TokenChoice(sampling, number, place, None, lambda _: [], after)])


class TeacherForcing:
    """A draft engine of the torch backend that continues prefixes of an answer.

    Sampling uses the same random numbers as the answer, as in a served pair. A token beyond the target's
    `vocab_size`, or the first of `end_ids`, ends a draft. Raises `EngineLoadError`.
    """

    def __init__(self, engine_dir: Path, device: str, vocab_size: int, end_ids: tuple[int, ...]) -> None:
        config, where = read_config(engine_dir), torch.device(device)
        self._cache = Cache(config, where)
        self._model = Decoder(config, read_tensors(engine_dir, config, where), self._cache, where)
        self._most = config.limits.max_seq_len
        self._own_size, self._vocab_size, self._ends = config.vocab_size, vocab_size, set(end_ids[:1])

    @torch.inference_mode()
    def choices(self, answer: RecordedAnswer) -> Choices:
        """Returns the choices; the last one follows the answer, if an end token ended that."""
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
        return [SILENCE if token >= self._vocab_size or token in self._ends else token for token in chosen]
