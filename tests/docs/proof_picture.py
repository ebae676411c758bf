"""Draws `docs/prove.png`: the table of a real `trtspec prove` as a pull request shows it.

    make picture        # Chromium must be there

The old recipe drafts by lookup, the new one with the draft of the tiny pair. The page has GitHub's colours,
and what `trtspec ci post` posts.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from markdown_it import MarkdownIt
from PIL import Image

from tests.docs.blocks import ROOT
from tests.e2e.conftest import RECIPE, TRTSPEC
from tests.support.chromium import Tab, look

PICTURE = ROOT / "docs" / "prove.png"
WIDTH, SCALE, COLOURS = 800, 1.25, 16
OPTIONS = "--streams 1,4 --block-prompts 4 --max-tokens 48 --draws 60 --old-price 2.5"
STYLE = """
body { margin: 0; padding: 16px; background: #fff; color: #1f2328; overflow-wrap: break-word;
  font: 14px/1.5 -apple-system, "Segoe UI", "Noto Sans", Helvetica, Arial, sans-serif; }
h3 { margin: 0 0 16px; font-size: 1.25em; line-height: 1.25; }
p, table, details, blockquote { margin: 0 0 16px; }
table { border-collapse: collapse; display: block; width: max-content; max-width: 100%; overflow: auto; }
th, td { padding: 6px 13px; border: 1px solid #d1d9e0; }
tr:nth-child(2n) td { background: #f6f8fa; }
code { padding: .2em .4em; border-radius: 6px; background: #818b981f;
  font: 85% ui-monospace, "DejaVu Sans Mono", monospace; }
blockquote { padding: 0 1em; border-left: .25em solid #d1d9e0; color: #59636e; }
sub { font-size: 75%; line-height: 0; vertical-align: baseline; }
"""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--picture", type=Path, default=PICTURE)
    parser.add_argument("--summary", type=Path, help="of an earlier run, in place of a new one")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        summary = options.summary or measured(Path(name))
        draw(summary.read_text(), Path(name), options.picture)


def measured(folder: Path) -> Path:
    """Returns the table of a proof, which takes about three minutes."""
    pair = RECIPE.read_text().replace("model: ./", f"model: {RECIPE.parent}/")
    draft = pair[pair.index("draft:") : pair.index("speculation:")]
    lookup = pair.replace(draft, "").replace("max_draft_len: 8", "method: ngram\n  max_draft_len: 8")
    program = {**os.environ, "PATH": f"{TRTSPEC.parent}:{os.environ['PATH']}"}
    for name, text in (("old", lookup), ("new", pair)):
        (folder / f"{name}.yaml").write_text(text.replace("name: tiny", f"name: {name}"))
        subprocess.run(
            ["trtspec", "build", f"{name}.yaml"], check=True, cwd=folder, env=program, stdout=sys.stderr
        )
    command = ["trtspec", "prove", "old.yaml", "new.yaml", *OPTIONS.split(), "--output", "proof"]
    subprocess.run(command, check=True, cwd=folder, env=program, stdout=sys.stderr)
    return folder / "proof/summary.md"


def draw(summary: str, folder: Path, picture: Path) -> None:
    shown = MarkdownIt("commonmark", {"breaks": True}).enable("table").render(summary)
    page = folder / "comment.html"
    opened = shown.replace("<details>", "<details open>")
    page.write_text(f"<!doctype html><meta charset=utf-8><style>{STYLE}</style>{opened}", encoding="utf-8")

    async def shoot(tab: Tab) -> None:
        height = await tab.evaluate("document.documentElement.scrollHeight")
        size = {"width": WIDTH, "height": height, "deviceScaleFactor": SCALE}
        await tab.ask("Emulation.setDeviceMetricsOverride", **size, mobile=False)
        await tab.screenshot(picture, whole=False)
        Image.open(picture).convert("RGB").quantize(COLOURS).save(picture, optimize=True)

    look(page, folder, shoot, width=WIDTH)


if __name__ == "__main__":
    main()
