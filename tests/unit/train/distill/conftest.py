"""A language that is learned in seconds, and a pair of which the target is said to speak it."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from trtspec.base.progress import Advance, no_progress
from trtspec.measure.workloads.workload import Recorded, append_recorded
from trtspec.train.distill.distillation import Distilled, distill
from trtspec.train.distill.settings import DistillationOptions, TrainingSettings
from trtspec.train.distill.training import Checkpoints

FIRST, LETTERS, PROMPT = 10, 89, 8
SETTINGS = TrainingSettings(batch_size=8, epochs=6, learning_rate=2e-2, max_length=64)


def speak(seed: int, length: int = 40) -> list[int]:
    """A text in which each token follows from the one before, but for one in ten, behind two of its own."""
    dice = random.Random(seed)
    text = [*(100 + part for part in divmod(seed, 100)), FIRST + dice.randrange(LETTERS)]
    while len(text) < length:
        jump = dice.random() < 0.1
        text.append(FIRST + (dice.randrange(LETTERS) if jump else (7 * text[-1] + 3) % LETTERS))
    return text


def recorded(seeds: Sequence[int], num_prompt: int = PROMPT) -> list[Recorded]:
    texts = [(seed, speak(seed)) for seed in seeds]
    return [
        Recorded(
            name=str(seed),
            prompt_token_ids=tuple(text[:num_prompt]),
            answer_token_ids=tuple(text[num_prompt:]),
        )
        for seed, text in texts
    ]


@pytest.fixture
def toy(tmp_path: Path, llama_folder: Callable[..., Path]) -> DistillationOptions:
    """A recipe, 96 answers to learn and 24 that are held out."""
    llama_folder("target", hidden_size=64)
    llama_folder("draft", num_hidden_layers=1, initializer_range=0.1)
    (tmp_path / "pair.yaml").write_text(
        "name: toy\n"
        "target: {model: ./target, dtype: float32}\n"
        "draft: {model: ./draft}\n"
        "speculation: {num_draft_tokens: 4}\n"
        "hardware: {gpu: none}\n"
    )
    append_recorded(tmp_path / "answers.jsonl", recorded(range(96)))
    append_recorded(tmp_path / "held_out.jsonl", recorded(range(1000, 1024)))
    return DistillationOptions(
        recipe=tmp_path / "pair.yaml",
        output=tmp_path / "distilled",
        answers=tmp_path / "answers.jsonl",
        held_out=str(tmp_path / "held_out.jsonl"),
        settings=SETTINGS,
    )


Run = Callable[..., Distilled]


@pytest.fixture
def run() -> Run:
    """Distils without a word, with checkpoints `at_every_step` or at the last alone.

    `killed_at` raises KeyboardInterrupt when this step of the training was taken, before its checkpoint.
    """

    def run(
        wanted: DistillationOptions, at_every_step: bool = False, killed_at: int = 0, **changes: object
    ) -> Distilled:
        def show(label: str, total: int, unit: str) -> nullcontext[Advance]:
            done = 0

            def advance(amount: int, note: str = "", /) -> None:
                nonlocal done
                done += amount
                if label == "training" and killed_at and done >= killed_at:
                    raise KeyboardInterrupt

            return nullcontext(advance)

        wanted = replace(wanted, **changes)  # type: ignore[arg-type]
        pause_s = 0.0 if at_every_step else 3600.0
        return distill(wanted, show, no_progress, lambda: Checkpoints(pause_s, lambda: 0.0))

    return run
