"""The demo pair under vLLM itself, deployed by `trtspec deploy` and held to the torch backend's own text."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import TRTSPEC, wait_until
from tests.perf.pair import heldout
from tests.servers.judges import PYTHON
from tests.servers.serving import ENGINE, TINY, TOKENS, Deployed, Deployer, K, of_torch, trtspec
from trtspec.backends.launch import ServerLaunch
from trtspec.backends.vllm import triton as triton_vllm
from trtspec.measure.verify.cases import NAMES

pytestmark = pytest.mark.vllm

TARGET = f"target: {{model: {TINY}/target, dtype: float32}}\n"
PAIR = f"""name: tiny
{TARGET}draft: {{model: {TINY}/draft}}
speculation: {{num_draft_tokens: {K}}}
{ENGINE}"""
LOOKUP = f"""name: lookup
{TARGET}speculation:
  method: {{kind: ngram, prompt_lookup_min: 1, prompt_lookup_max: 3}}
  num_draft_tokens: {K}
{ENGINE}"""
SUFFIX = f"""name: suffix
{TARGET}speculation: {{method: suffix, num_draft_tokens: 8}}
{ENGINE}"""
PROMPTS = heldout(12)
FEW = ("--streams", 1, "--block-prompts", 2, "--max-tokens", 24, "--workload", "code,list")


@pytest.fixture(scope="module")
def pair(deployed: Deployer) -> Deployed:
    return deployed(PAIR)


@pytest.fixture(scope="module")
def plain(deployed: Deployer) -> Deployed:
    return deployed(PAIR, "--plain")


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], float]:
    return of_torch(tmp_path_factory.mktemp("torch"), PAIR, PROMPTS)


def test_a_pair_says_what_the_torch_backend_says(pair: Deployed, own: tuple[list[str], float]) -> None:
    texts, acceptance = own
    assert pair.said(PROMPTS) == texts
    assert abs(pair.acceptance() - acceptance) < 0.03


def test_generate_speaks_to_it(pair: Deployed, own: tuple[list[str], float]) -> None:
    said = trtspec("generate", "--url", pair.url, "--max-tokens", TOKENS, PROMPTS[0])
    assert said.stdout == own[0][0] + "\n"
    assert re.match(r"\d+ tokens, \d+ tokens/s", said.stderr)


def test_prove_finds_it_lossless(pair: Deployed, plain: Deployed, tmp_path: Path) -> None:
    words = ("--tokenizer", pair.build / "tokenizer", "--dtype", "float32", *FEW, "--draws", 0)
    cases = ("--cases", ",".join(name for name in NAMES if name != "sampled"))
    found = trtspec("prove", plain.url, pair.url, *words, *cases, "--output", tmp_path / "proof")
    assert found.returncode == 0, found.stdout + found.stderr
    assert "proven" in found.stdout


def test_prove_starts_it_twice_and_finds_what_ends_it(pair: Deployed, tmp_path: Path) -> None:
    """With a draft model and no GPU, 0.32 ends at a request with a top-k: `apply_top_k_only` of no rows."""
    words = ("--python", PYTHON, *FEW, "--draws", 0, "--cases", "sampled,json", "--in-turns")
    found = trtspec("prove", f"{pair.recipe}:{pair.build}", *words, "--output", tmp_path / "proof")
    assert found.returncode == 1, found.stdout + found.stderr
    for drafts in ("without drafts", "with drafts"):
        assert f"starting vLLM {drafts}" in found.stderr
    assert "refuted: 1 of 2 cases failed: sampled" in " ".join(found.stdout.split())
    proof = json.loads((tmp_path / "proof/proof.json").read_text())
    assert proof["texts"]["cases"][1]["state"] == "skipped"


def test_prove_holds_the_torch_backend_to_it(plain: Deployed, tmp_path: Path) -> None:
    recipe = tmp_path / "own.yaml"
    recipe.write_text(PAIR.replace("backend: vllm, release: 0.32.0", "backend: torch"))
    subprocess.run([TRTSPEC, "build", recipe, "--output", tmp_path / "build"], check=True)
    new = f"{recipe}:{tmp_path / 'build'}"
    words = (*FEW, "--streams", "1,4", "--draws", 60)
    done = trtspec("prove", plain.url, new, *words, "--output", tmp_path / "proof")
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "proof/proof.json").read_text())
    assert found["outcome"] == "proven"
    states = {case["name"]: case["state"] for case in found["texts"]["cases"]}
    assert "fault" not in states.values()
    assert states["bursts"] == states["cancels"] == states["long"] == "ok"


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


def test_tune_starts_it_for_each_k_and_runs_across_the_threshold(pair: Deployed, tmp_path: Path) -> None:
    workload = tmp_path / "code.jsonl"
    workload.write_text("".join(f"{json.dumps({'prompt': prompt})}\n" for prompt in heldout(200)))
    words = ("--streams", "1,4", "--longest", 1, "--turns", 6, "--max-tokens", 16, "--python", PYTHON)
    done = trtspec(
        "tune", pair.recipe, "--schedule", "--workload", workload, *words, "--work", tmp_path, "--json"
    )
    assert done.returncode in (0, 1), done.stderr
    found = json.loads(done.stdout)
    assert set(found["schedule"].values()) <= {0, 1}
    assert "vllm 0.32.0" in found["origin"]
    assert "with a start of" in done.stderr
    thresholds = [int(least) for least in found["schedule"]][1:]
    assert [crossing["first"] for crossing in found["crossings"]] == thresholds
    assert done.returncode == 0 or "collapses" in done.stderr


@pytest.mark.parametrize("recipe", [LOOKUP, SUFFIX], ids=["ngram", "suffix"])
def test_lookup_says_the_same_and_nothing_is_left(
    recipe: str, deployed: Deployer, own: tuple[list[str], float]
) -> None:
    lookup = deployed(recipe)
    assert lookup.said(PROMPTS) == own[0]
    assert lookup.acceptance() > 0
    assert len(lookup.processes()) > 1
    lookup.process.terminate()
    assert lookup.process.wait(120) == 0
    assert lookup.processes() == []


def test_a_killed_deploy_leaves_no_vllm(plain: Deployed) -> None:
    assert len(plain.processes()) > 1
    plain.process.kill()
    wait_until(lambda: not plain.processes(), "the end of vLLM and of its engine", 120)


def test_tritons_backend_makes_an_engine_of_it(launched: Callable[..., ServerLaunch]) -> None:
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
