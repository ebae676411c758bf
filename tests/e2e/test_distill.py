"""A draft is trained on the answers of a real server; a process that is killed anywhere goes on."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from tests.e2e.conftest import IN_PROCESS, Deploy, Until
from tests.support.command_line import trtspec
from trtspec.measure.workloads.workload import Recorded, append_recorded, read_recorded

TINY = Path(__file__).parents[2] / "recipes" / "tiny"
SAID = (
    "def read(path):\n    ",
    "class Stack:\n    ",
    "import os\n",
    "for line in lines:\n    ",
    "try:\n    ",
)


@IN_PROCESS
def test_the_answers_are_those_of_the_server(server: Deploy, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in SAID))

    for api in (f"http://127.0.0.1:{server.ports[0]}", server.api):
        said = trtspec(
            "distill", TINY / "recipe.yaml", "--workload", prompts, "--url", api, "--max-tokens", 12,
            "--epochs", 1, "--output", tmp_path / "out", "--json",
        )  # fmt: skip

        assert said.returncode == 0, said.stderr
        (file,) = (tmp_path / "out" / "answers").iterdir()
        answers = read_recorded(file)
        assert {answer.prompt: answer.text for answer in answers} == {
            prompt: server.generate(prompt, max_tokens=12) for prompt in SAID
        }
        assert json.loads(said.stdout)["learned"]["answers"] == len(SAID) - 2
        file.unlink()


@pytest.mark.sweep
def test_a_process_that_is_killed_goes_on(tmp_path: Path, until: Until) -> None:
    dice = random.Random(4)
    answers = [
        Recorded(
            str(number),
            prompt_token_ids=tuple(dice.randrange(300, 2000) for _ in range(8)),
            answer_token_ids=tuple(dice.randrange(300, 310) for _ in range(60)),
        )
        for number in range(80)
    ]
    append_recorded(tmp_path / "answers.jsonl", answers)

    def command(output: Path) -> list[str]:
        words = ("--answers", tmp_path / "answers.jsonl", "--epochs", 2, "--output", output)
        return [sys.executable, "-m", "trtspec", "distill", *map(str, (TINY / "recipe.yaml", *words))]

    subprocess.run(command(tmp_path / "whole"), check=True)
    killed = tmp_path / "killed"

    def has_taken(last: int) -> bool:
        files = killed.glob("training-*/loss.jsonl")
        return any(len(file.read_text().splitlines()) >= last for file in files)

    for last in (2, 7, 15):
        process = subprocess.Popen(command(killed))
        until(partial(has_taken, last), f"step {last}")
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    subprocess.run(command(killed), check=True)

    for name in ("draft/model.safetensors", "draft/config.json"):
        assert (killed / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    (first,), (second,) = (folder.glob("training-*/loss.jsonl") for folder in (killed, tmp_path / "whole"))
    assert first.read_bytes() == second.read_bytes()
