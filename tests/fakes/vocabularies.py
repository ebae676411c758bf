"""Tokenizers with other vocabularies: of other merges, with other ids, and models whose ids are shuffled."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import tokenizers
import torch
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

Pair = tuple[int, int]
PADDING = 16


def byte_level(pairs: list[Pair], *, words: bool = True, end: str = "<|end|>") -> tokenizers.Tokenizer:
    """Byte-level BPE of which each merge joins two tokens, by number, that are there before it.

    With `words` text is cut at blanks first, as GPT-2 does it.
    """
    tokens = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges: list[tuple[str, str]] = []
    for left, right in pairs:
        merge = tokens[left % len(tokens)], tokens[right % len(tokens)]
        if "".join(merge) not in tokens:
            merges.append(merge)
            tokens.append("".join(merge))
    vocab = {token: token_id for token_id, token in enumerate(tokens)}
    inner = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=merges))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=words)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens([AddedToken(end, special=True), AddedToken("<|turn|>", special=True)])
    return inner


def sentence_piece(words: list[str]) -> tokenizers.Tokenizer:
    """Llama 2's manner: a blank before the text, U+2581 for blanks, bytes for what has no token."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁"]
    merges: list[tuple[str, str]] = []
    for word in words:
        letters = "▁" + word
        tokens += [letter for letter in letters if letter not in tokens]
        for end in range(2, len(letters) + 1):
            if letters[:end] not in tokens:
                merges.append((letters[: end - 1], letters[end - 1]))
                tokens.append(letters[:end])
    vocab = {token: token_id for token_id, token in enumerate(tokens)}
    inner = tokenizers.Tokenizer(
        models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    inner.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    inner.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    inner.add_special_tokens([AddedToken(name, special=True) for name in ("<s>", "</s>")])
    return inner


pairs = st.lists(st.tuples(st.integers(0, 300), st.integers(0, 300)), max_size=30)
byte_levels = st.builds(byte_level, pairs, words=st.booleans(), end=st.sampled_from(["<|end|>", "</s>"]))
sentence_pieces = st.builds(
    sentence_piece, st.lists(st.text("abé你 ", min_size=1, max_size=4).map(str.strip), max_size=8)
)
vocabularies = st.one_of(byte_levels, sentence_pieces)
texts = st.one_of(
    st.text(max_size=80),
    st.text("ab é你😀\n.<|end|>", max_size=200),
    st.lists(
        st.sampled_from([" the", "un", "believ", "able", "  ", "\n", "👩‍👩‍👧", "é", "e\u0301", "12345"])
    ).map("".join),
)


def shuffled(inner: tokenizers.Tokenizer, seed: int = 0) -> tuple[tokenizers.Tokenizer, list[int]]:
    """The same tokens under other ids, and the new id of each old one."""
    document: dict[str, Any] = json.loads(inner.to_str())
    ids = list(range(inner.get_vocab_size()))
    random.Random(seed).shuffle(ids)
    document["model"]["vocab"] = {
        token: ids[token_id] for token, token_id in document["model"]["vocab"].items()
    }
    for added in document["added_tokens"]:
        added["id"] = ids[added["id"]]
    return tokenizers.Tokenizer.from_str(json.dumps(document)), ids


def shuffled_model(model: Path, folder: Path) -> None:
    """Writes a model of tied embeddings that says the same under other ids, and has some rows more.

    transformers takes two tokenizers for one where vocabularies are of one size.
    """
    shutil.copytree(model, folder)
    inner, ids = shuffled(tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")))
    inner.save(str(folder / "tokenizer.json"))
    for name in ("config.json", "generation_config.json", "tokenizer_config.json"):
        content = json.loads((folder / name).read_text())
        for key in [key for key in content if key.endswith("_token_id")]:
            content[key] = ids[content[key]]
        if "vocab_size" in content:
            content["vocab_size"] += PADDING
        if "added_tokens_decoder" in content:
            added = content["added_tokens_decoder"]
            content["added_tokens_decoder"] = {str(ids[int(key)]): value for key, value in added.items()}
        (folder / name).write_text(json.dumps(content))
    tensors = load_file(folder / "model.safetensors")
    rows = tensors["model.embed_tokens.weight"]
    moved = torch.zeros(len(rows) + PADDING, rows.shape[1], dtype=rows.dtype)
    moved[torch.tensor(ids)] = rows
    save_file({**tensors, "model.embed_tokens.weight": moved}, folder / "model.safetensors")
