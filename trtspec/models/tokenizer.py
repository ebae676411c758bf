"""Reads a `tokenizer.json`: the bytes of each token id, and how text is split into tokens."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trtspec.base.errors import ModelError
from trtspec.models.source import has_file, json_of, read_file, read_json, tokenizer_files
from trtspec.serving.tokenizer import BYTE_OF_CHAR

BROKEN = (ValueError, LookupError, TypeError, AttributeError)

_STAGES = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
_NAMED = ("bos_token", "eos_token", "pad_token")


@dataclass(frozen=True, slots=True)
class AddedToken:
    """A token besides the trained vocabulary."""

    content: str
    """Text that becomes this one id."""
    special: bool
    flags: str
    """The names of the settings that are on, separated by spaces."""


@dataclass(frozen=True, slots=True)
class TokenizerTraits:
    """The traits by which two tokenizers are compared."""

    file: Path
    digest: str
    """The SHA-256 of the file."""
    kind: str
    """The type of the model, such as BPE."""
    tokens: Mapping[int, bytes]
    """The bytes of every id, including added tokens."""
    added: Mapping[int, AddedToken]
    stages: Mapping[str, str]
    """The normalizer, pre_tokenizer, post_processor and decoder as canonical JSON, equal exactly if the
    settings are.
    """
    merges: str
    """The rules of the model itself as canonical JSON, equal exactly if the settings are."""
    ids: Mapping[str, int]
    """The ids of the tokens as the file writes them."""
    named: Mapping[str, int | None]
    """The ids of the bos, eos and pad tokens that `tokenizer_config.json` names."""
    chat_templates: Mapping[str, str]
    """By name; empty without one."""

    @property
    def size(self) -> int:
        """One more than the highest id."""
        return max(self.tokens, default=-1) + 1

    @property
    def text_size(self) -> int:
        """One more than the highest id that texts have without naming it."""
        return max(filter(self._is_in_texts, self.tokens), default=-1) + 1

    def beyond(self, rows: int) -> tuple[list[int], list[int]]:
        """Returns the ids past an embedding of so many rows: those that texts have, and those to be named.

        A special token is in a text only if the text names it, as a marker of images or of padding, unless
        the tokenizer or the chat template puts it there.
        """
        past = sorted(token_id for token_id in self.tokens if token_id >= rows)
        found = list(filter(self._is_in_texts, past))
        return found, [token_id for token_id in past if token_id not in found]

    def _is_in_texts(self, token_id: int) -> bool:
        token = self.added.get(token_id)
        if token is None or not token.special:
            return True
        if token_id in (self.named["bos_token"], self.named["eos_token"]):
            return True
        quoted = _canonical(token.content)
        templates = "".join(self.chat_templates.values())
        return quoted in self.stages["post_processor"] or token.content in templates


def read_tokenizer(folder: Path, like: TokenizerTraits | None = None) -> TokenizerTraits:
    """Reads `tokenizer.json` and, where they exist, the config and the chat template; raises ModelError.

    The tokens are those of `like` if both have the same file: drafts often have their target's.
    """
    file, found = folder / "tokenizer.json", tokenizer_files(folder)
    if file.name not in found:
        repair = "save the fast tokenizer: AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
        raise ModelError(folder, "has no tokenizer.json", repair)
    content = read_file(file)
    digest = hashlib.sha256(content).hexdigest()
    same = like if like and like.digest == digest else _tokens_of(content, file)
    config = folder / "tokenizer_config.json"
    settings = read_json(config) if config.name in found else {}
    templates: Mapping[str, str] = {}
    with suppress(*BROKEN):  # A server with such a one answers no chats, and serves everything else.
        templates = chat_templates(folder, settings)
    named = {name: same.ids.get(_content(settings.get(name))) for name in _NAMED}
    return replace(same, file=file, digest=digest, named=named, chat_templates=templates)


def _tokens_of(data: bytes, file: Path) -> TokenizerTraits:
    """Returns what the bytes of `tokenizer.json` say."""
    content = json_of(data, file)
    try:
        vocabulary = dict(_vocabulary(content["model"]))
        to_bytes = _byte_level if _is_byte_level(content) else _sentence_piece
        added = {entry["id"]: _added(entry) for entry in content.get("added_tokens") or ()}
        tokens = {token_id: to_bytes(token) for token, token_id in vocabulary.items()}
        tokens |= {token_id: token.content.encode() for token_id, token in added.items()}
        kind, merges = str(content["model"].get("type", "BPE")), _merges(content["model"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        problem = f"is not a tokenizer of the tokenizers library ({type(error).__name__}: {error})"
        raise ModelError(file, problem, "download the file again") from None
    return TokenizerTraits(
        file=file,
        digest="",
        kind=kind,
        tokens=tokens,
        added=added,
        stages={stage: _canonical(content.get(stage)) for stage in _STAGES},
        merges=merges,
        ids={**vocabulary, **{token.content: token_id for token_id, token in added.items()}},
        named={},
        chat_templates={},
    )


def copy_tokenizer(source: Path, folder: Path) -> None:
    """Copies the files of a tokenizer from one model's folder into another."""
    for name in tokenizer_files(source):
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(source / name, folder / name)


def chat_templates(folder: Path, settings: Mapping[str, Any]) -> dict[str, str]:
    """Returns a tokenizer's chat templates by name, as transformers does; raises `BROKEN`.

    Jinja's files count before `tokenizer_config.json` (`settings`), and a processor's file is last.
    """
    if files := [folder / name for name in tokenizer_files(folder) if name.endswith(".jinja")]:
        read = {file.stem: read_file(file).decode() for file in files}
        return {("default" if name == "chat_template" else name): text for name, text in read.items()}
    found, beside = settings.get("chat_template"), folder / "chat_template.json"
    if found is None and has_file(beside):
        found = json.loads(read_file(beside))["chat_template"]
    if isinstance(found, list):
        return {one["name"]: one["template"] for one in found}
    return {"default": found} if isinstance(found, str) else {}


def _vocabulary(model: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Yields each token with its id. Unigram has a list of [token, score], other models map token to id."""
    vocabulary = model["vocab"]
    if isinstance(vocabulary, list):
        yield from ((token, token_id) for token_id, (token, _) in enumerate(vocabulary))
        return
    for token, token_id in vocabulary.items():
        if type(token_id) is not int or token_id < 0:
            raise ValueError(f"the id of {token!r} is {token_id!r}")
        yield token, token_id


def _is_byte_level(content: Mapping[str, Any]) -> bool:
    """Returns True if tokens are written in the 256-letter alphabet of GPT-2."""
    stages = [content.get("pre_tokenizer"), content.get("decoder")]
    for stage in stages:
        parts = (stage or {}).get("pretokenizers") or (stage or {}).get("decoders") or [stage or {}]
        if any(part.get("type") == "ByteLevel" for part in parts):
            return True
    return False


_LETTERS = {**dict.fromkeys(range(256), 0xFFFF), **{ord(char): byte for char, byte in BYTE_OF_CHAR.items()}}
"""The byte of each letter; what is none is no byte either."""


def _byte_level(token: str) -> bytes:
    try:
        return token.translate(_LETTERS).encode("latin-1")
    except UnicodeEncodeError:
        return token.encode()


def _sentence_piece(token: str) -> bytes:
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        return bytes.fromhex(token[3:5])
    return token.replace("\u2581", " ").encode()


def _added(entry: Mapping[str, Any]) -> AddedToken:
    if type(entry["id"]) is not int or entry["id"] < 0 or not isinstance(entry["content"], str):
        raise ValueError(f"the added token {entry!r}")
    flags = [name for name in ("lstrip", "rstrip", "normalized", "single_word") if entry.get(name)]
    return AddedToken(entry["content"], bool(entry.get("special")), " ".join(flags))


def _content(token: Any) -> str:
    """The text of a token in `tokenizer_config.json`, which is a string or an object; empty without one."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else ""


def _merges(model: Mapping[str, Any]) -> str:
    """The model without its vocabulary, as canonical JSON.

    It is the same for older files, which join the two halves of a merge with a space and leave out settings
    that are off.
    """
    settings = {key: value for key, value in model.items() if key not in ("vocab", "merges") and value}
    halves = (merge.split(" ") if isinstance(merge, str) else merge for merge in model.get("merges") or ())
    return _canonical({**settings, "merges": list(halves)})


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)
