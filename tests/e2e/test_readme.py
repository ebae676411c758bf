"""The README's path on an H200, word for word, with stand-ins for docker, TensorRT-LLM and the two models.

The recipe of the README is that of the tiny pair here. `selftest` has tests of its own, which take minutes.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.docs.blocks import ROOT, Block, blocks, is_printed
from tests.e2e.in_docker import Docker
from tests.e2e.test_docs import with_ports
from tests.e2e.test_tensorrt_llm import write_recipe
from tests.fakes.bindings import BINDINGS
from tests.fakes.gpu_machine import H200
from tests.support.command_line import trtspec

README = ROOT / "README.md"
RECIPE = "recipes/llama-3.3-70b-h200.yaml"
END = "# what it prints\n"
ELSEWHERE = ("pip install", "HF_TOKEN=", "selftest")


def on_a_gpu() -> list[Block]:
    """Returns the blocks of commands of the section, without those that are run elsewhere."""
    text = README.read_text(encoding="utf-8")
    section = text[text.index("## On an H100 or H200") : text.index("## The recipe")]
    found = [block for block in blocks(README) if block.text in section]
    return [block for block in found if not any(word in block.text for word in ELSEWHERE)]


def answer() -> Any:
    """Returns the answer that the page shows."""
    (found,) = re.findall(
        r"^```json\n(.*?)^```$", README.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )
    return json.loads(found)


def likeness(shown: Any, got: Any) -> None:
    """Asserts that what the page shows of an answer is there, with the types that it shows."""
    if isinstance(shown, dict):
        for key, value in shown.items():
            if key != "...":
                likeness(value, got[key])
    elif isinstance(shown, list):
        for one, other in zip(shown, got, strict=True):
            likeness(one, other)
    else:
        assert type(shown) is type(got) or {type(shown), type(got)} <= {int, float}


@pytest.fixture
def clone(docker: Docker, tmp_path: Path) -> Path:
    """A clone on a machine with one H200."""
    folder = tmp_path / "clone"
    (folder / "recipes").mkdir(parents=True)
    text = write_recipe(tmp_path, "gpu: h200", "release: 1.2.1").read_text()
    (folder / RECIPE).write_text(text.replace("name: tiny", "name: llama-3.3-70b-h200"))
    docker.machine.gpus(H200)
    # Triton's Python looks for packages in the working folder.
    build = folder / "build/llama-3.3-70b-h200"
    build.mkdir(parents=True)
    (build / "tensorrt_llm").symlink_to(BINDINGS / "tensorrt_llm")
    return folder


def test_the_path_on_an_h200(docker: Docker, clone: Path) -> None:
    pages = [block for block in on_a_gpu() if "trtspec plan" not in block.text]
    shown = "\n".join(line for block in pages for line in block.printed)
    script, _, shown = with_ports("".join(block.script for block in pages) + END + shown).partition(END)
    path = os.pathsep.join([str(Path(sys.executable).parent), docker.environment["PATH"]])
    done = subprocess.run(
        ["bash", "-e", "-c", script],
        cwd=clone,
        env={**docker.environment, "PATH": path},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    said = f"{done.stdout}\n{done.stderr}"
    assert done.returncode == 0, said
    assert len(shown.splitlines()) > 5
    assert [line for line in shown.splitlines() if not is_printed(line, said)] == [], said
    likeness(answer(), json.loads(done.stdout.splitlines()[-1]))
    assert docker.trtspec("deploy", "stop").returncode == 0


@pytest.mark.usefixtures("without_network")
def test_the_plan_of_the_page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The recipe is the real one. The Hub is not asked."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    (page,) = [block for block in on_a_gpu() if "trtspec plan" in block.text]
    _, *words = page.script.split()
    environment = {**os.environ, "PATH": "/usr/bin:/bin", "TRTSPEC_CACHE": str(tmp_path)}
    said = trtspec(*words, folder=ROOT, environment=environment).stdout
    assert [line for line in page.printed if not is_printed(line, said)] == [], said
