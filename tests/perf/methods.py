"""Where drafts come from, side by side: the target alone, the draft engine, prompt lookup, and both.

    python -m tests.perf.methods [--number 15] [--tokens 96] [--kinds quoting short ...]
    python -m tests.perf.methods --model FOLDER --draft FOLDER [--told]

The first measures the tiny pair; `workloads.py` says what it is asked. The second measures a chat model in
Hugging Face's form with its draft: `smollm.py` makes a model, and `layers.py --write` a poor draft of
some of its layers. With `--told` the draft is right as often as a good one: it is told the greedy answers.

Every question is a block. All ways answer it at the same time, in turns of a fraction of a second, each with
caches, an event loop and a clock of its own, which stand still while the others run; the weights are the
same memory. The seconds of an answer are those of its own clock, the reading of the prompt included. Kinds
follow one another, and what a policy knows it keeps. All ways must say the same. A ratio is of tokens per
second over all blocks of a kind; `low` and `high` are the 5th and the 95th percentile of its bootstrap over
blocks. Engines use one thread. JSON on stdout, the bars on stderr; the exit status is 1 when a bar is missed
or a text differs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from tests.perf.bar import Bar
from tests.perf.dictation import Dictated, dictate
from tests.perf.pair import built, machine, run_build
from tests.perf.traces import step_costs
from tests.perf.turns import Turns
from tests.perf.workloads import GREEDY, KINDS, Question, Questions, of_chat, of_tiny
from trtspec.serving.assembly import assemble
from trtspec.serving.completion import CompletionRequest
from trtspec.serving.drafters.source import DRAFT_MODEL, Drafting
from trtspec.serving.executors.torch.torch_executor import TorchExecutor
from trtspec.serving.tokenizer import Tokenizer

LONGEST = 8
LOOKUP = Drafting("ngram", {"prompt_lookup_min": 2, "prompt_lookup_max": 8})
HYBRID = Drafting("hybrid", {"prompt_lookup_min": 4, "prompt_lookup_max": 8})
WAYS: dict[str, tuple[Drafting | None, int | None]] = {
    "plain": (None, 0),
    "draft, K = 4": (DRAFT_MODEL, 4),
    "draft": (DRAFT_MODEL, None),
    "ngram": (LOOKUP, None),
    "hybrid": (HYBRID, None),
}
"""The method and K of each way; with None the policy chooses it."""
QUOTING, ELSEWHERE = 1.3, 0.97
RIGHT = 0.73
"""How often a draft is right that is told what the target says: as often as the tiny one is by itself."""


class Way:
    """A coordinator with engines of its own, which use the weights of those of `like`.

    `said` and `seconds` are of the last answer, and `drafts` counts by origin what was verified for it.
    """

    def __init__(
        self, build: Path, drafting: Drafting | None, length: int | None, like: Way | None = None
    ) -> None:
        self.said, self.seconds, self.drafts = list[int](), 0.0, dict[str, tuple[int, int, int]]()
        self.length, self._turns = length, Turns()
        tokenizer = Tokenizer.load(build / "tokenizer")
        thread = self._turns.device_thread
        self._draft = None
        if drafting in (DRAFT_MODEL, HYBRID):
            self._draft = TorchExecutor(build / "draft" / "engine", device_thread=thread)
        self._target = TorchExecutor(build / "target" / "engine", device_thread=thread)
        self.to_target: Dictated = dictate(self._target, like.to_target if like else None)
        self.to_draft: Dictated | None = None
        if self._draft:
            self.to_draft = dictate(self._draft, like.to_draft if like else None)
        self._coordinator = assemble(
            self._target,
            self._draft,
            tokenizer,
            drafting=drafting,
            policy="adaptive" if length is None else "fixed",
        )
        self._answer: asyncio.Task[None] | None = None

    def begin(self, question: Question, told: Sequence[int]) -> None:
        """Begins to answer, at the first turn; the draft is `told` what the target says, if anything."""
        prompt = question.request.prompt_token_ids or ()
        self.to_target.text = [*prompt, *question.dictated] if question.dictated else ()
        if self.to_draft:
            self.to_draft.text, self.to_draft.right = [*prompt, *told] if told else (), RIGHT
        self._answer = self._turns.loop.create_task(self._answered(question.request))

    def answer(self, question: Question) -> list[int]:
        """Answers without a pause, and returns the tokens."""
        self.begin(question, ())
        while not self.turn(1):
            pass
        return self.said

    def turn(self, seconds: float) -> bool:
        """Goes on for so long and says whether the answer is complete."""
        assert self._answer is not None
        self._turns.turn(asyncio.wait([self._answer], timeout=seconds))
        if self._answer.done():
            self._answer.result()
        return self._answer.done()

    async def _answered(self, request: CompletionRequest) -> None:
        clock, before = self._turns.loop.time, self._counts()
        self.said, begin = [], clock()
        async with aclosing(
            self._coordinator.stream(replace(request, num_draft_tokens=self.length))
        ) as deltas:
            async for delta in deltas:
                self.said += delta.token_ids
        self.seconds = clock() - begin
        self.drafts = {
            origin: (a - before[origin][0], b - before[origin][1], c - before[origin][2])
            for origin, (a, b, c) in self._counts().items()
        }

    def _counts(self) -> dict[str, tuple[int, int, int]]:
        return {
            origin: (counts.num_spec_steps, counts.num_draft_tokens, counts.num_accepted_draft_tokens)
            for origin, counts in self._coordinator.stats.by_origin.items()
        }

    def close(self) -> None:
        self._turns.go_on()
        for engine in (self._draft, self._target):
            if engine is not None:
                engine.shutdown()


def main() -> int:
    options = parse()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        if options.model:
            build = built_of(Path(folder), options.model, options.draft)
            asked = of_chat(options.model, options.number, options.tokens)
        else:
            build = built(Path(folder), "float32")
            asked = of_tiny(build, options.number, options.tokens)
        first = Way(build, DRAFT_MODEL, 0)
        ways = {name: Way(build, *made, like=first) for name, made in WAYS.items()}
        blocks = measured(
            ways,
            {kind: asked[kind] for kind in options.kinds},
            options.slice,
            first if options.told else None,
        )
        for way in (*ways.values(), first):
            way.close()
        costs = step_costs(build, 1)
    result = {
        "machine": machine(),
        "model": options.model.name if options.model else "tiny",
        "tokens": options.tokens,
        "step_ms": {"draft": costs.draft, "target": costs.base + costs.row, "row": costs.row},
        "same_text": all(block["same_text"] for block in blocks),
        "kinds": {
            kind: of_kind([block for block in blocks if block["kind"] == kind]) for kind in options.kinds
        },
    }
    held = bars(result["kinds"])
    result |= {"bars": [asdict(bar) for bar in held], "blocks": blocks}
    json.dump(result, sys.stdout, indent=2)
    print()
    print(*held, sep="\n", file=sys.stderr)
    return 0 if result["same_text"] and all(bar.is_met for bar in held) else 1


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, help="a chat model; without it the tiny pair")
    parser.add_argument("--draft", type=Path, help="its draft")
    parser.add_argument("--told", action="store_true", help="the draft is told what the model says")
    parser.add_argument("--number", type=int, default=15, help="the most questions of each kind")
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=KINDS)
    parser.add_argument("--slice", type=float, default=0.1)
    return parser.parse_args()


def built_of(folder: Path, model: Path, draft: Path | None = None) -> Path:
    recipe = folder / "recipe.yaml"
    proposing = f"draft: {{model: {draft.resolve()}, dtype: float32}}\n" if draft else ""
    recipe.write_text(
        f"name: methods\ntarget: {{model: {model.resolve()}, dtype: float32}}\n{proposing}"
        f"speculation: {{method: {'draft_model' if draft else 'ngram'}, max_draft_len: {LONGEST}}}\n"
        "engine: {max_seq_len: 2048, max_batch_size: 4}\nhardware: {gpu: none}\n"
    )
    return run_build(recipe, folder / "build")


def measured(
    ways: dict[str, Way], asked: Questions, seconds: float, teller: Way | None
) -> list[dict[str, Any]]:
    """Returns what each way did with each question; the first of all kinds are asked once before, uncounted.

    The `teller` answers before all others, and the drafts are told what it says.
    """
    for questions in asked.values():
        answered(ways, questions[0], seconds, 0, teller)
    blocks: list[dict[str, Any]] = []
    for index in range(max(map(len, asked.values()))):
        for kind, questions in asked.items():
            for question in questions[index : index + 1]:
                same = answered(ways, question, seconds, index, teller)
                blocks.append({"kind": kind, "same_text": same, **of_block(ways, question)})
    return blocks


def answered(
    ways: dict[str, Way], question: Question, seconds: float, number: int, teller: Way | None
) -> bool:
    """Lets all ways answer in turns, and says whether they said the same."""
    told = question.dictated
    if teller and question.request.sampling == GREEDY:
        told = teller.answer(question)
    for way in ways.values():
        way.begin(question, told)
    left = list(ways.values())[:: 1 if number % 2 else -1]
    while left:
        left = [way for way in left[::-1] if not way.turn(seconds)]
    return all(way.said == ways["plain"].said for way in ways.values())


def of_block(ways: dict[str, Way], question: Question) -> dict[str, Any]:
    return {
        "name": question.name,
        "input_tokens": len(question.request.prompt_token_ids or ()),
        "output_tokens": len(ways["plain"].said),
        "seconds": {name: round(way.seconds, 5) for name, way in ways.items()},
        "drafts": {name: {key: c for key, c in way.drafts.items() if c[0]} for name, way in ways.items()},
    }


def of_kind(blocks: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns tokens per second, ratios, and by origin the rounds with K and accepted tokens of each."""
    seconds = {name: [block["seconds"][name] for block in blocks] for name in WAYS}
    said = sum(block["output_tokens"] for block in blocks)
    better = min(("plain", "draft"), key=lambda name: sum(seconds[name]))
    compared = [(name, "plain") for name in WAYS if name != "plain"] + [("hybrid", "draft")]
    return {
        "requests": len(blocks),
        "tokens_per_second": {name: round(said / sum(times), 1) for name, times in seconds.items()},
        "ratios": {
            **{f"{name} / {base}": ratio(seconds[name], seconds[base]) for name, base in compared},
            "hybrid / better of plain and draft": ratio(seconds["hybrid"], seconds[better]),
        },
        "drafts": {name: drafts(blocks, name) for name in WAYS},
    }


def ratio(fast: Sequence[float], slow: Sequence[float]) -> dict[str, float]:
    """Returns how many times as many tokens per second, with how sure that is."""
    blocks, choose, again = list(zip(fast, slow, strict=True)), random.Random(0), list[float]()
    for _ in range(1000):
        chosen = choose.choices(blocks, k=len(blocks))
        again.append(sum(block[1] for block in chosen) / sum(block[0] for block in chosen))
    again.sort()
    return {
        "ratio": round(sum(slow) / sum(fast), 3),
        "low": round(again[50], 3),
        "high": round(again[949], 3),
    }


def drafts(blocks: list[dict[str, Any]], name: str) -> dict[str, dict[str, float]]:
    totals: dict[str, list[int]] = {}
    for block in blocks:
        for origin, counts in block["drafts"][name].items():
            totals[origin] = [a + b for a, b in zip(totals.get(origin, (0, 0, 0)), counts, strict=True)]
    return {
        origin: {"rounds": steps, "K": round(sent / steps, 2), "accepted": round(taken / steps, 2)}
        for origin, (steps, sent, taken) in totals.items()
    }


def bars(kinds: dict[str, Any]) -> list[Bar]:
    """Returns the bars of prompt lookup and of both together, by kind."""
    held = []
    for kind, found in kinds.items():
        bases = ("plain", "draft") if kind == "quoting" else ("plain", "better of plain and draft")
        for name, base in zip(("ngram", "hybrid"), bases, strict=True):
            measured = found["ratios"][f"{name} / {base}"]
            least = QUOTING if kind == "quoting" else ELSEWHERE
            spread = (measured["low"], measured["high"])
            held.append(Bar(f"{name} / {base}, {kind}", measured["ratio"], least, True, spread))
    return held


if __name__ == "__main__":
    sys.exit(main())
