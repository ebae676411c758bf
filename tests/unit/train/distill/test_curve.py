from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

from trtspec.train.distill.curve import LossCurve, LossPoint, as_line, draw_losses

FALLING = [LossPoint(step, 8 / step, 1e-3) for step in range(1, 101)]


def test_a_line_for_the_terminal() -> None:
    first, bars, last = as_line(FALLING, 10).split()
    assert float(first) > float(last)
    assert len(bars) == 10
    assert (bars[0], bars[-1]) == ("█", "▁")
    assert list(bars) == sorted(bars, reverse=True)
    assert as_line([FALLING[0]]) == "8.000 ▁ 8.000"


def test_the_picture_has_every_step_and_their_mean(tmp_path: Path) -> None:
    draw_losses(FALLING, tmp_path / "loss.svg")
    root = ElementTree.parse(tmp_path / "loss.svg").getroot()
    paths = [
        path.get("d", "") for path in root.iter("{http://www.w3.org/2000/svg}path") if path.get("clip-path")
    ]
    steps, course = (path.split("\n")[:-1] for path in paths if path.count("L") > 2)
    for path in (steps, course):
        heights = [float(point.split()[-1]) for point in path]
        assert heights == sorted(heights)  # The axis points down.
    texts = {text.text for text in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {"step", "loss, nats a token"} < texts
    draw_losses(FALLING[:1], tmp_path / "one.svg")
    ElementTree.parse(tmp_path / "one.svg")


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
