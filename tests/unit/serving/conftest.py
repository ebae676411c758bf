"""Tokenizers and pairs of scripted engines for the coordinator's tests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from tests.fakes.clock import Clock
from tests.fakes.expected import Cases, make_cases
from trtspec.serving.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def byte_level() -> tokenizers.Tokenizer:
    """Byte-level BPE: ids 0 to 255 are bytes (not in order), then words, then four added tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {char: i for i, char in enumerate(alphabet)}
    merges = [
        ("h", "e"),
        ("l", "l"),
        ("he", "ll"),
        ("Ġ", "w"),
        ("Ã", "©"),
        ("ð", "Ł"),
        ("hell", "o"),
        ("!", "Ã"),
    ]
    for left, right in merges:
        vocab[left + right] = len(vocab)
    inner = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=merges))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens([AddedToken("<|end|>", special=True), AddedToken("<|turn|>", special=True)])
    inner.add_tokens([AddedToken("<call me>", special=False), AddedToken("<café>", special=False)])
    return inner


@pytest.fixture(scope="session")
def sentencepiece() -> tokenizers.Tokenizer:
    """Llama 2's manner: words with U+2581 for a space, and byte tokens for what is not in the vocabulary."""
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2} | {f"<0x{byte:02X}>": 3 + byte for byte in range(256)}
    for token in ("▁", "▁hello", "▁world", "h", "é", "!", "▁▁▁"):
        vocab[token] = len(vocab)
    inner = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>", byte_fallback=True))
    inner.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    inner.add_special_tokens([AddedToken("<s>", special=True), AddedToken("</s>", special=True)])
    return inner


@pytest.fixture(scope="session")
def tokenizer(byte_level: tokenizers.Tokenizer) -> Tokenizer:
    return Tokenizer(byte_level, (byte_level.token_to_id("<|end|>"), byte_level.token_to_id("<|turn|>")))


@pytest.fixture
def run() -> Callable[[Coroutine[Any, Any, Any]], Any]:
    """Runs a coroutine with a deadline; fails for what goes wrong in callbacks, which asyncio only logs."""

    async def watched(main: Coroutine[Any, Any, Any]) -> Any:
        unheard: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unheard.append(context))
        result = await asyncio.wait_for(main, 300)
        await asyncio.sleep(0)
        assert unheard == []
        return result

    return lambda main: asyncio.run(watched(main))


@pytest.fixture(autouse=True)
def patient_guides(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that compile give way to all else, so on a busy machine they take long."""
    monkeypatch.setattr("trtspec.serving.guides.guides.COMPILE_S", 120.0)


@pytest.fixture
def cases(byte_level: tokenizers.Tokenizer) -> Cases:
    return make_cases(byte_level)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock, time = Clock(), asyncio.BaseEventLoop.time
    monkeypatch.setattr(asyncio.BaseEventLoop, "time", lambda loop: time(loop) + clock.seconds)
    return clock
