"""What a person at a terminal sees, by a terminal of the kernel's (pty)."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.support.command_line import trtspec
from tests.unit.cli.test_app import TRTSPEC

TINY = Path(__file__).parents[3] / "recipes" / "tiny"


def at_terminal(*words: str | Path, folder: Path) -> str:
    """Returns what a command shows, without the sequences that colour and erase; it must succeed."""
    ours, theirs = os.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    environment.pop("CI", None)
    with subprocess.Popen(
        [TRTSPEC, *words], cwd=folder, stdout=theirs, stderr=theirs, env=environment
    ) as run:
        os.close(theirs)
        shown = b""
        try:
            while piece := os.read(ours, 4096):
                shown += piece
        except OSError:  # Linux says EIO when nobody has the other end any more.
            pass
        os.close(ours)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode()).replace("\r\n", "\n")
    text = re.sub(r"(?m)^.*\r", "", text)
    assert run.returncode == 0, text
    return text


def test_steps_have_ticks_and_the_next_command_is_told(tmp_path: Path) -> None:
    recipe = TINY / "recipe.yaml"
    shown = at_terminal("build", recipe, "--output", "there", folder=tmp_path)

    assert re.search(r"^✓ convert target  \d+\.\d s$", shown, re.MULTILINE)
    assert re.search(r"steps run in \d+\.\d s\nthere\n", shown)
    assert shown.endswith(f"\nnext: trtspec deploy {recipe} --output there\n")


def test_store_push_and_migrate_show_the_next_command_on_a_terminal(tmp_path: Path) -> None:
    recipe = TINY / "recipe.yaml"
    assert trtspec("build", recipe, folder=tmp_path).returncode == 0

    shown = at_terminal("store", "push", "engines", recipe, folder=tmp_path)
    assert shown.endswith("\nnext: trtspec store pull engines tiny --output build/tiny\n")
    shown = at_terminal("migrate", recipe, "--to", "vllm", "--output", "r.yaml", folder=tmp_path)
    assert shown.endswith("\nnext: trtspec check r.yaml\n")


@pytest.mark.parametrize("words", [("build", TINY / "recipe.yaml", "--dry-run"), ("doctor",)])
def test_nothing_is_told_where_nothing_can_follow(tmp_path: Path, words: tuple[str | Path, ...]) -> None:
    assert "next: " not in at_terminal(*words, folder=tmp_path)
