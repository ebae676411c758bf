"""Writes the chart: `python -m charts.writer`."""

from charts.writer.chart import CHART, written

for path, text in written().items():
    file = CHART / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
