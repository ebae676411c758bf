"""Suffix decoding beside prompt lookup on answers that are known: how many tokens a step of the target gives.

    python -m tests.perf.suffix [--model FOLDER] [--number 12] [--tokens 96]

`tree` is suffix decoding with the rules of Arctic Inference (`csrc/suffix_decoding/suffix_tree.cc` and
`SuffixDecodingCache.speculate`), `suffix` ours; both have vLLM's defaults. `ngram` is asked at every step,
too. The answers are the target's own to the questions of `workloads.py`, and there are three kinds of several
requests by one client: every question asked again, files that are edited turn by turn, and calls of tools.
JSON on stdout: by K the tokens of a step and how many were drafted for it, and how many times as fast as
plain decoding that is where a drafted token takes one of `ROWS` of a step.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import torch

from tests.perf.methods import built_of
from tests.perf.pair import built
from tests.perf.workloads import Question, Questions, code, edit, of_chat, of_tiny
from trtspec.serving.assembly import assemble
from trtspec.serving.drafters.lookup import LookupSource
from trtspec.serving.drafters.suffix import SuffixSource
from trtspec.serving.executor import Request
from trtspec.serving.executors.torch.torch_executor import TorchExecutor
from trtspec.serving.text import Text, common_prefix
from trtspec.serving.tokenizer import Tokenizer
from trtspec.train.tune.replay import at_once

DEPTH, FACTOR, LEAST = 24, 1.0, 0.1
LENGTHS = (8, 32)
ROWS = (0.0, 0.02, 0.1)
"""What a token more in a verification adds to a step: nothing, as on a large GPU; as on a CPU."""
EARLIER = 10**6

Propose = Callable[[int], list[int]]


class Said(NamedTuple):
    prompt: Sequence[int]
    answer: Sequence[int]


@dataclass(slots=True)
class Node:
    count: int = 0
    children: dict[int, Node] = field(default_factory=dict)


class Tree:
    """Counts every sequence of up to `DEPTH` tokens."""

    def __init__(self) -> None:
        self.root = Node()

    def walk(self, tokens: Sequence[int]) -> Node | None:
        node: Node | None = self.root
        for token in tokens:
            node = node.children.get(token) if node else None
        return node

    def speculate(self, text: Sequence[int], most: int) -> tuple[float, list[int]]:
        """Returns the best continuation of all matching endings, and the sum of its probabilities."""
        best: tuple[float, list[int]] = 0.0, []
        for length in range(1, min(DEPTH, len(text))):
            node = self.walk(text[-length:])
            if node is None:
                break
            found, probability, score = list[int](), 1.0, 0.0
            while len(found) < min(most, int(length * FACTOR + 1e-6)) and node.children:
                token, child = max(node.children.items(), key=lambda item: item[1].count)
                probability *= child.count / node.count
                if probability < LEAST:
                    break
                found.append(token)
                score, node = score + probability, child
            if score >= best[0]:
                best = score, found
        return best


class Growing:
    """One sequence of a tree."""

    def __init__(self, tree: Tree) -> None:
        self._tree, self._active = tree, list[Node]()

    def extend(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self._tree.root.count += 1
            nodes = [*self._active, self._tree.root][-DEPTH:]
            self._active = [node.children.setdefault(token, Node()) for node in nodes]
            for node in self._active:
                node.count += 1


class Trees:
    """Suffix decoding as Arctic Inference has it: a tree of each text, and one of all answers."""

    def __init__(self) -> None:
        self._others = Tree()

    def answer(self, said: Said, length: int) -> tuple[int, int]:
        own, text = Tree(), list(said.prompt)
        sequence, shared = Growing(own), Growing(self._others)
        sequence.extend(text)

        def propose(most: int) -> list[int]:
            return max(own.speculate(text, most), self._others.speculate(text, most))[1]

        def take(new: Sequence[int]) -> None:
            text.extend(new)
            sequence.extend(new)
            shared.extend(new)

        return steps(said.answer, length, propose, take)


class Drafted:
    """A source of ours that has no engine."""

    def __init__(self, source: LookupSource | SuffixSource) -> None:
        self._source = source

    def answer(self, said: Said, length: int) -> tuple[int, int]:
        text = Text(said.prompt)
        drafter = self._source.drafter(text, "client")

        def propose(most: int) -> list[int]:
            if (offer := drafter.offer()) is None:
                return []
            return at_once(drafter.propose(Request(text, min(most, offer.room)), math.inf))

        counts = steps(said.answer, length, propose, text.extend)
        drafter.end()
        return counts


def steps(
    answer: Sequence[int], length: int, propose: Propose, take: Callable[[Sequence[int]], None]
) -> tuple[int, int]:
    """Returns the steps of the target that an answer takes, and how many tokens were drafted for it."""
    count = drafted = done = 0
    while done < len(answer):
        draft = propose(min(length, len(answer) - done - 1))
        accepted = common_prefix(draft, list(answer[done:]), min(len(draft), len(answer) - done))
        take(answer[done : done + accepted + 1])
        count, drafted, done = count + 1, drafted + len(draft), done + accepted + 1
    return count, drafted


WAYS: dict[str, Callable[[], Trees | Drafted]] = {
    "ngram": lambda: Drafted(LookupSource(2, 8)),
    "ngram, earlier_answers": lambda: Drafted(LookupSource(2, 8, EARLIER)),
    "suffix": lambda: Drafted(SuffixSource(DEPTH, 10_000, FACTOR, LEAST)),
    "tree": lambda: Trees(),
}


def edited(tokenizer: Tokenizer, number: int, *, quoting: bool) -> list[Said]:
    """Files that are edited turn by turn; the prompt has the file before, or only a wish."""
    rows = []
    for index in range(number):
        before, _ = edit(index)
        for turn in range(5):
            names = sorted({word for word in before.replace("(", " ").split() if word.isidentifier()})
            after = before.replace(names[(7 * turn + index) % len(names)], f"renamed_{turn}")
            prompt = f"{before}\n# turn {turn}\n" if quoting else f"# turn {turn} of file {index}\n"
            rows.append(Said(tokenizer.encode(prompt), tokenizer.encode(after)[:200]))
            before = after
    return rows


def calls(tokenizer: Tokenizer, number: int) -> list[Said]:
    """Calls of five tools, with other arguments each time."""
    dice, rows = random.Random(0), []
    words = [word for word in code(0, 4000).split() if word.isalpha()]
    for index in range(5 * number):
        tool, one, two = dice.randrange(5), dice.choice(words), dice.choice(words)
        call = {
            "name": f"tool_{tool}",
            "arguments": {"path": f"src/{one}/{two}.py", "limit": dice.randrange(100)},
            "reason": f"look for {two} in the module {one}",
            "options": {"recursive": bool(tool % 2)},
        }
        rows.append(
            Said(tokenizer.encode(f"# request {index}: {one} {two}\n"), tokenizer.encode(json.dumps(call)))
        )
    return rows


def measured(rows: Sequence[Said]) -> dict[str, dict[str, object]]:
    tokens = sum(len(row.answer) for row in rows)
    found: dict[str, dict[str, object]] = {}
    for name, make in WAYS.items():
        for length in LENGTHS:
            way = make()
            counts = [way.answer(row, length) for row in rows]
            count, drafted = (sum(values) for values in zip(*counts, strict=True))
            found.setdefault(name, {})[f"K = {length}"] = {
                "tokens_per_step": round(tokens / count, 3),
                "drafted_per_step": round(drafted / count, 2),
                "speed": [round(tokens / (count + row * drafted), 3) for row in ROWS],
            }
    return found


async def answered(build: Path, asked: Questions) -> dict[str, list[Said]]:
    """Returns what the target says to each question, or is to say."""
    target = TorchExecutor(build / "target" / "engine")
    coordinator = assemble(target, None, Tokenizer.load(build / "tokenizer"))

    async def one(question: Question) -> Said:
        prompt = question.request.prompt_token_ids or ()
        return Said(prompt, question.dictated or (await coordinator.complete(question.request)).token_ids)

    said = {kind: list(await asyncio.gather(*map(one, questions))) for kind, questions in asked.items()}
    target.shutdown()
    return said


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, help="a chat model; without it the tiny target")
    parser.add_argument("--number", type=int, default=12, help="the most questions of each kind")
    parser.add_argument("--tokens", type=int, default=96)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        if options.model:
            build = built_of(Path(folder), options.model)
            asked = of_chat(options.model, options.number, options.tokens)
        else:
            build = built(Path(folder), "float32")
            asked = of_tiny(build, options.number, options.tokens)
        said = asyncio.run(answered(build, asked))
        tokenizer = Tokenizer.load(build / "tokenizer")
    said["again"] = said["other"] * 2
    said["edited"] = edited(tokenizer, options.number // 2, quoting=True)
    said["edited, not quoted"] = edited(tokenizer, options.number // 2, quoting=False)
    said["calls"] = calls(tokenizer, options.number)
    json.dump({kind: measured(rows) for kind, rows in said.items()}, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
