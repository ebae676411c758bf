"""Which tests run in one process of `pytest -n`, and in what order."""

from __future__ import annotations

import re
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

_LAYOUT = re.compile(r"tests/e2e/.*[\[-](in_process|bls)[-\]]")


class FilesAndServers(LoadScopeScheduling):  # type: ignore[misc]
    """The tests of a file run in one process, and those that share the server of a layout, in any file.

    The order is that of the files, which has the slow ones first, so that the processes end together.
    """

    def __init__(self, config: pytest.Config, log: Any = None) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False

    def _split_scope(self, nodeid: str) -> str:
        if layout := _LAYOUT.match(nodeid):
            return layout[1]
        return nodeid.partition("::")[0]
