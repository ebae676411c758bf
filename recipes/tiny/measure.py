"""Measure the demo pair on the held-out files: `python -m recipes.tiny.measure`.

Read through transformers alone: the numbers are those of the files, not of the script that made them.
"""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

import ast
import re
import sys
import sysconfig
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import AutoTokenizer, LlamaForCausalLM, PreTrainedTokenizerFast

HERE = Path(__file__).parent
HEADER = re.compile(r"^ *def \w+\(.*\):\n", re.MULTILINE)
PROMPT, COMPLETION, WINDOW = 192, 96, 512
LONGEST_LOOP, LOOP_TOKENS = 32, 24


@dataclass(frozen=True)
class Pair:
    target: LlamaForCausalLM
    draft: LlamaForCausalLM
    tokenizer: PreTrainedTokenizerFast


@dataclass(frozen=True)
class Prompt:
    """The last `PROMPT` tokens before a function's body, and the function's header, which they end with."""

    ids: list[int]
    header: str


def main() -> None:
    pair = load(HERE)
    texts = heldout_texts()
    rows = windows(pair.tokenizer, texts)
    completions = complete(pair, prompts(pair.tokenizer, texts))
    numbers = {
        "target, nats a token": loss(pair.target, rows),
        "draft, nats a token": loss(pair.draft, rows),
        "agreement on held-out text": text_agreement(pair, rows),
        "agreement on the target's own text": own_agreement(pair, completions),
        "completions that loop": share(loops(ids) for _, ids in completions),
        "completions that parse": share(parses(pair.tokenizer, prompt, ids) for prompt, ids in completions),
    }
    for name, number in numbers.items():
        sys.stdout.write(f"{name:36} {number:.3f}\n")


def load(folder: Path) -> Pair:
    target, draft = (
        LlamaForCausalLM.from_pretrained(folder / name, dtype=torch.float32).eval()
        for name in ("target", "draft")
    )
    return Pair(target, draft, AutoTokenizer.from_pretrained(folder / "target"))


def heldout_texts() -> list[str]:
    stdlib = Path(sysconfig.get_paths()["stdlib"])
    names = (HERE / "heldout.txt").read_text().split()
    return [(stdlib / name).read_text(encoding="utf-8") for name in names]


def windows(tokenizer: PreTrainedTokenizerFast, texts: list[str]) -> Tensor:
    """One window from the middle of every file that is long enough."""
    encoded = [ids for ids in tokenizer(texts, verbose=False)["input_ids"] if len(ids) > WINDOW]
    middles = [(len(ids) - WINDOW) // 2 for ids in encoded]
    return torch.tensor([ids[start : start + WINDOW] for ids, start in zip(encoded, middles, strict=True)])


def prompts(tokenizer: PreTrainedTokenizerFast, texts: list[str], per_file: int = 2) -> list[Prompt]:
    found = []
    for text in texts:
        headers = list(HEADER.finditer(text))
        places = {len(headers) * (i + 1) // (per_file + 1) for i in range(per_file)}
        for header in (headers[place] for place in sorted(places) if place < len(headers)):
            ids = tokenizer(text[: header.end()], verbose=False)["input_ids"][-PROMPT:]
            if len(ids) == PROMPT:
                found.append(Prompt(ids, header.group()))
    return found


@torch.inference_mode()
def complete(pair: Pair, prompts: list[Prompt]) -> list[tuple[Prompt, list[int]]]:
    """The target's greedy completions, each up to its end token."""
    rows = torch.tensor([prompt.ids for prompt in prompts])
    made = pair.target.generate(
        rows, attention_mask=torch.ones_like(rows), max_new_tokens=COMPLETION, do_sample=False
    )
    end = pair.tokenizer.eos_token_id
    completions = [[*ids, end] for ids in made[:, PROMPT:].tolist()]
    return [(prompt, ids[: ids.index(end)]) for prompt, ids in zip(prompts, completions, strict=True)]


@torch.inference_mode()
def loss(model: LlamaForCausalLM, rows: Tensor) -> float:
    logits = torch.cat([model(part[:, :-1]).logits for part in rows.split(8)])
    return F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten()).item()


@torch.inference_mode()
def text_agreement(pair: Pair, rows: Tensor) -> float:
    """The share of positions where both models' first choice is the same, each given the file's own text."""
    same = [choices(pair.target, part) == choices(pair.draft, part) for part in rows.split(8)]
    return torch.cat(same).float().mean().item()


@torch.inference_mode()
def own_agreement(pair: Pair, completions: list[tuple[Prompt, list[int]]]) -> float:
    """The share of the target's own greedy tokens that the draft would have said: what speculation uses."""
    same = []
    for prompt, ids in completions:
        row = torch.tensor([prompt.ids + ids])
        guesses = choices(pair.draft, row)[0, PROMPT - 1 : -1]
        same += (guesses == row[0, PROMPT:]).tolist()
    return share(same)


def choices(model: LlamaForCausalLM, rows: Tensor) -> Tensor:
    scores: Tensor = model(rows).logits
    return scores.argmax(-1)


def loops(ids: list[int]) -> bool:
    """True when `ids` end in one piece over and over: three times or more, `LOOP_TOKENS` or more."""
    for period in range(1, LONGEST_LOOP + 1):
        length = max(3 * period, LOOP_TOKENS)
        tail = ids[-length:]
        if len(tail) == length and tail[period:] == tail[:-period]:
            return True
    return False


def parses(tokenizer: PreTrainedTokenizerFast, prompt: Prompt, ids: list[int]) -> bool:
    """True when the completion is a function's body in Python: half of its lines or more parse.

    They are read under the prompt's header; the rest may be cut in the middle of a statement.
    """
    lines = tokenizer.decode(ids).splitlines(keepends=True)
    for kept in range(len(lines), (len(lines) - 1) // 2, -1):
        try:
            ast.parse(textwrap.dedent(prompt.header + "".join(lines[:kept])))
        except (SyntaxError, ValueError):
            continue
        return True
    return False


def share(flags: Iterable[bool]) -> float:
    counted = list(flags)
    return sum(counted) / len(counted)


if __name__ == "__main__":
    main()
