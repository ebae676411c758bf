"""Writes the chart: `python -m charts.writer`."""

from charts.writer.chart import write

write()
