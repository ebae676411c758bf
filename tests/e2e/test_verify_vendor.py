"""`trtspec verify` of a build that another engine's server serves, which it starts: a stand-in for vLLM's."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.conftest import RECIPE, TINY
from tests.e2e.test_deploy_engine_server import written
from tests.support.command_line import trtspec
from tests.support.processes import command_lines


@pytest.fixture
def build(tmp_path: Path) -> Path:
    return with_tokenizer(written(tmp_path / "build"))


def with_tokenizer(build: Path) -> Path:
    (build / "tokenizer").mkdir()
    for name in ("tokenizer.json", "config.json"):
        shutil.copy(TINY / "target" / name, build / "tokenizer")
    return build


def verify(build: Path, *words: object) -> subprocess.CompletedProcess[str]:
    few = ("--prompt", "code-1", "--prompt", "list-1", "--max-tokens", 4, "--python", sys.executable)
    return trtspec("verify", RECIPE, "--output", build, *few, *words)


def test_both_sides_take_turns(build: Path) -> None:
    """Neither is started twice, though texts and samples are asked of both."""
    done = verify(build, "--draws", 20)
    assert done.returncode == 0, done.stdout + done.stderr
    started = [line for line in done.stderr.splitlines() if line.startswith("starting")]
    assert [line.partition(",")[0] for line in started] == [
        "starting vLLM without drafts",
        "starting vLLM with drafts",
    ]
    assert "vllm-project/vllm#55005" in done.stderr
    assert done.stdout.splitlines()[-1].startswith("lossless: all 4 greedy answers with drafts are the same")
    assert sorted(file.name for file in build.glob(".trtspec/served/*.log")) == ["vllm-plain.log", "vllm.log"]
    assert not [line for _, line in command_lines() if str(build) in " ".join(line)]


@pytest.mark.parametrize("owner", ["vllm", pytest.param("sglang", marks=pytest.mark.sweep), "tensorrt_llm"])
def test_a_difference_is_held_against_the_plain_one_again(tmp_path: Path, owner: str) -> None:
    """SGLang and trtllm-serve tell no log-probabilities of ids: the margin is found by a bias."""
    build = with_tokenizer(written(tmp_path / "build", FAKE_SERVER="differs", FAKE_OWNER=owner))
    done = verify(build, "--draws", 0, "--json", "--concurrency", 2)
    assert done.returncode == 1, done.stderr
    assert done.stderr.count("starting vLLM without drafts") == 2
    way, *_ = json.loads(done.stdout)["comparisons"]
    difference, *_ = way["differences"]
    assert (difference["what"], difference["kind"]) == ("tokens", "fault")
    assert difference["margin"] == pytest.approx(2.9 if owner == "vllm" else 3.0, rel=0.05)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--num-draft-tokens", 3), "vllm takes K at its start only"),
        (("--python", "/no/python"), "/no/python: is no program"),
    ],
)
def test_verify_refuses_options_that_the_engine_server_cannot_take(
    build: Path, words: tuple[object, ...], said: str
) -> None:
    done = verify(build, *words)
    assert done.returncode in (1, 2)
    assert said in " ".join(done.stderr.split())


def test_a_server_that_does_not_start_is_told_with_its_reason(tmp_path: Path) -> None:
    build = with_tokenizer(written(tmp_path / "build", FAKE_SERVER="crashes"))
    done = verify(build)
    assert done.returncode == 1
    assert "vLLM: ended with status 1: the GPU has too little free memory" in " ".join(done.stderr.split())
