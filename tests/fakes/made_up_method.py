"""A method that trtspec does not have: `python -m tests.fakes.made_up_method check recipe.yaml` has it too.

Its own process adds it, since a recipe's schema is made of the table when it is imported.
"""

from __future__ import annotations

import sys
from typing import Annotated, Literal

from pydantic import Field

from trtspec.methods import table
from trtspec.methods.method import Method

NAME = "crystal_ball"


class CrystalBall(Method):
    """A ball of crystal proposes what it sees."""

    kind: Literal["crystal_ball"] = Field(description="The name of this method.")
    clarity: Annotated[int, Field(ge=1, le=9)] = Field(default=3, description="How far the ball sees.")


if __name__ == "__main__":
    table.METHODS[NAME] = CrystalBall
    if sys.argv[1:] == ["methods.md"]:
        from tests.docs import methods

        sys.stdout.write(methods.page())
    else:
        from trtspec.cli.app import main

        main()
