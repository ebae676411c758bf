"""Which tests run in one process of `pytest -n`, and in what order."""

from __future__ import annotations

import re
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

_LAYOUT = re.compile(r"tests/e2e/.*[\[-](in_process|bls)[-\]]")
_RECIPES = re.compile(r"tests/(golden|unit/recipes)/")


class FilesAndServers(LoadScopeScheduling):  # type: ignore[misc]
    """The tests of a file run in one process, and those that share what takes seconds to make, in any file.

    These are the server of a layout, and the Hub cache with the models of the recipes. The order is that of
    the files, which has the slow ones first, so that the processes end together.
    """

    def __init__(self, config: pytest.Config, log: Any = None) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False

    def _split_scope(self, nodeid: str) -> str:
        if layout := _LAYOUT.match(nodeid):
            return layout[1]
        return "recipes" if _RECIPES.match(nodeid) else nodeid.partition("::")[0]
