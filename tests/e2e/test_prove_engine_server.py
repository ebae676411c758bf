"""`trtspec prove` of a build that another engine's server serves, which it starts: a stand-in for vLLM's."""

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


def prove(build: Path, *words: object) -> subprocess.CompletedProcess[str]:
    few = ("--workload", "code", "--prompts", 2, "--max-tokens", 4, "--streams", 1, "--block-prompts", 1)
    how = ("--cases", "none", "--in-turns", "--output", build.parent / "proof", "--json")
    return trtspec("prove", f"{RECIPE}:{build}", *few, *how, "--python", sys.executable, *words)


def test_both_sides_take_turns(build: Path) -> None:
    """The one that runs when the texts are there is measured first: a start takes minutes."""
    done = prove(build, "--draws", 20)
    assert done.returncode == 0, done.stdout + done.stderr
    started = [line for line in done.stderr.splitlines() if line.startswith("starting")]
    assert [line.partition(",")[0] for line in started] == [
        "starting vLLM without drafts",
        "starting vLLM with drafts",
        "starting vLLM without drafts",
    ]
    assert "vllm-project/vllm#55005" in done.stderr
    assert json.loads(done.stdout)["outcome"] == "proven"
    assert sorted(file.name for file in build.glob(".trtspec/served/*.log")) == ["vllm-plain.log", "vllm.log"]
    assert not [line for _, line in command_lines() if str(build) in " ".join(line)]


@pytest.mark.parametrize("owner", ["vllm", pytest.param("sglang", marks=pytest.mark.sweep), "tensorrt_llm"])
def test_a_difference_is_held_against_the_plain_one_again(tmp_path: Path, owner: str) -> None:
    """SGLang and trtllm-serve tell no log-probabilities of ids: the margin is found by a bias."""
    build = with_tokenizer(written(tmp_path / "build", FAKE_SERVER="differs", FAKE_OWNER=owner))
    done = prove(build, "--draws", 0)
    assert done.returncode == 1, done.stderr
    assert done.stderr.count("starting vLLM without drafts") == 2
    way, *_ = json.loads(done.stdout)["texts"]["comparisons"]
    difference, *_ = way["differences"]
    assert (difference["what"], difference["kind"]) == ("tokens", "fault")
    assert difference["margin"] == pytest.approx(2.9 if owner == "vllm" else 3.0, rel=0.05)


def test_a_python_that_is_none_is_told(build: Path) -> None:
    done = prove(build, "--python", "/no/python")
    assert done.returncode == 1
    assert "/no/python: is no program" in " ".join(done.stderr.split())


def test_a_server_that_does_not_start_is_told_with_its_reason(tmp_path: Path) -> None:
    done = prove(with_tokenizer(written(tmp_path / "build", FAKE_SERVER="crashes")))
    assert done.returncode == 1
    assert "vLLM: ended with status 1: the GPU has too little free memory" in " ".join(done.stderr.split())
