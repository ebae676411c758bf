"""Holds a recorded answer in the target's tokens, for measuring drafts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from math import isfinite
from pathlib import Path

from trtspec.base.digest import digest_of
from trtspec.base.errors import DatasetError, EngineError
from trtspec.measure.workloads.workload import Recorded
from trtspec.models.source import Source
from trtspec.serving.errors import TokenizerError
from trtspec.serving.executor import SamplingConfig
from trtspec.serving.tokenizer import Tokenizer

_OPTIONS = tuple(option.name for option in fields(SamplingConfig))
_WHOLE = {"top_k", "seed", "min_tokens"}


@dataclass(frozen=True, slots=True)
class RecordedAnswer:
    """The target's answer to a prompt."""

    name: str
    category: str
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    """The answer without an end token."""
    stopped: bool
    """True if an end token ended the answer."""
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    """If the answer was sampled, token i was drawn with number `seed + i`.

    Without a seed that number is unknown, and a draft draws independently of the target.
    """

    @property
    def steps(self) -> int:
        """The number of steps that the target alone needs for it, without the prompt's step."""
        return len(self.tokens) + self.stopped

    @property
    def digest(self) -> str:
        """Identifies the answer."""
        sampling = [getattr(self.sampling, name) for name in _OPTIONS]
        return digest_of([self.prompt, self.tokens, self.stopped, sampling])


def tokenizer_of(target: Source) -> Tokenizer:
    """Returns the target's tokenizer with the end tokens of a served pair, the one that it reports first.

    Raises EngineError for a tokenizer that cannot be served.
    """
    try:
        return Tokenizer.load(target.folder, target.end_ids)
    except TokenizerError as error:
        raise EngineError(error.path, error.problem) from error


def in_tokens(recorded: Sequence[Recorded], tokenizer: Tokenizer, source: Path) -> list[RecordedAnswer]:
    """Returns recorded answers in tokens; the target's tokenizer encodes text.

    Raises `DatasetError`, naming `source`, for text that cannot be encoded and for unknown options.
    """
    is_text = any(answer.answer_token_ids is None for answer in recorded)
    within = tokenizer.within() if is_text else tokenizer
    return [_in_tokens(answer, tokenizer, within, source) for answer in recorded]


def _in_tokens(recorded: Recorded, tokenizer: Tokenizer, within: Tokenizer, source: Path) -> RecordedAnswer:
    """Returns a recorded answer in tokens; `within` encodes its text, which continues the prompt."""
    place = f"{source}: {recorded.name}"
    if unknown := sorted(set(recorded.sampling) - set(_OPTIONS)):
        raise DatasetError(
            place, f"sampling has the unknown option {unknown[0]}", f"use {', '.join(_OPTIONS)}"
        )
    prompt, tokens = recorded.prompt_token_ids, recorded.answer_token_ids
    try:
        if not prompt:
            prompt = tuple(tokenizer.encode(recorded.prompt or ""))
        if tokens is None:
            tokens = tuple(within.encode(recorded.text or "", add_special_tokens=False))
    except UnicodeEncodeError as error:
        half = error.object[error.start]
        raise DatasetError(place, f"its text has half a character, {half!r}") from None
    if not prompt:
        raise DatasetError(place, "the prompt has no tokens")
    for name, number in recorded.sampling.items():
        if not isfinite(number) or (name in _WHOLE and number != int(number)):
            raise DatasetError(place, f"sampling has the invalid value {name} {number}")
    options = {name: int(n) if name in _WHOLE else n for name, n in recorded.sampling.items()}
    sampling = SamplingConfig(**options)  # type: ignore[arg-type]
    stopped = recorded.finish_reason == "stop"
    return RecordedAnswer(recorded.name, recorded.category, prompt, tokens, stopped, sampling)


def mixed(answers: Iterable[RecordedAnswer]) -> list[RecordedAnswer]:
    """Returns the answers in an order in which every prefix of the list mixes the categories evenly."""
    by_category: dict[str, list[RecordedAnswer]] = {}
    for answer in answers:
        by_category.setdefault(answer.category, []).append(answer)
    places = [
        ((index + 0.5) / len(group), number, answer)
        for number, group in enumerate(by_category.values())
        for index, answer in enumerate(group)
    ]
    return [answer for _, _, answer in sorted(places, key=lambda place: place[:2])]
