"""The text of the demo pair: the running Python's standard library, and the tokenizer made from it."""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor

STDLIB = Path(sysconfig.get_paths()["stdlib"])
HELDOUT = Path(__file__).with_name("heldout.txt").read_text().split()

END_TOKEN = "<|endoftext|>"  # noqa: S105
END = 0
VOCAB = 2048

# Left out: tests (twice the rest, and repetitive), tables, generated text, bundled wheels, other packages.
SKIPPED_FOLDERS = {
    "test", "tests", "idle_test", "idlelib", "lib2to3", "encodings", "turtledemo", "pydoc_data", "ensurepip",
    "site-packages", "dist-packages", "__pycache__", "__phello__", "msilib",
}  # fmt: skip
SKIPPED_PREFIXES = ("_sysconfigdata", "config-", "entities.py", "stringprep.py", "this.py")

# A word takes the one space before it along; a line end and an indentation are tokens of their own, so that a
# prompt that stops after either reads as it did in training.
PIECES = r"\n+| {2,}|\t+| ?\p{L}+| ?\p{N}{1,3}| ?[^\s\p{L}\p{N}]+|\s"


def files() -> list[Path]:
    """Every file of the corpus, held-out ones included, in sorted order."""
    found = sorted(STDLIB.rglob("*.py"))
    return [path for path in found if not skipped(path.relative_to(STDLIB))]


def skipped(path: Path) -> bool:
    folders = SKIPPED_FOLDERS.intersection(path.parts)
    return bool(folders) or any(part.startswith(SKIPPED_PREFIXES) for part in path.parts)


def training_texts() -> Iterator[str]:
    heldout = {STDLIB / name for name in HELDOUT}
    return (read(path) for path in files() if path not in heldout)


def heldout_texts() -> list[str]:
    return [read(STDLIB / name) for name in HELDOUT]


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace").replace("\r\n", "\n")


def train_tokenizer() -> Tokenizer:
    """Byte-level BPE: any bytes go in, the same come out; nothing is added that was not in the text."""
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(PIECES), behavior="isolated")
    bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, bytes_only])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=[END_TOKEN],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(training_texts(), trainer)
    return tokenizer


def stream(tokenizer: Tokenizer, texts: Iterator[str] | list[str]) -> Tensor:
    """All texts as one row of ids, an end token after each."""
    ids: list[int] = []
    for encoding in tokenizer.encode_batch(list(texts)):
        ids += encoding.ids
        ids.append(END)
    return torch.tensor(ids, dtype=torch.int16)


class Windows:
    """Endless windows of a stream; every epoch cuts at another offset and goes through all, shuffled."""

    def __init__(self, ids: Tensor, seed: int) -> None:
        self.ids = ids
        self.generator = torch.Generator().manual_seed(seed)
        self.starts: dict[int, list[int]] = {}

    def take(self, rows: int, length: int) -> Tensor:
        """`rows` windows of `length + 1` ids: inputs and, one further on, what comes next."""
        starts = self.starts.setdefault(length, [])
        while len(starts) < rows:
            offset = int(torch.randint(length, (1,), generator=self.generator))
            fresh = torch.arange(offset, len(self.ids) - length - 1, length)
            starts += fresh[torch.randperm(len(fresh), generator=self.generator)].tolist()
        chosen = [starts.pop() for _ in range(rows)]
        return torch.stack([self.ids[start : start + length + 1] for start in chosen]).long()
