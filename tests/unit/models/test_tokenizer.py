from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from tests.fakes.broken_recipes import POINTER
from trtspec.base.errors import ModelError
from trtspec.models.tokenizer import read_tokenizer


def save(folder: Path, tokenizer: Tokenizer) -> Path:
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def test_bytes_of_ids_are_what_the_tokenizers_library_decodes(
    tmp_path: Path, byte_level: Callable[..., Tokenizer]
) -> None:
    tokenizer = byte_level(400)
    tokens = read_tokenizer(save(tmp_path, tokenizer)).tokens
    assert sorted(tokens) == sorted(tokenizer.get_vocab(with_added_tokens=True).values())
    for text in ("def add(left):\n\treturn 1", "naïve été → 日本 🎉\x00\x7f"):
        assert b"".join(tokens[token_id] for token_id in tokenizer.encode(text).ids) == text.encode()
    for token_id, known in tokens.items():
        text = known.decode("utf-8", "replace")
        assert tokenizer.decode([token_id], skip_special_tokens=False) == text


def test_all_256_bytes_are_there_once(tmp_path: Path, byte_level: Callable[..., Tokenizer]) -> None:
    tokens = read_tokenizer(save(tmp_path, byte_level(259))).tokens
    assert sorted(known for known in tokens.values() if len(known) == 1) == [bytes([n]) for n in range(256)]


def test_byte_level_is_found_inside_a_sequence(tmp_path: Path, byte_level: Callable[..., Tokenizer]) -> None:
    tokenizer = byte_level()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(), pre_tokenizers.ByteLevel(use_regex=False)]
    )
    tokenizer.decoder = decoders.Fuse()
    tokens = read_tokenizer(save(tmp_path, tokenizer)).tokens
    assert tokens[tokenizer.token_to_id("Ġ")] == b" "


def test_sentence_piece_tokens(tmp_path: Path) -> None:
    vocabulary = {"<unk>": 0, "<0x0A>": 1, "▁the": 2, "é": 3}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], byte_fallback=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokens = read_tokenizer(save(tmp_path, tokenizer)).tokens
    assert tokens == {0: b"<unk>", 1: b"\n", 2: b" the", 3: "é".encode()}


def test_unigram_ids_are_places_in_the_list(tmp_path: Path) -> None:
    tokenizer = Tokenizer(models.Unigram([("<unk>", 0.0), ("▁a", -1.0)], unk_id=0, byte_fallback=False))
    read = read_tokenizer(save(tmp_path, tokenizer))
    assert read.tokens == {0: b"<unk>", 1: b" a"}
    assert read.kind == "Unigram"


def test_added_tokens_are_text_not_letters_for_bytes(
    tmp_path: Path, byte_level: Callable[..., Tokenizer]
) -> None:
    tokenizer = byte_level()
    tokenizer.add_tokens([AddedToken("Ġé", special=False, lstrip=True)])
    read = read_tokenizer(save(tmp_path, tokenizer))
    token_id = tokenizer.token_to_id("Ġé")
    assert read.tokens[token_id] == "Ġé".encode()
    assert read.added[token_id].flags == "lstrip normalized"
    assert not read.added[token_id].special
    assert read.size == token_id + 1


def test_named_tokens_and_chat_template(tmp_path: Path, byte_level: Callable[..., Tokenizer]) -> None:
    folder = save(tmp_path, byte_level())
    config = {"bos_token": "<|begin|>", "eos_token": {"content": "<|end|>"}, "pad_token": None}
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": "inline"}))
    read = read_tokenizer(folder)
    assert read.named == {"bos_token": 0, "eos_token": 1, "pad_token": None}
    assert read.chat_templates == {"default": "inline"}
    (folder / "chat_template.jinja").write_text("file")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("tools")
    assert read_tokenizer(folder).chat_templates == {"default": "file", "tool_use": "tools"}


def test_a_file_that_target_and_draft_share_is_parsed_once_and_each_names_its_own_tokens(
    tmp_path: Path, byte_level: Callable[..., Tokenizer]
) -> None:
    target, same, other = (tmp_path / name for name in ("target", "same", "other"))
    for folder, size in ((target, 400), (same, 400), (other, 300)):
        folder.mkdir()
        save(folder, byte_level(size))
    (same / "tokenizer_config.json").write_text('{"eos_token": "<|end|>", "chat_template": "own"}')
    ours = read_tokenizer(target)
    read = read_tokenizer(same, ours)
    assert read == read_tokenizer(same) != ours
    assert read.tokens is ours.tokens
    assert read_tokenizer(other, ours) == read_tokenizer(other)


def test_merges_are_equal_in_both_ways_of_writing_them(
    tmp_path: Path, byte_level: Callable[..., Tokenizer]
) -> None:
    folder = save(tmp_path, byte_level())
    file = folder / "tokenizer.json"
    now = read_tokenizer(folder).merges
    content = json.loads(file.read_text())
    assert content["model"]["merges"]
    content["model"]["merges"] = [" ".join(merge) for merge in content["model"]["merges"]]
    del content["model"]["ignore_merges"]
    file.write_text(json.dumps(content))
    assert read_tokenizer(folder).merges == now
    content["model"]["merges"].pop()
    file.write_text(json.dumps(content))
    assert read_tokenizer(folder).merges != now


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        '{"model": {}}',
        '{"model": {"vocab": {"a": "0"}}}',
        '{"model": {"vocab": {"a": -1}}}',
        '{"model": {"vocab": 5}}',
        '{"model": {"vocab": ["ab"]}, "added_tokens": [{}]}',
        '{"model": {"vocab": {"a": 0}}, "added_tokens": [{"id": "1", "content": "x"}]}',
        '{"model": {"vocab": {"a": 0}}, "added_tokens": [{"id": -1, "content": "x"}]}',
        '{"model": {"vocab": {"a": 0}}, "pre_tokenizer": 3}',
        '{"model": {"vocab": {"a": 0}, "merges": 3}}',
        '{"model": {"vocab": {"\\ud800": 0}}}',
    ],
)
def test_a_broken_file_is_a_model_error_that_names_it(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ModelError) as error:
        read_tokenizer(tmp_path)
    assert error.value.subject == str(tmp_path / "tokenizer.json")
    assert error.value.repair


def test_a_folder_without_tokenizer_json(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"has no tokenizer\.json"):
        read_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("special", "template", "begins", "in_texts"),
    [
        (True, None, False, False),
        (False, None, False, True),
        (True, "{{ '<x>' }}{{ messages }}", False, True),
        (True, None, True, True),
    ],
    ids=["to_be_named", "ordinary", "in_the_template", "before_every_text"],
)
def test_which_ids_past_an_embedding_texts_have(
    tmp_path: Path,
    byte_level: Callable[..., Tokenizer],
    special: bool,
    template: str | None,
    begins: bool,
    in_texts: bool,
) -> None:
    tokenizer = byte_level()
    size = tokenizer.get_vocab_size()
    add = tokenizer.add_special_tokens if special else tokenizer.add_tokens
    add([AddedToken("<x>", special=special)])
    if begins:
        tokenizer.post_processor = processors.TemplateProcessing("<x> $A", special_tokens=[("<x>", size)])
    save(tmp_path, tokenizer)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    found = read_tokenizer(tmp_path)
    assert found.beyond(size) == (([size], []) if in_texts else ([], [size]))
    assert found.beyond(size + 1) == ([], [])
    assert found.text_size == size + in_texts
    # The library itself puts it into no text that does not name it.
    written = tokenizer.encode("def add(left, right):").ids
    assert (size in written) == begins


def test_a_pointer_is_told_as_one(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(POINTER)
    with pytest.raises(ModelError, match="is a Git LFS pointer, not the file") as error:
        read_tokenizer(tmp_path)
    assert error.value.repair == "git lfs pull --include tokenizer.json"
