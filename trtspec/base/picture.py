"""The one style of all pictures; matplotlib draws them, and is imported with the first one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from trtspec.base.extras import require

COLOURS = {
    "paper": "#ffffff",
    "ink": "#16191d",
    "soft": "#545d68",
    "rule": "#d9dde3",
    "drafts": "#0a5fa8",
    "plain": "#a94a00",
    "draft-part": "#7a4fd0",
    "rest": "#8b95a1",
    "third": "#1d7a55",
    "better-tint": "#e8f5ec",
    "worse-tint": "#fbeceb",
}
"""The colours of pictures on white. A page of a report has others of the same names for a dark screen."""


@contextmanager
def style() -> Iterator[None]:
    """Draws and saves pictures of the block in this style, in which the same data gives the same bytes.

    Text stays text: it is escaped in SVG, and no part of it is taken for a formula. Raises `UnavailableError`
    without matplotlib.
    """
    require("a picture", "matplotlib")
    from matplotlib import rc_context

    settings = rc_context(
        {
            "axes.axisbelow": True,
            "axes.edgecolor": COLOURS["soft"],
            "axes.grid": True,
            "axes.labelcolor": COLOURS["soft"],
            "axes.spines.right": False,
            "axes.spines.top": False,
            "axes.titlecolor": COLOURS["soft"],
            "axes.titlesize": "medium",
            "font.size": 10.5,
            "grid.color": COLOURS["rule"],
            "grid.linewidth": 0.7,
            "legend.frameon": False,
            "svg.fonttype": "none",
            "svg.hashsalt": "trtspec",
            "text.color": COLOURS["ink"],
            "text.parse_math": False,
            "xtick.color": COLOURS["soft"],
            "ytick.color": COLOURS["soft"],
        }
    )
    with settings:
        yield
