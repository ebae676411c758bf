"""The tiny pair, measured: speculation against the target alone, and both against transformers.

    python -m tests.perf.pair [--prompts 12] [--tokens 128] [--draft-tokens 4] [--dtype float32]

Everything runs in one process on the same threads. Every prompt is a block: it goes through all four ways
before the next one does, forwards and backwards in turn, so that what another program takes of the machine
meets each way alike. A ratio is the geometric mean of the blocks' own, `low` and `high` its interval of 95 %
confidence as `trtspec bench` has it, and `blocks` has the least and the most. JSON on stdout.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import transformers
from transformers import AutoModelForCausalLM, PreTrainedModel

from trtspec.measure.bench import statistics as intervals
from trtspec.serving.assembly import assemble
from trtspec.serving.completion import NO_END, Completion, CompletionRequest
from trtspec.serving.executors.torch.device_thread import DeviceThread
from trtspec.serving.executors.torch.torch_executor import TorchExecutor
from trtspec.serving.tokenizer import Tokenizer

ROOT = Path(__file__).parents[2]
TINY = ROOT / "recipes" / "tiny"
Run = Callable[[list[int]], list[int]]


def main() -> None:
    options = parse()
    torch.set_num_threads(os.cpu_count() or 1)
    with tempfile.TemporaryDirectory() as folder:
        build = built(Path(folder), options.dtype)
        tokenizer = Tokenizer.load(build / "tokenizer")
        warm_up, *prompts = (tokenizer.encode(text) for text in heldout(options.prompts + 1))
        spoken: list[Completion] = []
        # Each way has engines of its own, so that none finds a prompt in its cache. All run on one thread:
        # OpenMP's helpers of a second would make both slow.
        device_thread = DeviceThread()
        ways = {
            "plain": ours(device_thread, build, tokenizer, options.tokens, 0, []),
            "speculative": ours(
                device_thread, build, tokenizer, options.tokens, options.draft_tokens, spoken
            ),
            **theirs(device_thread, options.tokens, getattr(torch, options.dtype)),
        }
        for run in ways.values():
            run(warm_up)
        seconds, same = measure(ways, prompts)
    result = {
        "machine": machine(),
        "prompts": options.prompts,
        "tokens": options.tokens,
        "num_draft_tokens": options.draft_tokens,
        "dtype": options.dtype,
        "tokens_per_second": {
            way: round(options.tokens * options.prompts / sum(times), 1) for way, times in seconds.items()
        },
        "ratios": {
            f"{way} / {base}": ratio(seconds[way], seconds[base])
            for way, base in (
                ("speculative", "plain"),
                ("plain", "transformers"),
                ("speculative", "transformers_assisted"),
            )
        },
        "same_text": same,
        "draft_acceptance_rate": rate(spoken, "draft_acceptance_rate"),
        "mean_acceptance_length": rate(spoken, "mean_acceptance_length"),
    }
    json.dump(result, sys.stdout, indent=2)
    print()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prompts", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--draft-tokens", type=int, default=4)
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    return parser.parse_args()


def built(folder: Path, dtype: str, max_batch_size: int = 16) -> Path:
    recipe = folder / "recipe.yaml"
    text = (TINY / "recipe.yaml").read_text().replace("dtype: float32", f"dtype: {dtype}")
    text = text.replace("max_batch_size: 16", f"max_batch_size: {max_batch_size}")
    for model in ("target", "draft"):
        text = text.replace(f"./{model}", str(TINY / model))
    recipe.write_text(text)
    return run_build(recipe, folder / "build")


def run_build(recipe: Path, output: Path, tree: Path = ROOT) -> Path:
    """Builds a recipe with a checkout of trtspec, and returns the build."""
    paths = str(recipe.resolve()), "--output", str(output.resolve())
    command = [sys.executable, "-m", "trtspec", "build", *paths]
    environment = os.environ | {"PYTHONPATH": str(tree)}
    subprocess.run(command, check=True, stdout=sys.stderr, cwd=tree, env=environment)
    return output


def heldout(count: int) -> list[str]:
    """Beginnings of 300 characters, from the middle of files that the pair was not trained on."""
    library = Path(sysconfig.get_paths()["stdlib"])
    names = (TINY / "heldout.txt").read_text().split()
    texts = [(library / names[number % len(names)]).read_text(encoding="utf-8") for number in range(count)]
    return [text[len(text) // 2 :][:300] for text in texts]


def ours(
    device_thread: DeviceThread,
    build: Path,
    tokenizer: Tokenizer,
    tokens: int,
    num_draft_tokens: int,
    spoken: list[Completion],
) -> Run:
    loop = asyncio.new_event_loop()
    draft = TorchExecutor(build / "draft" / "engine", device_thread=device_thread)
    target = TorchExecutor(build / "target" / "engine", device_thread=device_thread)
    coordinator = assemble(target, draft, tokenizer)

    def run(prompt: list[int]) -> list[int]:
        request = CompletionRequest(
            prompt_token_ids=prompt, max_tokens=tokens, num_draft_tokens=num_draft_tokens, end_id=NO_END
        )
        delta = loop.run_until_complete(coordinator.complete(request))
        assert delta.completion is not None
        spoken.append(delta.completion)
        return delta.token_ids

    return run


def theirs(device_thread: DeviceThread, tokens: int, dtype: torch.dtype) -> dict[str, Run]:
    """transformers' `generate` with its own defaults, but for an end token that never comes."""
    target, draft = (
        device_thread.call(partial(AutoModelForCausalLM.from_pretrained, TINY / name, dtype=dtype))
        for name in ("target", "draft")
    )
    for model in (target, draft):
        assert model.generation_config is not None
        model.generation_config.eos_token_id = None

    def run(prompt: list[int], assistant: PreTrainedModel | None = None) -> list[int]:
        ids = torch.tensor([prompt])
        output = target.generate(
            ids, assistant_model=assistant, max_new_tokens=tokens, do_sample=False, pad_token_id=0
        )
        return list(output[0, len(prompt) :].tolist())

    return {
        "transformers": lambda prompt: device_thread.call(lambda: run(prompt)),
        "transformers_assisted": lambda prompt: device_thread.call(lambda: run(prompt, draft)),
    }


def measure(ways: dict[str, Run], prompts: list[list[int]]) -> tuple[dict[str, list[float]], bool]:
    """Seconds of each way for each prompt, and whether all of them said the same."""
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    same = True
    for number, prompt in enumerate(prompts):
        texts = []
        for way in list(ways) if number % 2 == 0 else reversed(ways):
            start = time.perf_counter()
            texts.append(ways[way](prompt))
            seconds[way].append(time.perf_counter() - start)
        same &= all(text == texts[0] for text in texts)
        print(f"prompt {number + 1}/{len(prompts)}", file=sys.stderr)
    return seconds, same


def ratio(fast: list[float], slow: list[float]) -> dict[str, float | list[float]]:
    """How many times as many tokens per second, with how sure that is, as `trtspec bench` has it."""
    pairs = list(zip(slow, fast, strict=True))
    found = intervals.ratio(pairs, 0.95)
    assert found is not None, f"{len(pairs)} blocks are too few; 6 are not"
    blocks = [b / a for b, a in pairs]
    return {
        "ratio": round(found.value, 2),
        "low": round(found.low, 2),
        "high": round(found.high, 2),
        "median": round(statistics.median(blocks), 2),
        "blocks": [round(min(blocks), 2), round(max(blocks), 2)],
    }


def rate(completions: list[Completion], name: str) -> float:
    rates: list[float] = [getattr(completion.speculation, name) for completion in completions]
    return round(statistics.mean(rates), 3)


def machine() -> dict[str, object]:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    name = next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    return {
        "cpu": name,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


if __name__ == "__main__":
    main()
