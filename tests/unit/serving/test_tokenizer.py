"""The tokenizers library's own `decode` of all tokens at once is the judge of what comes out in pieces."""

from __future__ import annotations

import json
import random
import threading
from pathlib import Path

import pytest
import tokenizers
from tokenizers import decoders, processors

from trtspec.serving.errors import TokenizerError
from trtspec.serving.tokenizer import BYTE_OF_CHAR, Tokenizer


def pieces(inner: tokenizers.Tokenizer, ids: list[int]) -> list[str]:
    detokenizer = Tokenizer(inner).detokenizer()
    return [*(detokenizer.push(token_id) for token_id in ids), detokenizer.flush()]


def test_byte_level_text_is_the_whole_decode(byte_level: tokenizers.Tokenizer) -> None:
    dice = random.Random(0)
    # The library takes an added token's é for the byte 0xE9; ours is the token's own text.
    known = sorted({*range(byte_level.get_vocab_size() + 5)} - {byte_level.token_to_id("<café>")})
    for _ in range(500):
        ids = [dice.choice(known) for _ in range(dice.randrange(1, 30))]
        assert "".join(pieces(byte_level, ids)) == byte_level.decode(ids)


def test_only_incomplete_characters_are_held_back(byte_level: tokenizers.Tokenizer) -> None:
    text = "naïve 🙂 漢字"
    ids = byte_level.encode(text).ids
    shown = ""
    for length, piece in enumerate(pieces(byte_level, ids)[:-1], 1):
        shown += piece
        assert "�" not in shown
        assert len(text.encode()) - len(shown.encode()) - len(ids[length:]) <= 3
        assert shown == byte_level.decode(ids[:length]).rstrip("�")
    assert shown == text


@pytest.mark.parametrize("character", ["é", "漢", "🙂"])
def test_a_character_that_never_ends_is_replaced_once(
    byte_level: tokenizers.Tokenizer, character: str
) -> None:
    byte_of = {byte: byte_level.token_to_id(char) for char, byte in BYTE_OF_CHAR.items()}
    for length in range(1, len(character.encode())):
        ids = [byte_of[byte] for byte in (b"ab" + character.encode()[:length])]
        assert pieces(byte_level, ids) == ["a", "b", *[""] * length, "�"]
        assert "".join(pieces(byte_level, ids)) == byte_level.decode(ids)


def test_special_tokens_have_no_text_and_added_ones_do(byte_level: tokenizers.Tokenizer) -> None:
    ids = [byte_level.token_to_id(token) for token in ("<|end|>", "<call me>", "hello", "<café>")]
    assert pieces(byte_level, ids) == ["", "<call me>", "hello", "<café>", ""]
    named = Tokenizer(byte_level).detokenizer(skip_special_tokens=False)
    assert [named.push(token) for token in ids] == ["<|end|>", "<call me>", "hello", "<café>"]


def test_sentencepiece_text_continues_a_prompt(sentencepiece: tokenizers.Tokenizer) -> None:
    """What a completion adds to the prompt's text, leading spaces included."""
    prompt = [sentencepiece.token_to_id("▁hello")]
    dice = random.Random(1)
    words = [
        sentencepiece.token_to_id(token) for token in ("▁", "▁hello", "▁world", "h", "é", "!", "▁▁▁", "</s>")
    ]
    runs = [[3 + byte for byte in char.encode()] for char in ("🙂", "漢", "ß", "\n")]
    for _ in range(300):
        ids: list[int] = []
        for _ in range(dice.randrange(1, 12)):
            ids += dice.choice(runs) if dice.random() < 0.4 else [dice.choice(words)]
        whole = sentencepiece.decode(prompt + ids)
        assert "hello" + "".join(pieces(sentencepiece, ids)) == whole


def test_sentencepiece_byte_tokens_are_held_back_until_whole(sentencepiece: tokenizers.Tokenizer) -> None:
    ids = [3 + byte for byte in "🙂".encode()]
    assert pieces(sentencepiece, ids) == ["", "", "", "🙂", ""]
    assert pieces(sentencepiece, ids[:2]) == ["", "", "�"]


def test_old_metaspace_decoder(sentencepiece: tokenizers.Tokenizer) -> None:
    inner = tokenizers.Tokenizer.from_str(sentencepiece.to_str())
    inner.decoder = decoders.Metaspace()
    ids = [inner.token_to_id(token) for token in ("▁hello", "▁world", "!")]
    assert "".join(pieces(inner, ids)) == " hello world!"


def test_every_character_survives(byte_level: tokenizers.Tokenizer) -> None:
    tokenizer = Tokenizer(byte_level)
    text = "".join(map(chr, [*range(0xD800), 0xE000, 0xFFFD, 0x10FFFF]))
    assert "".join(pieces(byte_level, tokenizer.encode(text))) == text


def test_encode_lets_other_threads_run(tokenizer: Tokenizer) -> None:
    ticks, is_done = 0, threading.Event()

    def tick() -> None:
        nonlocal ticks
        while not is_done.wait(0.001):
            ticks += 1

    thread = threading.Thread(target=tick)
    thread.start()
    before = ticks
    tokenizer.encode("hello wörld " * 100_000)
    during = ticks - before
    is_done.set()
    thread.join()
    assert during > 20


def test_encode_refuses_lone_surrogates(tokenizer: Tokenizer) -> None:
    with pytest.raises(UnicodeEncodeError):
        tokenizer.encode("a\ud800b")


def test_truncation_and_padding_of_the_file_are_ignored(byte_level: tokenizers.Tokenizer) -> None:
    inner = tokenizers.Tokenizer.from_str(byte_level.to_str())
    inner.enable_truncation(3)
    inner.enable_padding(length=64)
    assert len(Tokenizer(inner).encode("abcdefgh")) == 8


class TestLoad:
    @pytest.fixture
    def folder(self, tmp_path: Path, byte_level: tokenizers.Tokenizer) -> Path:
        byte_level.save(str(tmp_path / "tokenizer.json"))
        return tmp_path

    @pytest.mark.parametrize(
        ("eos_token", "eos_token_id", "expected"),
        [
            (None, None, []),
            ("<|end|>", None, ["<|end|>"]),
            ({"content": "<|end|>"}, None, ["<|end|>"]),
            ("no such token", None, []),
            (None, "<|turn|>", ["<|turn|>"]),
            ("<|end|>", ["<|turn|>", "<|end|>", "<|turn|>"], ["<|end|>", "<|turn|>"]),
            ("<|end|>", ["<|turn|>"], ["<|turn|>"]),
        ],
    )
    def test_end_ids(
        self, folder: Path, eos_token: object, eos_token_id: object, expected: list[str]
    ) -> None:
        inner = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        if isinstance(eos_token_id, list):
            ids: object = [inner.token_to_id(token) for token in eos_token_id]
        else:
            ids = inner.token_to_id(eos_token_id) if isinstance(eos_token_id, str) else None
        (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": eos_token}))
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ids}))
        assert Tokenizer.load(folder).end_ids == tuple(inner.token_to_id(token) for token in expected)

    def test_needs_no_configs(self, folder: Path) -> None:
        assert Tokenizer.load(folder).end_ids == ()

    def test_a_missing_file(self, tmp_path: Path) -> None:
        with pytest.raises(TokenizerError, match=r"tokenizer\.json: no such file"):
            Tokenizer.load(tmp_path)

    @pytest.mark.parametrize("content", ["", "{", "[]", '{"model": 3}'])
    def test_a_broken_tokenizer(self, tmp_path: Path, content: str) -> None:
        (tmp_path / "tokenizer.json").write_text(content)
        with pytest.raises(TokenizerError, match="not a tokenizer"):
            Tokenizer.load(tmp_path)

    @pytest.mark.parametrize("content", ["{", "[]", '{"eos_token_id": "two"}', '{"eos_token_id": [1, null]}'])
    def test_a_broken_generation_config(self, folder: Path, content: str) -> None:
        (folder / "generation_config.json").write_text(content)
        with pytest.raises(TokenizerError, match=r"generation_config\.json"):
            Tokenizer.load(folder)

    def test_a_tokenizer_without_a_decoder(self, tmp_path: Path) -> None:
        tokenizers.Tokenizer(tokenizers.models.BPE()).save(str(tmp_path / "tokenizer.json"))
        with pytest.raises(TokenizerError, match="no decoder"):
            Tokenizer.load(tmp_path)


class TestBeginning:
    """Chat templates write the beginning of a text themselves; the tokenizer must not add another."""

    @pytest.fixture
    def begins(self, sentencepiece: tokenizers.Tokenizer) -> Tokenizer:
        inner = tokenizers.Tokenizer.from_str(sentencepiece.to_str())
        inner.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
        return Tokenizer(inner)

    def test_is_added_once(self, begins: Tokenizer) -> None:
        bare = begins.encode("h", add_special_tokens=False)
        assert begins.encode("h") == [1, *bare]
        assert begins.encode("<s>h") == [1, *bare]
        assert begins.encode("<s><s>h") == [1, 1, *bare]

    def test_is_left_out_when_unwanted(self, begins: Tokenizer) -> None:
        assert begins.encode("<s>h", add_special_tokens=False) == begins.encode("<s>h")
        assert 1 not in begins.encode("h", add_special_tokens=False)

    def test_a_tokenizer_without_a_beginning_token_adds_none(self, tokenizer: Tokenizer) -> None:
        assert tokenizer.encode("aa") == tokenizer.encode("aa", add_special_tokens=False)
