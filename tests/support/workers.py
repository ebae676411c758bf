"""Which tests run in one process of `pytest -n`, and in what order."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

# Of what is deployed anew in each test, no server is shared.
_LAYOUT = re.compile(r"tests/e2e/(?!test_deploy_).*[\[-](in_process|bls)[-\]]")


class FilesAndServers(LoadScopeScheduling):  # type: ignore[misc]
    """The tests of a file run in one process, and those that share the server of a layout, in any file.

    So do the files of ModelOpt, whose import takes seconds.

    The order is that of the files, which has the slow ones first, so that the processes end together.
    """

    def __init__(self, config: pytest.Config, log: Any = None) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False

    def _split_scope(self, nodeid: str) -> str:
        if layout := _LAYOUT.match(nodeid):
            return layout[1]
        file = nodeid.partition("::")[0]
        return "modelopt" if _needs_modelopt(self.config.rootpath / file) else file


@cache
def _needs_modelopt(file: Path) -> bool:
    return "tests.fakes.modelopt" in file.read_text(encoding="utf-8")
