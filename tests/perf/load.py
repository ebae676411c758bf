"""The tiny pair under `trtspec deploy` with more streams than places; prints JSON.

Every number of streams shares out the same completions, all there are at once or a few after one another, so
that the work is the same: what differs is what the load costs. A single stream does a sixteenth of it.
`rows_per_token` are the tokens that went through the target, those of prompts and drafts included, for each
one generated.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import tokenizers

from tests.support.ports import free_ports
from trtspec.client.endpoint import EndpointRequest
from trtspec.client.finding import find
from trtspec.measure.bench.sample import RequestSample
from trtspec.measure.bench.statistics import percentiles
from trtspec.measure.bench.traffic import Manner, closed_loop
from trtspec.measure.workloads.workload import Prompt

HERE = Path(__file__).parent
TINY = HERE.parents[1] / "recipes" / "tiny"
PLACES = 16
STREAMS = (1, PLACES, 64, 256)
COMPLETIONS = 256
TOKENS = 32
PROMPTS = {"short": 20, "long": 600}
DRAFTS = {"drafts": 4, "plain": 0}
DEADLINE_S = 60.0
PATIENCE_S = 600.0


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--prompts", nargs="+", choices=PROMPTS, default=list(PROMPTS))
    parser.add_argument("--drafts", nargs="+", choices=DRAFTS, default=list(DRAFTS))
    parser.add_argument("--streams", nargs="+", type=int, default=list(STREAMS))
    parser.add_argument("--tokens", type=int, default=TOKENS, help="of a completion")
    parser.add_argument("--repeats", type=int, default=3, help="of short prompts; the fastest counts")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, deployed(Path(folder)) as server:
        texts = Texts(server.build)
        asyncio.run(measure(server, texts.cut(PROMPTS["short"])[:PLACES], PLACES, 4, options.tokens))
        results = {
            f"{prompt} prompts, {draft}": levels(server, texts, prompt, draft, options)
            for prompt in options.prompts
            for draft in options.drafts
        }
    print(json.dumps(results, indent=1))


def levels(
    server: Server, texts: Texts, prompt: str, draft: str, options: argparse.Namespace
) -> dict[str, dict[str, float]]:
    """Of equal runs, in turns with the others, the one that the rest of the machine disturbed least."""
    runs: dict[str, list[dict[str, float]]] = {f"{streams} streams": [] for streams in options.streams}
    # A level of long prompts takes a minute, in which disturbances even out.
    for _ in range(options.repeats if prompt == "short" else 1):
        for streams, found in zip(options.streams, runs.values(), strict=True):
            prompts = texts.cut(PROMPTS[prompt])[: None if streams > 1 else COMPLETIONS // PLACES]
            found.append(asyncio.run(measure(server, prompts, streams, DRAFTS[draft], options.tokens)))
    return {level: max(found, key=lambda run: run["tokens_per_s"]) for level, found in runs.items()}


@dataclass(frozen=True)
class Server:
    """A `trtspec deploy` of the tiny pair; `rows` is what its target has computed until now."""

    build: Path
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def rows(self) -> int:
        asked = time.monotonic()
        told = {"at": 0.0}
        while told["at"] < asked:
            time.sleep(0.02)
            told = json.loads((self.build / "model_repository/speculative_llm/1/told.json").read_text())
        return int(told["rows"])


@contextmanager
def deployed(folder: Path) -> Iterator[Server]:
    build, trtspec = folder / "build", [sys.executable, "-m", "trtspec"]
    recipe = str(TINY / "recipe.yaml")
    subprocess.run([*trtspec, "build", recipe, "--output", str(build)], check=True, stdout=sys.stderr)
    shutil.copy(HERE / "load_model.py", build / "model_repository/speculative_llm/1/model.py")
    http, *others = free_ports()
    ports = [f"--http-port={http}", f"--grpc-port={others[0]}", f"--metrics-port={others[1]}"]
    # One core is left for Triton and the clients.
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [*trtspec, "deploy", recipe, "--output", str(build), "--no-openai", *ports],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    try:
        assert process.stdout is not None
        # What `deploy` prints is printed when the server is ready; if it never is, it ends.
        if not process.stdout.readline():
            raise SystemExit("the server did not start")
        yield Server(build, http)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            process.kill()


class Texts:
    """Cuts from files that the pair was not trained on, no two of which begin alike."""

    def __init__(self, build: Path) -> None:
        library = Path(sysconfig.get_paths()["stdlib"])
        self._tokenizer = tokenizers.Tokenizer.from_file(str(build / "tokenizer/tokenizer.json"))
        texts = [(library / name).read_text("utf-8") for name in (TINY / "heldout.txt").read_text().split()]
        self._ids = [token for text in texts for token in self._tokenizer.encode(text).ids]
        self._next = 0

    def cut(self, length: int) -> list[str]:
        """As many as there are completions, of `length` tokens, none of which was there before."""
        return [self.one(length) for _ in range(COMPLETIONS)]

    def one(self, length: int) -> str:
        self._next = (self._next + 977) % (len(self._ids) - length)
        text: str = self._tokenizer.decode(self._ids[self._next : self._next + length])
        return text


async def measure(
    server: Server, prompts: list[str], streams: int, num_draft_tokens: int, tokens: int
) -> dict[str, float]:
    rows = server.rows()
    asked = [Prompt(str(number), (text,)) for number, text in enumerate(prompts)]
    manner = Manner(tokens, 0.0, 0, True, num_draft_tokens, None, _whole)
    found = await find(server.url, None, chat=False, timeout_s=PATIENCE_S)
    try:
        block = await closed_loop(found.endpoint, asked, streams, manner)
    finally:
        await found.endpoint.close()
    generated = sum(sample.output_tokens for sample in block.samples)
    first = percentiles([sample.pieces[0] - sample.sent for sample in block.samples])
    gaps = [later - earlier for sample in block.samples for earlier, later in pairwise(sample.pieces)]
    assert first is not None
    told = {
        "tokens_per_s": round(generated / block.seconds, 1),
        "first_token_p50_s": round(first.p50, 3),
        "first_token_p95_s": round(first.p95, 3),
        "largest_gap_s": round(max(gaps), 3),
        "rows_per_token": round((server.rows() - rows) / generated, 2),
    }
    print(f"{streams} streams, K {num_draft_tokens}, {block.seconds:.1f} s: {told}", file=sys.stderr)
    return told


def _whole(sample: RequestSample, question: EndpointRequest, text: str) -> None:
    if sample.error is not None or sample.output_tokens != question.max_tokens:
        raise SystemExit(f"no whole answer: {sample}")


if __name__ == "__main__":
    main()
