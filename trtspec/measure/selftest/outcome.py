"""Holds the outcome of a check of the self-test in plain types, also in NVIDIA's image."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any


class Ruling(str, Enum):
    """The three verdicts of a check."""

    OK = "ok"
    DIFFERS = "differs"
    NOT_TRIED = "not tried"


class Differs(Exception):
    """Something differs from what trtspec relies on; `str()` says what was expected and what was found."""


class NotTried(Exception):
    """A check has nothing to try here; `str()` is the reason."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The verdict of one check on one build."""

    build: str
    """The name of the build, such as "bf16"; "machine" for what is checked before anything is built."""
    check: str
    rule: str
    """The rule: a sentence that must be true."""
    source: str
    """The source of the rule."""
    state: Ruling
    found: str
    """The numbers found, the difference, or the reason why nothing was tried."""
    seconds: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """Returns it for JSON."""
        return asdict(self) | {"state": self.state.value}

    @classmethod
    def of_dict(cls, values: dict[str, Any]) -> Outcome:
        """Reads what `as_dict` returned."""
        return cls(**{**values, "state": Ruling(values["state"])})


def expect(found: object, expected: object, where: str) -> None:
    """Raises `Differs` if both are not equal; `where` names what they are."""
    if found != expected:
        raise Differs(f"{where}: expected {expected}, found {found}")
