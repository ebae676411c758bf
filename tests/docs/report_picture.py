"""Draws `docs/report.png`: how the report of a real `trtspec bench` of the tiny pair begins.

    make picture        # Chromium must be there

The prompts are functions of Python's standard library, up to the end of their docstrings.
"""

from __future__ import annotations

import argparse
import ast
import json
import random
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from tests.docs.blocks import ROOT
from tests.e2e.conftest import RECIPE, TRTSPEC
from tests.support.chromium import Tab, look

PICTURE = ROOT / "docs" / "report.png"
PROMPTS, WIDTH, SCALE = 384, 1180, 1.5
BOTTOM = "Math.ceil(document.querySelectorAll('main > section')[1].getBoundingClientRect().bottom) + 16"
"""The end of the second section: the verdict stands in the first, tokens a second in the next."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--picture", type=Path, default=PICTURE)
    picture = parser.parse_args().picture
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        draw(measured(folder), folder, picture)


def measured(folder: Path) -> Path:
    """Returns the report of a measurement, which takes about five minutes."""
    prompts, build, output = folder / "functions.jsonl", folder / "build", folder / "bench"
    prompts.write_text("".join(f"{json.dumps({'prompt': head})}\n" for head in heads()))
    subprocess.run([TRTSPEC, "build", RECIPE, "--output", build], check=True, stdout=sys.stderr)
    load = ("--workload", prompts, "--streams", "1,2,4,8", "--max-tokens", "64", "--block-prompts", "16")
    command = [TRTSPEC, "bench", RECIPE, "--build", build, *load, "--output", output]
    subprocess.run([str(word) for word in command], check=True, stdout=sys.stderr)
    return output / "report.html"


def heads() -> list[str]:
    """Returns the beginnings of functions of the standard library, the same ones each time."""
    found = []
    for file in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        text = file.read_text(encoding="utf-8", errors="replace")
        for node in ast.parse(text).body:
            if isinstance(node, ast.FunctionDef) and ast.get_docstring(node):
                found.append("\n".join(text.splitlines()[node.lineno - 1 : node.body[0].end_lineno]) + "\n")
    return random.Random(1).sample([head for head in found if len(head) < 800], PROMPTS)


def draw(report: Path, folder: Path, picture: Path) -> None:
    async def shoot(tab: Tab) -> None:
        size = {"width": WIDTH, "height": await tab.evaluate(BOTTOM), "deviceScaleFactor": SCALE}
        await tab.ask("Emulation.setDeviceMetricsOverride", **size, mobile=False)
        await tab.screenshot(picture, whole=False)

    seen = look(report, folder, shoot, width=WIDTH)
    if seen.complaints:
        raise SystemExit(f"the browser complains of the report: {seen.complaints}")


if __name__ == "__main__":
    main()
