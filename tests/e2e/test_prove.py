"""`trtspec prove` on servers that it starts, on the tiny pair, and on one server twice."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from tests.e2e.conftest import IN_PROCESS, RECIPE, TINY, Deploy
from tests.support.command_line import trtspec
from tests.support.processes import command_lines

FEW = ("--streams", "1,2", "--block-prompts", 2, "--max-tokens", 4, "--draws", 0, "--workload", "code")
LONG = (
    "--streams",
    "1,4",
    "--block-prompts",
    2,
    "--max-tokens",
    16,
    "--draws",
    40,
    "--workload",
    "code,list",
)
TEXTS = "bursts,alike,cancels"
RUNS = 20


def command(name: str, *options: str, how: str = "") -> str:
    """A stand-in for vLLM's server, started by `prove`."""
    words = ["env", f"FAKE_SERVER={how}", f"PYTHONPATH={Path(__file__).parents[2]}", sys.executable, "-m"]
    words += ["tests.fakes.openai_server", "--model", str(TINY / "target"), "--served-model-name", name]
    return shlex.join([*words, "--host", "127.0.0.1", *options])


PLAIN = command("plain")


def prove(folder: Path, *words: object) -> tuple[CompletedProcess[str], dict[str, object]]:
    done = trtspec("prove", *words, "--output", folder / "proof", "--json", folder=folder)
    return done, json.loads(done.stdout) if done.stdout else {}


def drafting(how: str = "") -> str:
    return command("drafts", "--speculative-config", '{"num_speculative_tokens": 4}', how=how)


@pytest.mark.parametrize("turns", ["--at-once", "--in-turns"])
def test_two_servers_that_say_the_same_are_proven(tmp_path: Path, turns: str) -> None:
    done, found = prove(tmp_path, PLAIN, drafting(), *FEW, "--cases", TEXTS, turns, "--old-price", 3)
    assert (done.returncode, found["outcome"]) == (0, "proven"), done.stdout + done.stderr
    assert sorted(file.name for file in (tmp_path / "proof").iterdir() if file.is_file()) == [
        "proof.json",
        "report.html",
        "summary.md",
    ]
    assert found["acceptance"] == {"old": None, "new": 0.25}, "as vLLM's counters tell"
    assert (tmp_path / "proof/summary.md").read_text().startswith("### Proven: ")
    assert not [line for _, line in command_lines() if "tests.fakes.openai_server" in line]


def test_a_server_that_says_another_text_is_refuted(tmp_path: Path) -> None:
    done, found = prove(tmp_path, PLAIN, drafting("differs"), *FEW, "--cases", "none")
    assert (done.returncode, found["outcome"]) == (1, "refuted")
    assert "answers otherwise" in str(found["words"])


def test_what_is_open_ends_with_3(tmp_path: Path) -> None:
    """A speed of exactly the old one's is within every interval."""
    done, found = prove(tmp_path, PLAIN, drafting(), *FEW, "--cases", "none", "--at-least", "1.0")
    assert (done.returncode, found["outcome"]) == (3, "open"), done.stdout


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((PLAIN,), "name NEW too"),
        (("http://127.0.0.1:9/v1",), "--tokenizer"),
        (("recipe.yaml", "--new-price", 3), "--new-price"),
        (("recipe.yaml", "--different"), "--different"),
        (("recipe.yaml", "--pairs", 7), "--pairs"),
    ],
)
def test_wrong_usage_is_refused(tmp_path: Path, words: tuple[object, ...], told: str) -> None:
    done = trtspec("prove", *words, folder=tmp_path)
    assert done.returncode == 2, done.stderr
    assert told in done.stderr


@pytest.mark.sweep
def test_the_tiny_pair_is_proven(tmp_path: Path) -> None:
    assert trtspec("build", RECIPE, "--output", tmp_path / "build").returncode == 0
    done, found = prove(tmp_path, f"{RECIPE}:{tmp_path / 'build'}", *LONG)
    assert (done.returncode, found["outcome"]) == (0, "proven"), done.stdout + done.stderr


@IN_PROCESS
@pytest.mark.sweep
def test_a_server_is_never_found_to_differ_from_itself(
    tmp_path: Path, server: Deploy, tiny_build: Path
) -> None:
    """Two runs of one server, many times: each must be proven, without a difference of speed."""
    place = (server.api, server.api, "--tokenizer", tiny_build / "tokenizer", "--dtype", "float32")
    said = []
    for number in range(RUNS):
        done, found = prove(tmp_path, *place, *LONG, "--cases", "none", "--seed", number)
        said.append((done.returncode, str(found.get("words"))))
    assert [status for status, _ in said] == [0] * RUNS, said
    assert all(words.endswith("no difference of speed was found") for _, words in said), said
