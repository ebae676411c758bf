"""Maps the flags of a server's command to keys of a recipe."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

from trtspec.recipe.migration.command import OwnFlags, Syntax

Value = str | float | bool
Convert = Callable[[str], Value]

OF_DEPLOY = "trtspec deploy has it"
KEYS_FILE = "trtspec deploy --api-keys takes a file of keys"
PLACES = "recipes name safetensors, from the Hub's cache or a folder"
REPLICAS = "replicas are kubernetes.replicas"
FOREIGN_CODE = "write it in engine.extra_args if you trust the code that comes with the model"
_DRAFTS = "speculation and draft say it"


@dataclass(frozen=True, slots=True)
class FlagKey:
    """The recipe's key for a flag."""

    name: str
    """A dotted key."""
    convert: Convert = str
    """Returns the flag's value as a recipe has it. Raises ValueError, with what is wrong, for a value that
    the recipe cannot have.
    """


@dataclass(frozen=True, slots=True)
class FlagTable:
    """The flags of a server's command that are not passed on unchanged."""

    syntax: Syntax
    """How the server's parser reads words."""
    keys: Mapping[str, FlagKey]
    """The flags that a recipe has a key for."""
    set_elsewhere: Mapping[str, str]
    """The other flags that trtspec sets, with what replaces each."""
    lost: Mapping[str, str] = field(default_factory=dict)
    """The flags that no recipe can have, with the reason."""
    of_drafts: Collection[str] = ()
    """The flags that set the source of drafts."""

    @property
    def sets(self) -> dict[str, str]:
        """The flags that trtspec sets, with what replaces each."""
        said = {flag: f"{key.name} says it" for flag, key in self.keys.items()}
        return {**said, **self.set_elsewhere, **dict.fromkeys(self.of_drafts, _DRAFTS)}

    def told_by(self, own: OwnFlags) -> FlagTable:
        """Returns the table with the syntax of the server's own parser."""
        return replace(self, syntax=self.syntax.told_by(own, {*self.sets, *self.lost}))

    def find_loss(self, flag: str) -> str | None:
        """Returns why a flag cannot be in a recipe; None if it can."""
        return self.set_elsewhere.get(flag) or self.lost.get(flag)
