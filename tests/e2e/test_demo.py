"""`trtspec demo`, which `make demo` runs."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.e2e.conftest import TRTSPEC, wait_until
from tests.support.processes import naming
from trtspec.measure.commands.demo import PROMPT

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def test_the_demo_shows_a_completion_its_acceptance_and_the_same_text_without_drafts(tmp_path: Path) -> None:
    said = subprocess.run(
        [TRTSPEC, "demo"],
        cwd=tmp_path,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )

    assert said.returncode == 0, said.stderr
    assert said.stdout.startswith(PROMPT)
    assert len(said.stdout) > 2 * len(PROMPT)
    assert re.search(
        r"^120 tokens, \d+ tokens/s, \d+ of \d+ draft tokens accepted", said.stderr, re.MULTILINE
    )
    assert re.search(r"^the policy .* chose [1-8]\.\d tokens on average$", said.stderr, re.MULTILINE)
    assert re.search(r"the same text: 120 tokens, \d+ tokens/s, nothing drafted$", said.stderr, re.MULTILINE)
    assert said.stderr.endswith("stopping Triton\n")


@pytest.mark.sweep
def test_killed_it_leaves_no_server(tmp_path: Path) -> None:
    with (tmp_path / "said").open("wb") as file:
        demo = subprocess.Popen([TRTSPEC, "demo"], cwd=tmp_path, env=ENVIRONMENT, stdout=file, stderr=file)
    wait_until(lambda: servers(tmp_path), "a server")

    demo.kill()
    demo.wait()

    wait_until(lambda: not servers(tmp_path), "the end of the server")


def servers(folder: Path) -> list[str]:
    """The command lines of the tritonservers of builds in a folder."""
    return [line for line in naming(folder) if "--model-repository=" in line]
