"""Translates a tool's flags for drafts into a recipe's method, draft and K."""

from __future__ import annotations

from dataclasses import dataclass, field

from trtspec.methods.table import METHODS
from trtspec.recipe.migration.flag_table import Value
from trtspec.recipe.migration.reading import FlagReading
from trtspec.serving.drafters.source import DRAFT_MODEL


@dataclass(slots=True)
class DraftFlags:
    """The flags of a tool for drafts; None if the command has none."""

    reading: FlagReading
    method: str | None = None
    method_flag: str = ""
    model: str | None = None
    model_flag: str = ""
    length: int | None = None
    length_flag: str = ""
    others: dict[str, tuple[Value, str]] = field(default_factory=dict)
    """The value and the flag of each further key that only has an effect with this method or a draft."""

    def carry(self) -> None:
        """Writes the keys into the recipe. If no recipe has the method, it notes all flags as lost."""
        reading, method = self.reading, self.method
        if method is None and self.model is None and self.length is None and not self.others:
            return
        if method is None:
            method = _by_name(self.model) if self.model else None
        if problem := self._problem(method):
            for flag in dict.fromkeys(flag for flag in self._flags() if flag):
                reading.miss(flag, problem)
            return
        assert method is not None
        reading.set("speculation.method", method, self.method_flag or self.model_flag)
        if METHODS[method].has_model and self.model:
            reading.set("draft.model", self.model, self.model_flag)
        elif self.model and self.model != reading.values.get("target.model"):
            reading.miss(self.model_flag, f"{method} has no draft model")
        if self.length is not None:
            reading.set("speculation.max_draft_len", self.length, self.length_flag)
        for key, (value, flag) in self.others.items():
            self._other(key, value, flag, method)

    def _other(self, key: str, value: Value, flag: str, method: str) -> None:
        options = METHODS[method].model_fields
        section, _, last = key.rpartition(".")
        if section == "speculation.method" and last not in options:
            tell = self.reading.miss if value is True else self.reading.lose
            tell(flag, f"{method} has no {last}")
        elif section.startswith("draft") and not METHODS[method].has_model:
            self.reading.lose(flag, f"{method} has no draft model")
        else:
            self.reading.set(key, value, flag)

    def _problem(self, method: str | None) -> str | None:
        if method is None:
            return "it names no source of drafts"
        if method not in METHODS:
            return f"a recipe has no method {method}; it has {', '.join(METHODS)}"
        if METHODS[method].has_model and not self.model:
            return f"{method} needs a model, and the command names none"
        return None

    def _flags(self) -> list[str]:
        others = [flag for _, flag in self.others.values()]
        return [self.method_flag, self.model_flag, self.length_flag, *others]


def _by_name(model: str) -> str:
    """Returns the method that a model is for, by its name."""
    lower = model.lower().replace("eagle-3", "eagle3")
    heads = (name for name, method in METHODS.items() if method.is_head and method.has_model)
    return next((name for name in heads if name in lower), DRAFT_MODEL.kind)
