"""`trtspec prove` on servers that it starts, on the tiny pair, and on one server twice."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from tests.e2e.conftest import IN_PROCESS, RECIPE, TINY, Deploy, Deployer, wait_until
from tests.e2e.test_openai_serve import TOOL_TEMPLATE
from tests.fakes import seeded_faults as faults
from tests.support.command_line import trtspec
from tests.support.processes import command_lines
from tests.unit.measure.verify.test_cases import FAULTS

ROOT = Path(__file__).parents[2]
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
SHORT = (*FEW[2:], "--streams", 1, "--prompts", 4)
TEXTS = "bursts,alike,cancels"
RUNS = 20


def command(name: str, *options: str, how: str = "") -> str:
    """A stand-in for vLLM's server, started by `prove`."""
    words = ["env", f"FAKE_SERVER={how}", f"PYTHONPATH={ROOT}", sys.executable, "-m"]
    words += ["tests.fakes.openai_server", "--model", str(TINY / "target"), "--served-model-name", name]
    return shlex.join([*words, "--host", "127.0.0.1", *options])


PLAIN = command("plain")


def prove(folder: Path, *words: object) -> tuple[CompletedProcess[str], dict[str, object]]:
    done = trtspec("prove", *words, "--output", folder / "proof", "--json", folder=folder)
    return done, json.loads(done.stdout) if done.stdout else {}


def drafting(how: str = "") -> str:
    return command("drafts", "--speculative-config", '{"num_speculative_tokens": 4}', how=how)


@pytest.mark.parametrize("turns", ["--at-once", pytest.param("--in-turns", marks=pytest.mark.sweep)])
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
    ports = {file.stem.removeprefix("served-") for file in tmp_path.glob(".trtspec/served-*.log")}
    assert len(ports) == 2
    assert not [line for _, line in command_lines() if ports & {*line}]


def test_a_server_that_says_another_text_is_refuted(tmp_path: Path) -> None:
    done, found = prove(tmp_path, PLAIN, drafting("differs"), *FEW, "--cases", "none")
    assert (done.returncode, found["outcome"]) == (1, "refuted")
    assert "answers otherwise" in str(found["words"])


@pytest.mark.sweep
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


@dataclass
class Built:
    """The tiny pair with a template that shows tools, and one honest server of it."""

    folder: Path
    honest: Deploy

    def faulty(self, fault: str, folder: Path, deployer: Deployer) -> Deploy:
        """Deploys a copy of the build, whose engines have the fault."""
        build = folder / "build"
        shutil.copytree(self.folder, build, ignore=shutil.ignore_patterns("*.log"))
        model = build / "model_repository/speculative_llm/1"
        shutil.copy(ROOT / "tests/fakes/faulty_model.py", model / "model.py")
        (model / "fault").write_text(f"{ROOT}\n{fault}")
        return ready(deployer(build, with_api=True))


def ready(server: Deploy) -> Deploy:
    wait_until(lambda: server.is_ready, "the server ready")
    return server


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Built]:
    folder = tmp_path_factory.mktemp("honest")
    recipe = folder / "recipe.yaml"
    text = RECIPE.read_text().replace("model: ./", f"model: {TINY}/")
    recipe.write_text(text.replace("max_draft_len: 8", "num_draft_tokens: 4"))
    assert trtspec("build", recipe, "--output", folder / "build").returncode == 0
    (folder / "build/tokenizer/chat_template.jinja").write_text(TOOL_TEMPLATE)
    deployer = Deployer(folder)
    try:
        yield Built(folder / "build", ready(deployer(folder / "build", with_api=True)))
    finally:
        deployer.end_all()


@pytest.mark.parametrize(
    ("case", "fault"),
    [
        pytest.param(case, fault.__name__, marks=pytest.mark.sweep)
        for case, fault in (*FAULTS, ("tools", faults.ignores_guides))
    ],
)
def test_a_server_with_a_fault_is_refuted_by_its_case(
    case: str, fault: str, built: Built, tmp_path: Path, deployer: Deployer
) -> None:
    new = built.faulty(fault, tmp_path, deployer)
    place = (built.honest.api, new.api, "--tokenizer", built.folder / "tokenizer", "--dtype", "float32")
    done, found = prove(tmp_path, *place, *SHORT, "--cases", case)
    assert (done.returncode, found["outcome"]) == (1, "refuted"), done.stdout + done.stderr
    assert f"1 of 1 cases failed: {case}" in str(found["words"])


@pytest.mark.parametrize(
    ("case", "how"),
    [("tools", "breaks_calls"), pytest.param("reasoning", "answers_early", marks=pytest.mark.sweep)],
)
def test_a_chat_that_drafts_break_is_refuted_by_its_case(tmp_path: Path, case: str, how: str) -> None:
    done, found = prove(tmp_path, PLAIN, drafting(), *SHORT, "--cases", case)
    assert (done.returncode, found["outcome"]) == (0, "proven"), done.stdout + done.stderr
    done, found = prove(tmp_path, PLAIN, drafting(how), *SHORT, "--cases", case)
    assert (done.returncode, found["outcome"]) == (1, "refuted"), done.stdout + done.stderr
    assert f"1 of 1 cases failed: {case}" in str(found["words"])


@pytest.mark.parametrize("turns", ["--at-once", pytest.param("--in-turns", marks=pytest.mark.sweep)])
def test_a_case_that_ends_the_server_refutes_it_and_the_report_says_which(tmp_path: Path, turns: str) -> None:
    """vLLM 0.32 ends so without a GPU, with a draft model: `apply_top_k_only` of no rows."""
    cases = ("--cases", "sampled,reasoning", turns)
    done, found = prove(tmp_path, PLAIN, drafting("dies_of_top_k"), *SHORT, *cases)
    assert (done.returncode, found["outcome"]) == (1, "refuted"), done.stdout + done.stderr
    assert "1 of 2 cases failed: sampled" in str(found["words"])
    assert "no speed is stated" in str(found["words"])
    summary = (tmp_path / "proof/summary.md").read_text()
    assert "does not answer any more since the case sampled" in summary
    assert "sampled" in (tmp_path / "proof/report.html").read_text()


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
