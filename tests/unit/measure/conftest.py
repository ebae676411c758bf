"""Reports for tests of their words."""

from __future__ import annotations

import pytest
from markupsafe import Markup

from trtspec.measure.html.plot import Plot


@pytest.fixture
def without_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """A report with an empty element for each plot, which matplotlib takes most of a second to draw."""
    monkeypatch.setattr(Plot, "markup", lambda plot: Markup("<svg/>"))
