"""Reads flags, also those of a configuration file, into the keys of a recipe, and notes what was lost."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from trtspec.base import yaml11
from trtspec.base.environment import is_secret
from trtspec.base.errors import TrtspecError
from trtspec.recipe.migration.command import OFF, Option, OwnFlags, Syntax, as_words

_EXTRA = "engine.extra_args"
_POSITIONAL = "the command's model"
_MOST_DIGITS = 18
_CONFIG = "--config"
_BARE_KEY = re.compile(r"([{,]\s*[\w-]+):\s*")

Value = str | float | bool
Convert = Callable[[str], Value]

OF_DEPLOY = "trtspec deploy has it"
KEYS_FILE = "trtspec deploy --api-keys takes a file of keys"
PLACES = "recipes name safetensors, from the Hub's cache or a folder"
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

    def with_beginnings(self, others: Collection[str], earlier: Collection[str] = ()) -> FlagTable:
        """Returns the table of a parser that takes a unique beginning of a flag for it.

        `others` are flags in no table that others begin with, `earlier` those of releases before this one.
        """
        syntax = self.syntax
        names = (*syntax.switches, *syntax.lists, *syntax.aliases, *syntax.aliases.values())
        today = frozenset((*self.sets, *self.lost, *names, *others)).difference(earlier)
        return replace(self, syntax=replace(syntax, begun=(today, frozenset(earlier))))

    def of_parser(self, own: OwnFlags) -> FlagTable:
        """Returns the table with the syntax of the server's own parser."""
        return replace(self, syntax=self.syntax.of_parser(own, {*self.sets, *self.lost}))

    def find_loss(self, flag: str) -> str | None:
        """Returns why a flag cannot be in a recipe; None if it can."""
        return self.set_elsewhere.get(flag) or self.lost.get(flag)


@dataclass(frozen=True, slots=True)
class FlagNote:
    """A line for the user."""

    subject: str
    """A flag, or a key of a recipe."""
    fate: str
    """The words on the subject."""


@dataclass(slots=True)
class FlagReading:
    """The recipe's keys that the flags of a command translate to."""

    tool: str
    """The name of the tool for people."""
    values: dict[str, Any] = field(default_factory=dict)
    """The values of the recipe, by their dotted keys."""
    origins: dict[str, str] = field(default_factory=dict)
    """The flag that each key comes from."""
    notes: list[FlagNote] = field(default_factory=list)
    """The notes for the user."""
    missing: list[FlagNote] = field(default_factory=list)
    """The notes on speculation that the command asks for and the recipe lacks."""
    of_drafts: list[str] = field(default_factory=list)
    """The flags on drafts that are passed on to the server."""
    files: Mapping[str, str] = field(default_factory=dict)
    """The texts of files that earlier lines of the script write, by their names."""
    own_flags: OwnFlags = field(default_factory=dict)
    """The flags of the tool's own parser; none where it was not asked."""

    def set(self, key: str, value: Value | list[str] | dict[int, int], flag: str) -> None:
        """Takes a value for a key; raises TrtspecError for one that only a shell knows."""
        if is_of_shell(str(value)):
            problem = f"{value!r:.80} is a variable of a shell, which does not run here"
            raise TrtspecError(flag, problem, "write its value")
        if key in self.origins:
            self.lose(self.origins[key], f"{flag} comes later and overrides it")
        self.values[key], self.origins[key] = value, flag

    def lose(self, flag: str, reason: str) -> None:
        """Notes why a flag is not in the recipe."""
        self.notes.append(FlagNote(flag, f"left out: {reason}"))

    def miss(self, flag: str, reason: str) -> None:
        """Notes which part of the command's speculation the recipe lacks."""
        self.lose(flag, reason)
        self.missing.append(self.notes[-1])

    def say(self, subject: str, fate: str) -> None:
        """Notes something that the user should know of the recipe."""
        self.notes.append(FlagNote(subject, fate))

    def convert(self, option: Option, key: FlagKey) -> None:
        """Takes a flag for a key, or notes why its value cannot be used."""
        try:
            self.set(key.name, key.convert(option.value or ""), option.written)
        except ValueError as error:
            unknown = is_of_shell(option.value or "")
            shown = f"only a shell knows {option.value!r:.80}: write its value as {key.name}"
            self.lose(option.written, shown if unknown else str(error))

    def take_model(self, word: str) -> None:
        """Takes a word that belongs to no flag for the model; a second one is lost."""
        if not is_of_shell(word) and self.origins.get("target.model") == _POSITIONAL:
            self.lose(word, "a word that belongs to no flag")
        else:
            self.set("target.model", word, _POSITIONAL)

    def take(self, option: Option, flags: FlagTable) -> None:
        """Takes a flag by a tool's table: writes its key, notes why it is lost, or passes it on."""
        if option.name in flags.keys:
            self.convert(option, flags.keys[option.name])
        elif reason := flags.find_loss(option.name.partition(".")[0]):
            self.lose(option.written, reason)
        else:
            self._pass_on(option, flags.syntax)

    def _pass_on(self, option: Option, syntax: Syntax) -> None:
        """Passes a flag on to the server, unless its value may be a secret or is a variable of a shell."""
        value = option.value
        if len(meant := syntax.meant(option.written)) > 1:
            raise TrtspecError(option.written, f"may be {', '.join(meant)}", "write the whole flag")
        if value is not None and is_of_shell(value):
            self.lose(option.written, "its value is a variable of a shell, which does not run here")
        elif value and not is_whole(value) and is_secret(option.name.replace("-", "_"), value):
            self.lose(option.written, "it looks like a secret, and a recipe is read by many")
        else:
            words = [] if value is None else value.split() if option.name in syntax.lists else [value]
            self.values.setdefault(_EXTRA, []).extend([option.written, *words])
            self.origins[_EXTRA] = f"flags of {self.tool} as they are"

    def pass_variable(self, name: str, value: str) -> None:
        """Takes a variable of the server's environment, unless it is a secret or only a shell knows it."""
        if is_of_shell(value) or is_secret(name, value):
            self.lose(name, "a variable that is set where trtspec deploy runs")
        else:
            self.set(f"engine.environment.{name}", value, name)


def document(name: str, reading: FlagReading) -> Mapping[str, Any]:
    """Returns the keys of a YAML file, which the script may write itself.

    Raises TrtspecError for a missing file, or one that no server could read.
    """
    try:
        written = reading.files.get(name.removeprefix("./"))
        text = Path(name).read_text(encoding="utf-8") if written is None else written
        if yaml11.num_aliases(text):
            raise TrtspecError(name, "has a value that stands for another (*name)", "write each value out")
        found = yaml11.load(text)
    except OSError as error:
        repair = "run this where the file is"
        raise TrtspecError(name, f"cannot be read: {error.strerror}", repair) from None
    except (ValueError, RecursionError, yaml11.YAMLError):
        raise TrtspecError(name, "is no YAML", "correct the file") from None
    if not isinstance(found, dict):
        raise TrtspecError(name, "has no keys at its top level", "write the server's arguments as keys")
    return found


def with_config(words: Sequence[str], switches: Collection[str], reading: FlagReading) -> list[str]:
    """Returns the words with those of `--config FILE` before them, as vLLM and SGLang read it.

    The command line comes later and overrides the file. `switches` are the server's flags without a value.
    """
    words = list(words)
    for place, word in enumerate(words):
        flag, has_value, name = word.partition("=")
        if flag == _CONFIG:
            after = place + (1 if has_value else 2)
            name = name if has_value else "".join(words[place + 1 : after])
            values = dict(_flag_of(*item, switches) for item in document(name, reading).items())
            return [*as_words(values), *words[:place], *words[after:]]
    return words


def _flag_of(key: str, value: Any, switches: Collection[str]) -> tuple[str, Any]:
    """Returns a key's flag, and the value of it; False is the flag that turns it off, if there is one."""
    if value is False and (off := f"{OFF}{key.replace('_', '-')}") in switches:
        return off, True
    return f"--{key}", json.dumps(value) if isinstance(value, dict) else value


def is_of_shell(text: str) -> bool:
    """Returns whether only a shell knows a value: it has a variable or a substitution in it."""
    return "$" in text or "`" in text


def is_whole(text: str) -> bool:
    """Returns whether a text is a whole number in the form of all tools and of a recipe."""
    return text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS


def whole(text: str) -> int:
    """Returns a whole number; raises ValueError."""
    if not is_whole(text):
        raise ValueError(f"{text!r:.40} is no whole number")
    return int(text)


def number(text: str) -> float:
    """Returns a number; raises ValueError."""
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{text!r:.40} is no number") from None


def object_of(text: str) -> dict[str, Any] | None:
    """Returns an object of JSON; None for what is none.

    One that has lost its quotes, or has more of them, as shells in shells leave it, is read too.
    """
    text = text.strip("'").replace('\\"', '"')
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = _without_quotes(text)
    return found if isinstance(found, dict) else None


def _without_quotes(text: str) -> object:
    text = _BARE_KEY.sub(r"\1: ", text)
    try:
        return None if yaml11.num_aliases(text) else yaml11.load(text)
    except (ValueError, RecursionError, yaml11.YAMLError):
        return None


_SUFFIXES = {"k": 10**3, "m": 10**6, "K": 2**10, "M": 2**20}


def tokens(text: str) -> int:
    """Returns a number of tokens: 8192, 8k (8000) or 8K (8192), as vLLM reads them; raises ValueError."""
    factor = _SUFFIXES.get(text[-1:])
    number = text[:-1] if factor else text
    try:
        return round(float(number) * factor) if factor else whole(number)
    except (ValueError, OverflowError):
        raise ValueError(f"{text!r:.40} is left to the server; a recipe has a number") from None


def dtype(text: str) -> str:
    """Returns the full name of a dtype; raises ValueError."""
    found = {"half": "float16", "float": "float32", "fp16": "float16", "bf16": "bfloat16"}.get(text, text)
    if found not in ("auto", "float32", "float16", "bfloat16"):
        raise ValueError(f"a recipe has no dtype {text!r:.40}")
    return found


def weights(text: str) -> str:
    """Returns the precision of weights; raises ValueError for one that only the model itself can set."""
    if text.lower() in ("fp8", "w8a8_fp8", "modelopt_fp8"):
        return "fp8"
    raise ValueError(f"{text!r:.40} is read from the model's own configuration, where it is published so")


def kv_cache(text: str) -> str:
    """Returns the precision of a KV cache; raises ValueError."""
    if text.lower() in ("auto", "bfloat16", "float16", "bf16"):
        return "none"
    if text.lower() in ("fp8", "fp8_e4m3"):
        return "fp8"
    raise ValueError(f"a recipe's KV cache is fp8 (e4m3) or the model's dtype, not {text!r:.40}")


def switch(text: str) -> bool:
    """Returns whether a switch is on; one without a value is on."""
    return text.lower() != "false"
