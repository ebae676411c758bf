"""The tokenizer, which turns text into token ids, and token ids into text as they arrive."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tokenizers

from trtspec.serving.errors import TokenizerError


def _byte_of_char() -> dict[str, int]:
    """Returns each byte by its character: itself in Latin-1 where it is printable, else U+0100 and on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


BYTE_OF_CHAR = _byte_of_char()
CHAR_OF_BYTE = {byte: char for char, byte in BYTE_OF_CHAR.items()}


class Tokenizer:
    """A Hugging Face tokenizer.

    `end_ids` are the model's end tokens. `beginning` are the tokens that it puts before every text.
    `longest_token` is in characters: a text of `n` characters has at least `n / longest_token` tokens.
    """

    def __init__(self, inner: tokenizers.Tokenizer, end_ids: tuple[int, ...] = ()) -> None:
        inner.no_truncation()
        inner.no_padding()
        self._inner = inner
        self._token_bytes = TokenBytes(inner)
        self.end_ids = end_ids
        self.beginning = _beginning(inner)
        self.longest_token = max(map(len, inner.get_vocab()), default=1)

    @classmethod
    def load(cls, folder: Path, listed: tuple[int, ...] = ()) -> Tokenizer:
        """Reads `tokenizer.json` and, if present, `tokenizer_config.json` and `generation_config.json`.

        `listed` are the model's end tokens if another file has them. Raises `TokenizerError`.
        """
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise TokenizerError(str(path), "no such file")
        try:
            inner = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises nothing more precise
            raise TokenizerError(str(path), f"not a tokenizer: {error}") from error
        if inner.decoder is None:
            raise TokenizerError(str(path), "has no decoder, so that its tokens cannot be turned into text")
        return cls(inner, _end_ids(folder, inner, listed))

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Returns the token ids of a text.

        With `add_special_tokens` the tokenizer adds its special tokens. A text that already begins with them,
        as chat templates write it, does not get them twice. A lone surrogate raises `UnicodeEncodeError`.
        """
        text.encode()
        # The library releases the GIL for batches only.
        ids: list[int] = self._inner.encode_batch([text], add_special_tokens=add_special_tokens)[0].ids
        begin = self.beginning
        if add_special_tokens and begin and ids[: 2 * len(begin)] == begin * 2:
            return ids[len(begin) :]
        return ids

    def vocabulary(self, size: int) -> list[bytes]:
        """Returns the bytes of the first `size` token ids; none for special and unknown ones."""
        return [self._token_bytes.find(token_id) for token_id in range(size)]

    def bytes_of(self, token_id: int) -> bytes:
        """Returns the bytes of a token; none for special and unknown ones."""
        return self._token_bytes[token_id]

    def name_of(self, token_id: int) -> str:
        """Returns a token as the vocabulary writes it, also a special one; empty for an unknown one."""
        return self._inner.id_to_token(token_id) or ""

    @property
    def size(self) -> int:
        """One more than the largest token id."""
        return max(self._inner.get_vocab().values(), default=-1) + 1

    def id_of(self, name: str) -> int | None:
        """Returns the id of a token as the vocabulary writes it; None if there is none."""
        found: int | None = self._inner.token_to_id(name)
        return found

    def within(self) -> Tokenizer:
        """Returns the same tokenizer for parts of a text: it puts no space before them, as some do."""
        document = json.loads(self.document)
        for stage in ("normalizer", "pre_tokenizer"):
            document[stage] = _without_prefix(document.get(stage))
        return Tokenizer(tokenizers.Tokenizer.from_str(json.dumps(document)), self.end_ids)

    def names(self, size: int) -> list[str]:
        """Returns the first `size` tokens as the vocabulary writes them; empty for those without text."""
        return [self._token_bytes.name(token_id) for token_id in range(size)]

    @property
    def document(self) -> str:
        """The content of `tokenizer.json`."""
        return str(self._inner.to_str())

    def detokenizer(self, *, skip_special_tokens: bool = True) -> Detokenizer:
        """Returns a new detokenizer, for one completion."""
        return Detokenizer(self._token_bytes, None if skip_special_tokens else self.name_of)


class Detokenizer:
    """Turns the tokens of one completion into text as they arrive.

    The returned texts, joined, are the text of all tokens together. An incomplete UTF-8 sequence is held
    back; bytes that can never be UTF-8 become U+FFFD. A special token has no text, or with `name_of` its
    name. A first token keeps its leading space, since a completion continues a prompt.
    """

    def __init__(self, token_bytes: TokenBytes, name_of: Callable[[int], str] | None = None) -> None:
        self._bytes, self._name_of = token_bytes, name_of
        self._incomplete = b""

    def push(self, token_id: int) -> str:
        """Takes the next token, and returns the text that is complete with it."""
        own = self._bytes[token_id]
        if not own and self._name_of:
            own = self._name_of(token_id).encode()
        held = self._incomplete + own
        text, done = codecs.utf_8_decode(held, "replace", False)
        self._incomplete = held[done:]
        return text

    def flush(self) -> str:
        """Returns the text of an incomplete character at the end."""
        held, self._incomplete = self._incomplete, b""
        return held.decode(errors="replace")


class TokenBytes(dict[int, bytes]):
    """The bytes of each token in the middle of a text, found at its first use.

    Special tokens and unknown ids, such as those of a padded vocabulary, have no bytes.
    """

    def __init__(self, inner: tokenizers.Tokenizer) -> None:
        decoder = inner.decoder.__getstate__() if inner.decoder is not None else b""
        self._inner = inner
        self._is_byte_level = b'"ByteLevel"' in decoder
        self._has_byte_tokens = b'"ByteFallback"' in decoder
        self._added = inner.get_added_tokens_decoder()

    def __missing__(self, token_id: int) -> bytes:
        self[token_id] = found = self.find(token_id)
        return found

    def name(self, token_id: int) -> str:
        """Returns a token as the vocabulary writes it, or would write an added one."""
        if self._is_byte_level:
            return "".join(CHAR_OF_BYTE[byte] for byte in self.find(token_id))
        return self._entry(token_id)

    def find(self, token_id: int) -> bytes:
        """Returns the bytes of a token without storing them."""
        added, token = self._added.get(token_id), self._entry(token_id)
        if not token:
            return b""
        if self._is_byte_level:
            if added is None and all(char in BYTE_OF_CHAR for char in token):
                return bytes(BYTE_OF_CHAR[char] for char in token)
            return str(token).encode()
        if self._has_byte_tokens and (byte := BYTE_TOKEN.fullmatch(token)):
            return bytes([int(byte[1], 16)])
        # SentencePiece decoders drop the leading space of the first token, so another token precedes it.
        text: str = self._inner.decoder.decode([ANCHOR, token])
        return text.removeprefix(ANCHOR).encode()

    def _entry(self, token_id: int) -> str:
        added = self._added.get(token_id)
        if added is not None and added.special:
            return ""
        return self._inner.id_to_token(token_id) or ""


ANCHOR = "a"
BYTE_TOKEN = re.compile("<0x([0-9A-Fa-f]{2})>")


def _beginning(inner: tokenizers.Tokenizer) -> list[int]:
    """Returns the tokens that the tokenizer puts before every text."""
    bare, whole = (inner.encode("a", add_special_tokens=added).ids for added in (False, True))
    for position in range(len(whole)):
        if whole[position : position + len(bare)] == bare:
            return list(whole[:position])
    return []


def _without_prefix(stage: Any) -> Any:
    """Returns a stage of `tokenizer.json` without its prefix to a text; None if nothing else is left."""
    if isinstance(stage, list):
        return [part for part in map(_without_prefix, stage) if part is not None]
    if not isinstance(stage, dict):
        return stage
    if stage.get("type") == "Prepend":
        return None
    own = {"add_prefix_space": False, "prepend_scheme": "never"}
    return {key: own[key] if key in own else _without_prefix(value) for key, value in stage.items()}


def _end_ids(folder: Path, inner: tokenizers.Tokenizer, known: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the end tokens, `known` or the generation config's, the tokenizer's own first.

    Without any, the tokenizer's own is the only one.
    """
    own = _read_json(folder / "tokenizer_config.json").get("eos_token")
    content = own.get("content") if isinstance(own, dict) else own
    own_id = inner.token_to_id(content) if isinstance(content, str) else None

    path = folder / "generation_config.json"
    listed = list(known) or _read_json(path).get("eos_token_id")
    if listed is None:
        return () if own_id is None else (own_id,)
    ids = listed if isinstance(listed, list) else [listed]
    if not all(type(token_id) is int and token_id >= 0 for token_id in ids):
        problem = f"eos_token_id is {listed!r}; it must be a token id or a list of them"
        raise TokenizerError(str(path), problem)
    return tuple(dict.fromkeys(sorted(ids, key=lambda token_id: token_id != own_id)))


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise TokenizerError(str(path), f"not JSON: {error}") from error
    if not isinstance(content, dict):
        raise TokenizerError(str(path), "must hold a JSON object")
    return content
