"""The demo pair under vLLM itself, deployed by `trtspec deploy` and held to the torch backend's own text."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import TRTSPEC, free_ports, wait_until
from tests.perf.pair import heldout
from tests.processes import command_lines
from tests.servers.conftest import PYTHON, ROOT
from trtspec.servers import triton_vllm
from trtspec.servers.launch import Launch
from trtspec.verify.in_process import InProcess, load_build
from trtspec.verify.subject import PLAIN, Question

pytestmark = pytest.mark.vllm

TINY = ROOT / "recipes/tiny"
K, TOKENS = 4, 64
START_S = 1200.0
PAIR = f"""
name: tiny
target: {{model: {TINY}/target, dtype: float32}}
draft: {{model: {TINY}/draft}}
speculation: {{num_draft_tokens: {K}}}
engine: {{backend: vllm, release: 0.32.0, max_seq_len: 1000}}
hardware: {{gpu: none}}
"""
LOOKUP = f"""
name: lookup
target: {{model: {TINY}/target, dtype: float32}}
speculation: {{method: {{kind: ngram, prompt_lookup_min: 1, prompt_lookup_max: 3}}, num_draft_tokens: {K}}}
engine: {{backend: vllm, release: 0.32.0, max_seq_len: 1000}}
hardware: {{gpu: none}}
"""
PROMPTS = heldout(12)


@dataclass
class Deployed:
    recipe: Path
    build: Path
    process: subprocess.Popen[bytes]
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def said(self) -> list[str]:
        """What it answers to each prompt, greedily."""
        return [self.completed(prompt) for prompt in PROMPTS]

    def completed(self, prompt: str) -> str:
        body = {"model": "speculative_llm", "prompt": prompt, "max_tokens": TOKENS, "temperature": 0}
        request = urllib.request.Request(
            f"{self.url}/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=120) as response:
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


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployer]:
    """Builds a recipe and deploys it with these options; what it is ended with is a test's."""
    folder, running = tmp_path_factory.mktemp("deployed"), list[Deployed]()

    def deploy(text: str, *options: str) -> Deployed:
        recipe = folder / f"{re.findall('name: (.*)', text)[0]}.yaml"
        recipe.write_text(text)
        build, port = recipe.with_suffix(""), free_ports()[0]
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

    yield deploy
    for one in running:
        one.process.terminate()
        one.process.wait(120)


@pytest.fixture(scope="module")
def pair(deployed: Deployer) -> Deployed:
    return deployed(PAIR)


@pytest.fixture(scope="module")
def plain(deployed: Deployer) -> Deployed:
    return deployed(PAIR, "--plain")


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], float]:
    """The torch backend's greedy text, and the acceptance of its drafts."""
    folder = tmp_path_factory.mktemp("torch")
    recipe = folder / "recipe.yaml"
    recipe.write_text(PAIR.replace("backend: vllm, release: 0.32.0", "backend: torch"))
    subprocess.run([TRTSPEC, "build", recipe, "--output", folder / "build"], check=True)

    async def ask() -> tuple[list[str], float]:
        subject = InProcess("tiny", load_build(folder / "build", "speculative_llm"))
        try:
            texts = [(await subject.ask(Question(prompt, TOKENS, PLAIN))).text for prompt in PROMPTS]
            drafted = [await subject.ask(Question(prompt, TOKENS, K)) for prompt in PROMPTS]
        finally:
            await subject.close()
        assert [answer.text for answer in drafted] == texts
        return texts, sum(one.accepted or 0 for one in drafted) / sum(one.drafted or 0 for one in drafted)

    return asyncio.run(ask())


def trtspec(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([TRTSPEC, *map(str, words)], capture_output=True, text=True, check=False)


def test_a_pair_says_what_the_torch_backend_says(pair: Deployed, own: tuple[list[str], float]) -> None:
    texts, acceptance = own
    assert pair.said() == texts
    assert abs(pair.acceptance() - acceptance) < 0.03


def test_generate_speaks_to_it(pair: Deployed, own: tuple[list[str], float]) -> None:
    said = trtspec("generate", "--url", pair.url, "--max-tokens", TOKENS, PROMPTS[0])
    assert said.stdout == own[0][0] + "\n"
    assert re.match(r"\d+ tokens, \d+ tokens/s", said.stderr)


def test_verify_finds_it_lossless(pair: Deployed, plain: Deployed) -> None:
    words = ("--url", pair.url, "--baseline", plain.url, "--draws", 0, "--max-tokens", 32)
    found = trtspec("verify", pair.recipe, "--output", pair.build, *words)
    assert found.returncode == 0, found.stdout + found.stderr
    assert "lossless" in found.stdout


def test_verify_starts_it_without_drafts_and_with_them(pair: Deployed) -> None:
    words = ("--python", PYTHON, "--prompt", "code-1", "--draws", 0, "--max-tokens", 8)
    found = trtspec("verify", pair.recipe, "--output", pair.build, *words)
    assert found.returncode == 0, found.stdout + found.stderr
    assert found.stderr.count("starting vLLM") == 2
    assert "lossless" in found.stdout


def test_bench_measures_it_against_the_plain_one(pair: Deployed, plain: Deployed, tmp_path: Path) -> None:
    words = ("--streams", 1, "--block-prompts", 1, "--max-tokens", 16, "--completions")
    against = ("--url", pair.url, "--baseline", plain.url)
    done = trtspec("bench", *against, *words, "--output", tmp_path / "bench")
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "bench/result.json").read_text())
    (level,) = result["levels"]
    assert level["speedup"] is not None
    assert "vllm" in result["server"]["software"]
    assert "accepted" in json.dumps(level)


def test_ngrams_say_the_same_and_nothing_is_left(deployed: Deployer, own: tuple[list[str], float]) -> None:
    lookup = deployed(LOOKUP)
    assert lookup.said() == own[0]
    assert len(lookup.processes()) > 1
    lookup.process.terminate()
    assert lookup.process.wait(120) == 0
    assert lookup.processes() == []


def test_a_killed_deploy_leaves_no_vllm(plain: Deployed) -> None:
    assert len(plain.processes()) > 1
    plain.process.kill()
    wait_until(lambda: not plain.processes(), "the end of vLLM and of its engine", 120)


def test_tritons_backend_makes_an_engine_of_it(launched: Callable[..., Launch]) -> None:
    """`AsyncEngineArgs(**json)`, as the backend has it."""
    launch = launched("vllm", speculation="{num_draft_tokens: 3}", serving="{layout: triton}")
    code = (
        "import json, sys; from vllm.engine.arg_utils import AsyncEngineArgs;"
        "config = AsyncEngineArgs(**json.load(sys.stdin)).create_engine_config();"
        "speculation = config.speculative_config;"
        "print(json.dumps([config.model_config.max_model_len, speculation.method,"
        " speculation.num_speculative_tokens]))"
    )
    given = json.dumps(triton_vllm.engine_arguments(launch))
    result = subprocess.run(
        [PYTHON, "-c", code], input=given, stdout=subprocess.PIPE, text=True, check=True, cwd="/"
    )
    found: list[Any] = json.loads(result.stdout.splitlines()[-1])
    assert found == [1024, "draft_model", 3]
