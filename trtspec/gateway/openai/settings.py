"""Holds the options that an API server gets at its start."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from trtspec.gateway.origins import EVERYBODY, Origins


@dataclass(frozen=True, slots=True)
class ModelCard:
    """The facts about the model that the API reports, and how it reads answers."""

    names: tuple[str, ...] = ()
    """The names that it tells. It answers to the Triton model's too, and tells that if there are none."""
    reasoning_parser: str | None = None
    """The recipe's `serving.reasoning_parser`; None leaves it to the chat template."""
    has_own_sampling: bool = True
    """True if the model's `generation_config.json` says how answers are sampled that ask for nothing else."""
    max_model_len: int | None = None
    """The most tokens of a prompt and its answer; None where nobody knows."""

    @classmethod
    def from_json(cls, text: str) -> ModelCard:
        values = json.loads(text)
        return cls(**{**values, "names": tuple(values["names"])})

    def to_json(self) -> str:
        return json.dumps(asdict(self))


@dataclass(frozen=True, slots=True)
class ApiSettings:
    """The options that an API server gets at its start."""

    model_name: str
    url: str | None = None
    """The URL of the model. Where it is None, the server is told by lines (`trtspec.gateway.openai.control`)
    where the model is.
    """
    tokenizer: Path | None = None
    """The folder of the model's tokenizer."""
    keys: Path | None = None
    """A file with a key a line, if there is one."""
    max_requests: int = 1024
    """More prompts at once are refused with 429."""
    card: ModelCard = field(default_factory=ModelCard)
    origins: Origins = EVERYBODY

    @classmethod
    def from_json(cls, text: str) -> ApiSettings:
        values = json.loads(text)
        paths = {name: Path(values[name]) for name in ("tokenizer", "keys") if values[name]}
        origins = Origins(values["origins"]["host"], tuple(values["origins"]["allowed"]))
        return cls(**{**values, **paths, "card": ModelCard.from_json(values["card"]), "origins": origins})

    def to_json(self) -> str:
        return json.dumps({**asdict(self), "card": self.card.to_json()}, default=str)
