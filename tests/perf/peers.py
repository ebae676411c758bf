"""The tiny pair in process, beside vLLM on the same processors, threads, dtype and texts; JSON on stdout.

    make .venv-vllm/.ready
    python -m tests.perf.peers --vllm .venv-vllm/bin/python [--tree WORKTREE] [--ways draft ...] [--http]

Each engine is a process (`peer.py`), all are loaded before the first block, and they answer the same block of
new prompts one after another, forwards and backwards in turn. With `--http` they are servers, asked by the
same client. Those whose turn it is not are stopped: vLLM keeps a processor busy for a second behind each
answer, and that of the next would be slower. A ratio is that of `pair.py`. Drafts are of four tokens, with
`--policy adaptive` trtspec's of as many as its default policy chooses. With `--tree` another checkout of
trtspec takes part as `before`. The first start of each way of vLLM compiles for two minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from itertools import combinations
from pathlib import Path
from typing import Any

from tests.perf.pair import ROOT, TINY, built, heldout, machine, ratio, run_build
from tests.perf.peer import MAX_LEN, PLACES, TOKENS
from trtspec.serving.tokenizer import Tokenizer

ALONE = """\
name: alone
target: {{model: ./target, dtype: {dtype}}}
speculation: {{method: ngram, max_draft_len: 8}}
engine: {{backend: torch, max_batch_size: {places}, max_seq_len: {length}}}
hardware: {{gpu: none}}
"""


class Peer:
    """A process with one engine; `seconds` has those of its blocks."""

    def __init__(self, kind: str, model: Path, python: str, options: tuple[str, ...], tree: Path) -> None:
        way, *others = options
        command = [python, str(ROOT / "tests/perf/peer.py"), kind, way, str(model), *others]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            cwd=tree, env=os.environ | {"PYTHONPATH": str(tree)}, start_new_session=True,
        )  # fmt: skip
        self.seconds: list[float] = []
        self._answer()
        self._signal(signal.SIGSTOP)

    def run(self, prompts: list[list[int]]) -> list[Any]:
        """Returns what the engine says to a block of prompts."""
        assert self._process.stdin is not None
        self._signal(signal.SIGCONT)
        print(json.dumps(prompts), file=self._process.stdin, flush=True)
        answer = self._answer()
        self._signal(signal.SIGSTOP)
        self.seconds.append(answer["seconds"])
        texts: list[Any] = answer["texts"]
        return texts

    def end(self) -> None:
        assert self._process.stdin is not None
        self._signal(signal.SIGCONT)
        self._process.stdin.close()
        self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        """Sends a signal to the engine and all its processes."""
        os.killpg(self._process.pid, number)

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        answer: dict[str, Any] = json.loads(self._process.stdout.readline() or "null")
        return answer


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--vllm", help="the Python of an environment with vLLM; left out without")
    parser.add_argument("--tree", type=Path, help="another checkout of trtspec")
    parser.add_argument("--model", type=Path, help="a model that has no draft: --ways plain ngram")
    parser.add_argument("--ways", nargs="+", default=["plain", "draft", "ngram"])
    parser.add_argument("--streams", nargs="+", type=int, default=[1, 16])
    parser.add_argument("--blocks", type=int, default=7)
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--policy", default="fixed", choices=["fixed", "adaptive"])
    parser.add_argument("--http", action="store_true", help="through OpenAI's API of each one's own server")
    options = parser.parse_args()
    how = {"dtype": options.dtype, "policy": options.policy, "http": options.http}
    result: dict[str, Any] = {"machine": machine(), "tokens": TOKENS, **how}
    with tempfile.TemporaryDirectory() as folder:
        if options.model:
            models = beside(Path(folder), options.model)
            build = built_alone(models, options.dtype)
        else:
            models, build = TINY, built(Path(folder), options.dtype)
        for way in options.ways:
            chosen = (way, options.dtype, options.policy, *["http"] * options.http)
            if options.http and way == "ngram":  # A server has its method from its recipe.
                (alone := Path(folder, "alone")).mkdir()
                build = built_alone(beside(alone, TINY / "target"), options.dtype)
            peers = {"trtspec": Peer("trtspec", build, sys.executable, chosen, ROOT)}
            if options.tree:
                # A server runs the code in its build.
                earlier = run_build(build.parent / "recipe.yaml", build.parent / "before", options.tree)
                peers["before"] = Peer("trtspec", earlier, sys.executable, chosen, options.tree)
            if options.vllm:
                peers["vllm"] = Peer("vllm", models, options.vllm, chosen, ROOT)
            tokenizer = Tokenizer.load(build / "tokenizer")
            result[way] = {
                f"{streams} streams": measured(peers, streams, options.blocks, tokenizer)
                for streams in options.streams
            }
            for peer in peers.values():
                peer.end()
    json.dump(result, sys.stdout, indent=2)
    print()


def beside(folder: Path, model: Path) -> Path:
    """Links to the model as `target` in a folder, and returns that."""
    (folder / "target").symlink_to(model.resolve())
    return folder


def built_alone(folder: Path, dtype: str) -> Path:
    """Returns the build of `target` in a folder, for the `torch` backend and without a draft."""
    recipe = folder / "recipe.yaml"
    recipe.write_text(ALONE.format(dtype=dtype, length=MAX_LEN, places=PLACES))
    return run_build(recipe, folder / "build")


def measured(peers: dict[str, Peer], streams: int, blocks: int, tokenizer: Tokenizer) -> dict[str, Any]:
    """Tokens per second, their ratios, and the share of texts that all say alike; one block more warms up."""
    prompts = [tokenizer.encode(text) for text in heldout(streams * (blocks + 1))]
    same = 0
    for number in range(blocks + 1):
        block = prompts[streams * number :][:streams]
        texts = [peers[name].run(block) for name in (list(peers) if number % 2 else reversed(peers))]
        same += sum(all(text == said[0] for text in said) for said in zip(*texts, strict=True))
    seconds = {name: peer.seconds[-blocks:] for name, peer in peers.items()}
    return {
        "tokens_per_second": {
            name: round(TOKENS * streams * blocks / sum(times)) for name, times in seconds.items()
        },
        "ratios": {
            f"{fast} / {slow}": ratio(seconds[fast], seconds[slow]) for fast, slow in combinations(peers, 2)
        },
        "same_texts": f"{same} of {len(prompts)}",
    }


if __name__ == "__main__":
    main()
