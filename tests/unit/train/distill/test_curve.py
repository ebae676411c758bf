from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

from trtspec.train.distill.curve import LossCurve, LossPoint, as_line, as_svg

FALLING = [LossPoint(step, 8 / step, 1e-3) for step in range(1, 101)]


def test_a_line_for_the_terminal() -> None:
    first, bars, last = as_line(FALLING, 10).split()
    assert float(first) > float(last)
    assert len(bars) == 10
    assert (bars[0], bars[-1]) == ("█", "▁")
    assert list(bars) == sorted(bars, reverse=True)
    assert as_line([FALLING[0]]) == "8.000 ▁ 8.000"


def test_a_picture() -> None:
    root = ElementTree.fromstring(as_svg(FALLING))
    lines = [line.get("points", "").split() for line in root.iter("{http://www.w3.org/2000/svg}polyline")]
    assert [len(line) for line in lines] == [100, 20]
    heights = [float(point.split(",")[1]) for point in lines[0]]
    assert heights == sorted(heights)  # The axis points down.
    ElementTree.fromstring(as_svg(FALLING[:1]))


def test_the_file_begins_again_behind_a_checkpoint(tmp_path: Path) -> None:
    curve = LossCurve(tmp_path / "loss.jsonl")
    curve.restart([])
    for point in FALLING[:5]:
        curve.add(point)
    again = LossCurve(tmp_path / "loss.jsonl")
    again.restart(FALLING[:3])
    again.add(FALLING[3])
    steps = [json.loads(line)["step"] for line in (tmp_path / "loss.jsonl").read_text().splitlines()]
    assert steps == [1, 2, 3, 4]
