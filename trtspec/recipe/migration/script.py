"""Reads scripts as people paste them, Compose files and Kubernetes manifests: the commands in them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from trtspec.base import yaml11
from trtspec.base.errors import TrtspecError
from trtspec.recipe.migration.command import closing, split

ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_COMMENTS = re.compile(r"^[ \t]*#.*(?:\n|\Z)", re.MULTILINE)
_PROMPT = re.compile(r"^[ \t]*\$ ", re.MULTILINE)
_VARIABLE = re.compile(r"\$(?:\{(?P<braced>\w+)(?::?-(?P<default>[^{}]*))?\}|(?P<bare>[A-Za-z_]\w*))")
_ARRAY = re.compile(r"\$\{(\w+)\[[@*]\]\}")
_FILLED = re.compile(
    r"(?:^|(?<=;))(?P<before>[ \t]*(?:(?:declare|local|readonly|typeset)[ \t]+(?:-\w+[ \t]+)*)?)"
    r"(?P<name>\w+)(?P<more>\+?)=\(",
    re.MULTILINE,
)
_HEREDOC = re.compile(
    r"^(?P<before>[^\n]*?)<<-?[ \t]*(?P<quote>['\"]?)(?P<end>\w+)(?P=quote)(?P<after>[^\n]*)\n"
    r"(?P<text>.*?)^[ \t]*(?P=end)[ \t]*$",
    re.MULTILINE | re.DOTALL,
)
_WRITTEN = re.compile(r"(?:>|\btee\s+(?:-a\s+)?)\s*(?P<file>[^\s>|&;]+)")
SHELL, _INNER = re.compile(r"(?:.*/)?(?:ba|da|z)?sh"), re.compile(r"-[eilux]*c")
_MANIFEST = re.compile(r"""^[ \t-]*["']?(?:services|containers)["']?[ \t]*:""", re.MULTILINE)
_OF_KUBERNETES = re.compile(r"\$(\$?)\(([\w.-]+)\)")
_ROLES = {"leaderTemplate": ("leader",), "workerTemplate": ("worker",)}  # Of a LeaderWorkerSet.


@dataclass(slots=True)
class Script:
    """The commands of a text, with their variables and files; nothing of it runs."""

    commands: list[list[str]] = field(default_factory=list)
    exported: dict[str, str] = field(default_factory=dict)
    """The variables of the environment of all commands."""
    files: dict[str, str] = field(default_factory=dict)
    """The texts of the files that the script writes itself (`cat > FILE <<EOF`), by their names."""
    known: dict[str, str] = field(default_factory=dict)
    """The variables so far."""
    arrays: dict[str, list[str] | None] = field(default_factory=dict)
    """The words of its arrays; None for one that a condition may fill."""
    gpus: int = 0
    """The GPUs of its container, if it says them."""

    def read(self, text: str) -> None:
        """Reads the commands of a text; raises TrtspecError for one that no shell could parse."""
        text = self._without_arrays(_HEREDOC.sub(self._kept, text))
        for words in split(_PROMPT.sub("", _COMMENTS.sub("", text))):
            own = words[words[0] == "export" :]
            if own and all(map(ASSIGNMENT.match, own)):
                for word in own:
                    name, _, value = _expanded(word, self.known).partition("=")
                    self.known[name] = value
                    if len(own) < len(words):
                        self.exported[name] = value
            else:
                self.take(list(self._words(words)))

    def take(self, words: list[str]) -> None:
        """Takes a command, or those of `sh -c TEXT`, each after the words before that."""
        place = _place_of_text(words)
        if place is None:
            self.commands.append(words)
            return
        inner = Script(files=self.files, known=dict(self.known), arrays=dict(self.arrays))
        inner.read(words[place])
        exported = [f"{name}={value}" for name, value in inner.exported.items()]
        self.commands += [[*words[: place - 1], *exported, *command] for command in inner.commands]

    def _kept(self, found: re.Match[str]) -> str:
        """Keeps the file that a heredoc writes; drops a heredoc that writes none."""
        if place := _WRITTEN.search(found["before"] + found["after"]):
            self.files[place["file"].strip("'\"").removeprefix("./")] = found["text"]
        return ""

    def _without_arrays(self, text: str) -> str:
        """Takes the arrays out of a text. One that is filled twice, or more under a condition, is unknown."""
        while found := _FILLED.search(text):
            end, name, before = closing(text, found.end()), found["name"], self.arrays.get(found["name"], [])
            words = [word for command in split(text[found.end() : end - 1]) for word in command]
            is_sure = not found["before"] if found["more"] else name not in self.arrays
            self.arrays[name] = [*before, *words] if is_sure and before is not None else None
            text = text[: found.start()] + text[end:]
        return text

    def _words(self, words: Sequence[str]) -> Iterator[str]:
        text = _place_of_text(words)
        for place, word in enumerate(words):
            if place == text:
                yield word  # The inner shell reads it.
            elif (array := _ARRAY.fullmatch(word)) and (inner := self.arrays.get(array[1])) is not None:
                others = {name: own for name, own in self.arrays.items() if name != array[1]}
                yield from replace(self, arrays=others)._words(inner)
            elif _ARRAY.search(word):
                raise TrtspecError(word, "is an array of a shell, which does not run here", "write its words")
            else:
                value = _expanded(word, self.known)
                # A variable that stands alone is the flags that it lists.
                is_list = value.startswith("-") and _VARIABLE.fullmatch(word)
                yield from shlex.split(value) if is_list else (value,)


def _place_of_text(words: Sequence[str]) -> int | None:
    """Returns the place of TEXT in `sh -c TEXT`; None without it."""
    options = (place for place, word in enumerate(words[:-1]) if _INNER.fullmatch(word))
    return next((place + 1 for place in options if any(map(SHELL.fullmatch, words[:place]))), None)


def read_script(text: str) -> Script:
    """Returns the commands of a text; raises TrtspecError for one that no shell could parse, and for arrays
    that it does not fill with words.
    """
    script = Script()
    script.read(text)
    return script


def _expanded(word: str, known: Mapping[str, str]) -> str:
    """Returns a word with the values of known variables; an unknown one stays as it is written."""

    def value(found: re.Match[str]) -> str:
        default = found[0] if found["default"] is None else found["default"]
        return known.get(found["braced"] or found["bare"], default)

    return _VARIABLE.sub(value, word)


def containers_in(text: str) -> dict[str, Script] | None:
    """Returns the containers of a Compose file or of Kubernetes manifests; None for another text.

    The words of each are its name, its variables and folders as `docker run` has them, its image where that
    starts its server, and its command. Raises TrtspecError for a manifest that cannot be read.
    """
    if not _MANIFEST.search(text):
        return None
    found = dict[str, Script]()
    try:
        if yaml11.num_aliases(text) > 30:  # Each may multiply what there is.
            raise ValueError("more than 30 values stand for others (*name)")
        documents = yaml11.load_all(text)
        maps = {_at(one, "metadata", "name"): _at(one, "data") for one in documents if _at(one, "data")}
        for document in documents:
            if isinstance(services := _at(document, "services"), dict):
                for name, own in services.items():
                    found[str(name)] = _of_compose(str(name), own)
                continue
            for names, pod in _pods(document, ()):
                for own in pod["containers"]:
                    name = "/".join((*names, str(_at(own, "name"))))
                    found[name] = _of_kubernetes(name, own, pod, maps)
    except (AttributeError, TypeError, ValueError, RecursionError, yaml11.YAMLError) as error:
        repair = "helm template … | trtspec init --from -" if "{{" in text else "correct the file"
        raise TrtspecError("the manifest", f"cannot be read: {str(error)[:200]}", repair) from None
    return found


def _container(
    own: Any, words: list[str], known: Mapping[str, str | None], keys: str, value: Callable[[str], str]
) -> Script:
    """Returns the script of a container: its name and folders, its variables, and what its `keys` say."""
    entry, command = (
        shlex.split(value(found)) if isinstance(found, str) else [value(str(word)) for word in found or ()]
        for found in (_at(own, key) for key in keys.split())
    )
    given = [
        word for name, text in known.items() for word in ("-e", f"{name}={'$' if text is None else text}")
    ]
    image = [str(_at(own, "image"))] if not entry or entry[0].startswith("-") else []
    script = Script(known={name: text for name, text in known.items() if text is not None})
    script.take([*words, *given, *image, *entry, *command])
    return script


def _pods(value: Any, names: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yields what has containers, each with the names of what it is part of."""
    value = dict(enumerate(value)) if isinstance(value, list) else value
    if not isinstance(value, dict):
        return
    if "kind" in value and (name := _at(value, "metadata", "name")):
        names = (*names, str(name))
    if isinstance(value.get("containers"), list):
        yield names, value
    for key, inner in value.items():
        yield from _pods(inner, names + _ROLES.get(key, ()))


def _of_compose(name: str, own: Any) -> Script:
    def value(text: str) -> str:
        return "$".join(_expanded(part, {}) for part in text.split("$$"))

    variables = _at(own, "environment") or {}
    if isinstance(variables, list):
        variables = {word.partition("=")[0]: word.partition("=")[2] or None for word in map(str, variables)}
    known = {name: None if text is None else value(str(text)) for name, text in variables.items()}
    words = [word for volume in _at(own, "volumes") or () for word in ("-v", value(str(volume)))]
    devices = _at(own, "deploy", "resources", "reservations", "devices") or ()
    counts = [_at(device, "count") or len(_at(device, "device_ids") or ()) for device in devices]
    script = _container(own, [name, *words], known, "entrypoint command", value)
    script.gpus = sum(count for count in counts if isinstance(count, int))
    return script


def _of_kubernetes(name: str, own: Any, pod: Any, maps: Mapping[str, Any]) -> Script:
    known = dict[str, str | None]()

    def value(text: str) -> str:
        return _OF_KUBERNETES.sub(lambda one: one[0][1:] if one[1] else known.get(one[2]) or one[0], text)

    for variable in _at(own, "env") or ():
        text = _at(variable, "value")
        known[str(_at(variable, "name"))] = None if text is None else value(str(text))
    volumes = {_at(volume, "name"): volume for volume in pod.get("volumes") or ()}
    mounts = [
        (volumes.get(_at(one, "name")), str(_at(one, "mountPath"))) for one in _at(own, "volumeMounts") or ()
    ]
    hosts = [(_at(volume, "hostPath", "path"), place) for volume, place in mounts]
    words = [word for here, place in hosts if here for word in ("-v", f"{here}:{place}")]
    script = _container(own, [name, *words], known, "command args", value)
    for volume, place in mounts:
        for file, text in (maps.get(_at(volume, "configMap", "name")) or {}).items():
            script.files |= {f"{place}/{file}": str(text), place: str(text)}  # Alone there with a subPath.
    script.gpus = int(_at(own, "resources", "limits", "nvidia.com/gpu") or 0)
    return script


def _at(value: Any, *path: str) -> Any:
    """Returns what stands below some keys; None where one is missing."""
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value
