"""The Dockerfile of pods."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from trtspec.recipe.releases import release_of

FILE = Path(__file__).parents[3] / "Dockerfile"


def stages() -> dict[str, list[str]]:
    """The instructions of each stage, whole lines of theirs joined."""
    text = re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", FILE.read_text(), flags=re.MULTILINE))
    found: dict[str, list[str]] = {}
    for part in re.split(r"^FROM ", text, flags=re.MULTILINE)[1:]:
        first, *rest = part.splitlines()
        found[first.split(" AS ")[1]] = [line for line in rest if line]
    return found


def test_hadolint_finds_nothing() -> None:
    said = subprocess.run([Path(sys.prefix, "bin", "hadolint"), FILE], capture_output=True, text=True)
    assert (said.returncode, said.stdout) == (0, "")


def test_both_images_serve_pods() -> None:
    """Of no user's, behind a first process that reaps, and nothing is to be written in them."""
    for name in ("torch", "tensorrt_llm"):
        lines = stages()[name]
        assert [line for line in lines if line.startswith("USER ")][-1] == "USER 1000:1000"
        (entry,) = (line for line in lines if line.startswith("ENTRYPOINT "))
        assert entry.startswith('ENTRYPOINT ["/usr/bin/tini", "--"')
        assert "ENV HOME=/tmp PYTHONDONTWRITEBYTECODE=1" in lines
        installs = [line for line in lines if " pip " in line]
        assert installs
        assert all(line.count(" install ") == line.count("--no-cache-dir") for line in installs)


def test_the_image_is_that_of_the_release_that_recipes_have_by_default() -> None:
    assert f"ARG TRITON_IMAGE={release_of(None).pinned}\n" in FILE.read_text()
