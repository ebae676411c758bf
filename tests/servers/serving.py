"""vLLM itself, deployed by `trtspec deploy`, and what the torch backend says to the same recipe."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.conftest import TRTSPEC, wait_until
from tests.servers.judges import PYTHON, ROOT
from tests.support.ports import free_port
from tests.support.processes import command_lines
from trtspec.measure.verify.opening import InProcess, load_build
from trtspec.measure.verify.sides import PLAIN, VerifyRequest

TINY = ROOT / "recipes/tiny"
K, TOKENS = 4, 64
START_S = 1200.0
ENGINE = (
    "engine: {backend: vllm, release: 0.32.0, max_seq_len: 1000, max_batch_size: 8}\nhardware: {gpu: none}\n"
)


@dataclass
class Deployed:
    recipe: Path
    build: Path
    process: subprocess.Popen[bytes]
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def said(self, prompts: Sequence[str]) -> list[str]:
        """What it answers to each prompt, greedily."""
        return [self.completed(prompt) for prompt in prompts]

    def completed(self, prompt: str) -> str:
        name = json.loads((self.build / "launch.json").read_text())["served_model_name"]
        body = {"model": name, "prompt": prompt, "max_tokens": TOKENS, "temperature": 0}
        request = urllib.request.Request(
            f"{self.url}/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=300) as response:
            text: str = json.load(response)["choices"][0]["text"]
        return text

    def acceptance(self) -> float:
        """The share of draft tokens that were accepted, by the server's own counters."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=30) as response:
            text = response.read().decode()
        drafted, accepted = (
            float(re.findall(rf"^vllm:spec_decode_num_{name}_tokens_total\S* (\S+)$", text, re.MULTILINE)[0])
            for name in ("draft", "accepted")
        )
        return accepted / drafted

    def processes(self) -> list[str]:
        """The server and whatever it started: all of its session."""
        found = []
        for pid, line in command_lines():
            try:
                session = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[3])
                own = " ".join(line)
                leader = Path(f"/proc/{session}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if f"--port {self.port} " in f"{leader} " or f"--port {self.port} " in f"{own} ":
                found.append(own)
        return found


Deployer = Callable[..., Deployed]


@contextmanager
def deploying(folder: Path) -> Iterator[Deployer]:
    """Yields what builds a recipe and deploys it with these options; all that still runs is ended."""
    running = list[Deployed]()

    def deploy(text: str, *options: str) -> Deployed:
        recipe = folder / f"{re.findall('name: (.*)', text)[0]}.yaml"
        recipe.write_text(text)
        build, port = recipe.with_suffix(""), free_port()
        if not build.exists():
            subprocess.run([TRTSPEC, "build", recipe, "--output", build], check=True)
        said = folder / f"{port}.log"
        words = [str(recipe), "--output", str(build), "--openai-port", str(port), *options]
        environment = {**os.environ, "TRTSPEC_SERVER_PYTHON": str(PYTHON)}
        with said.open("wb") as file:
            process = subprocess.Popen(
                [TRTSPEC, "deploy", *words], stdout=file, stderr=subprocess.STDOUT, env=environment
            )
        running.append(Deployed(recipe, build, process, port))

        def is_ready() -> bool:
            assert process.poll() is None, said.read_text()
            return "is ready" in said.read_text()

        wait_until(is_ready, "vLLM ready", START_S)
        return running[-1]

    try:
        yield deploy
    finally:
        for one in running:
            one.process.terminate()
            one.process.wait(120)


def of_torch(folder: Path, text: str, prompts: Sequence[str]) -> tuple[list[str], float]:
    """The torch backend's greedy text, which its drafts do not change, and the acceptance of these."""
    recipe = folder / "recipe.yaml"
    recipe.write_text(text.replace("backend: vllm, release: 0.32.0", "backend: torch"))
    subprocess.run([TRTSPEC, "build", recipe, "--output", folder / "build"], check=True)

    async def ask() -> tuple[list[str], float]:
        subject = InProcess("torch", load_build(folder / "build", "speculative_llm"))
        try:
            texts = [(await subject.ask(VerifyRequest(prompt, TOKENS, PLAIN))).text for prompt in prompts]
            drafted = [await subject.ask(VerifyRequest(prompt, TOKENS, K)) for prompt in prompts]
        finally:
            await subject.close()
        assert [answer.text for answer in drafted] == texts
        return texts, sum(one.accepted or 0 for one in drafted) / sum(one.drafted or 0 for one in drafted)

    return asyncio.run(ask())


def trtspec(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([TRTSPEC, *map(str, words)], capture_output=True, text=True, check=False)
