"""An engine that trtspec does not have: `python -m tests.fakes.made_up_engine check recipe.yaml` has it too.

Its own process adds it, since commands and a recipe's schema read the names when they are imported.
"""

from __future__ import annotations

import sys
from pathlib import Path

import trtspec.backends
from trtspec.recipe import backends

if __name__ == "__main__":
    trtspec.backends.__path__.append(str(Path(__file__).parent))
    backends.NAMES += ("abacus",)
    if sys.argv[1:] == ["methods.md"]:
        from tests.docs import methods

        sys.stdout.write(methods.page())
    else:
        from trtspec.cli.app import main

        main()
