"""A recorded answer in the tokens of the target, as drafts are measured against it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from math import isfinite
from pathlib import Path

from trtspec.base.digest import digest_of
from trtspec.base.errors import DatasetError
from trtspec.measure.workloads.recorded import Recorded
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
    """True if an end token followed, so that the answer ended by itself."""
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    """Unless it is greedy, token i was drawn with number `seed + i`.

    Without a seed that number is unknown, and a draft draws independently of the target.
    """

    @property
    def steps(self) -> int:
        """The number of steps that the target alone needs for it, without the prompt's own."""
        return len(self.tokens) + self.stopped

    @property
    def digest(self) -> str:
        """Tells it from any other answer."""
        sampling = [getattr(self.sampling, name) for name in _OPTIONS]
        return digest_of([self.prompt, self.tokens, self.stopped, sampling])


def in_tokens(recorded: Recorded, tokenizer: Tokenizer, source: Path) -> RecordedAnswer:
    """Returns a recorded answer in tokens, of which a text is made with the target's tokenizer.

    Raises `DatasetError`, naming `source`, for a text that has none and options that are not known.
    """
    place = f"{source}: {recorded.name}"
    if unknown := sorted(set(recorded.sampling) - set(_OPTIONS)):
        raise DatasetError(place, f"sampling has {unknown[0]}", f"known are {', '.join(_OPTIONS)}")
    prompt, tokens = recorded.prompt_token_ids, recorded.answer_token_ids
    try:
        if not prompt:
            prompt = tuple(tokenizer.encode(recorded.prompt or ""))
        if tokens is None:
            tokens = tuple(tokenizer.encode(recorded.text or "", add_special_tokens=False))
    except UnicodeEncodeError as error:
        half = error.object[error.start]
        raise DatasetError(place, f"its text has half a character, {half!r}") from None
    if not prompt:
        raise DatasetError(place, "the prompt has no tokens")
    for name, number in recorded.sampling.items():
        if not isfinite(number) or (name in _WHOLE and number != int(number)):
            raise DatasetError(place, f"sampling has {name} {number}, which is no number that it can be")
    options = {name: int(n) if name in _WHOLE else n for name, n in recorded.sampling.items()}
    sampling = SamplingConfig(**options)  # type: ignore[arg-type]
    stopped = recorded.finish_reason == "stop"
    return RecordedAnswer(recorded.name, recorded.category, prompt, tokens, stopped, sampling)


def mixed(answers: Iterable[RecordedAnswer]) -> list[RecordedAnswer]:
    """Returns the answers so that every beginning of the list has as much as possible of each category."""
    by_category: dict[str, list[RecordedAnswer]] = {}
    for answer in answers:
        by_category.setdefault(answer.category, []).append(answer)
    places = [
        ((index + 0.5) / len(group), number, answer)
        for number, group in enumerate(by_category.values())
        for index, answer in enumerate(group)
    ]
    return [answer for _, _, answer in sorted(places, key=lambda place: place[:2])]
