"""Describes a program whose command lines are read, how it is found among words, and the words before it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from trtspec.recipe.gpus import GpuProduct
from trtspec.recipe.migration.reading import FlagReading
from trtspec.recipe.migration.script import ASSIGNMENT, SHELL

_INTERPRETERS = re.compile(r"python[0-9.]*\Z")
_VARIABLE, _VOLUME, _MOUNT = ("-e", "--env"), ("-v", "--volume"), "--mount"
_NAME = "--name"  # of a container, which may be that of the program in it.
_MODELS = ("target.model", "draft.model")
_LONGEST, _ENVIRONMENT = "engine.max_seq_len", "engine.environment."


@dataclass(frozen=True, slots=True)
class OwnParser:
    """The parser of a server, which lists its flags if the server is installed."""

    program: str
    """The program whose Python has the server."""
    parser: str
    """The class of an argparse parser, or a command of click, `module:name`."""
    adds: str | None = None
    """The function that gives an argparse parser the server's flags, `module:name`; None for a command of
    click.
    """


@dataclass(frozen=True, slots=True)
class LongerTexts:
    """A variable of a server that then starts for longer sequences than a model was made for."""

    variable: str
    values: frozenset[str]
    """The values that turn it on, in lower case."""
    override: str
    """The server's flag that overrides the model's own length, in its `config.json`."""

    def are_allowed(self, environment: Mapping[str, str]) -> bool:
        return environment.get(self.variable, "").strip().lower() in self.values


@dataclass(frozen=True, slots=True)
class MigrationTool:
    """A program whose command becomes a recipe."""

    name: str
    """The program's name for people."""
    backend: str
    """The backend of a recipe that the program is."""
    starts: tuple[tuple[str, ...], ...]
    """The words at the start of its command, such as `vllm serve`, unless it names an image."""
    read: Callable[[Sequence[str], FlagReading], None]
    """Reads the words after the start."""
    images: tuple[str, ...] = ()
    """The names of container images that run the program, and that its command may begin with."""
    serves: str | None = None
    """The words for its default of requests at once, such as "256 requests at once"."""
    num_tokens: Callable[[GpuProduct | None], int] | None = None
    """Returns the default of tokens in an iteration, on a GPU or without one."""
    finish: Callable[[FlagReading], None] | None = None
    """Writes into the recipe what follows only from all commands of a text together."""
    own_parser: OwnParser | None = None
    """The parser to ask for the flags, instead of trtspec's own list."""
    longer: LongerTexts | None = None
    """The variable that trtspec does not follow: it refuses longer sequences."""
    is_part: bool = False
    """True if several such commands in a text are one recipe together."""

    def begins(self, words: Sequence[str]) -> tuple[int, int] | None:
        """Returns the positions of the tool's name among the words, and of its first own word."""
        for place in range(len(words)):
            for start in self.starts:
                found = (PurePosixPath(words[place]).name, *words[place + 1 : place + len(start)])
                if found == start and words[place - 1 : place] != [_NAME]:
                    return place, place + len(start)
        for place, word in enumerate(words):
            is_image = not ASSIGNMENT.match(word) and any(image in word for image in self.images)
            if is_image and _are_of_server(words[place + 1 :]):
                return place, place + 1 + (words[place + 1 : place + 2] == ["serve"])
        return None


def _are_of_server(words: Sequence[str]) -> bool:
    """Returns whether the words after an image are its server's, and not another program with its own."""
    first, second = (*words[:2], "", "")[:2]
    is_other = SHELL.fullmatch(first) or _INTERPRETERS.match(first) or first.endswith((".sh", ".py"))
    is_model = "/" in first or first == "serve" or second.startswith("--")
    return first.startswith("-") or (is_model and not is_other)


def read_prefix(words: Sequence[str], reading: FlagReading) -> None:
    """Notes the words before a tool's name. Their values may be secrets and are not shown."""
    words = [word for word in words if not _INTERPRETERS.match(PurePosixPath(word).name)]
    words = [part for word in words for part in _parted(word)]
    starts = [word for word in words if not (ASSIGNMENT.match(word) or word.startswith("-"))]
    for option, value in zip(["", *words], words, strict=False):
        if ASSIGNMENT.match(value) and (option in _VARIABLE or not option.startswith("-")):
            reading.pass_variable(*value.split("=", 1))
    if starts:
        what = "trtspec deploy starts servers and containers itself"
        reading.lose(" ".join(starts[:2]) + (" …" if len(starts) > 2 else ""), what)


def _parted(word: str) -> list[str]:
    """Returns `--env=NAME=value` as the two words that it stands for, and any other word as it is."""
    return word.split("=", 1) if word.partition("=")[0] in _VARIABLE else [word]


def tell_longer(tool: MigrationTool, reading: FlagReading) -> None:
    """Notes that trtspec refuses a length that the command allows with a variable."""
    longer, values = tool.longer, reading.values
    if longer is None or _LONGEST not in values:
        return
    name = longer.variable
    if longer.are_allowed({name: str(values.get(f"{_ENVIRONMENT}{name}", ""))}):
        fate = f"trtspec keeps to the model's own length and refuses a longer {_LONGEST} all the same"
        why = "text beyond the model's positions is wrong"
        reading.say(name, f"{fate}, because {why}; {longer.override} is the way to another length")


def outside(words: Sequence[str], reading: FlagReading) -> None:
    """Writes the models' folders by their paths on this machine, if a container has them elsewhere.

    Raises TrtspecError for a path with a variable that only a shell knows.
    """
    for here, inside in _mounts(words):
        for key in _MODELS:
            place = str(reading.values.get(key, ""))
            if place.startswith("/") and PurePosixPath(place).is_relative_to(inside):
                folder = str(PurePosixPath(here) / PurePosixPath(place).relative_to(inside))
                reading.set(key, folder, reading.origins.pop(key))
                reading.say(key, f"{place} of the container is {folder} here")


def _mounts(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yields the folders of this machine that a container sees, each with its path there."""
    for word, following in zip(words, [*words[1:], ""], strict=True):
        option, has_value, value = word.partition("=")
        value = value if has_value else following
        parts = value.split(":")
        if option in _VOLUME and len(parts) > 1 and parts[0].startswith(("/", ".", "~", "$")):
            yield parts[0], parts[1]
        elif option == _MOUNT:
            fields = dict(field.partition("=")[::2] for field in value.split(","))
            here, inside = fields.get("source", fields.get("src")), fields.get("target", fields.get("dst"))
            if here and inside:
                yield here, inside
