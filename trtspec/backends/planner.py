"""The protocol of a backend's part of a plan: what a recipe leaves out, and the steps of a build."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from trtspec.backends.backend import Backend

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from trtspec.base.roles import Role
    from trtspec.pipeline.plan.facts import PlanFacts
    from trtspec.pipeline.plan.resolved import Chooser, Resolved
    from trtspec.pipeline.run.step import Step


class Planner(Backend):
    """A backend that fills in a recipe's defaults, and says how its build is made."""

    @abstractmethod
    def resolve(
        self, choose: Chooser, facts: PlanFacts, output: Path, runners: Mapping[Role, Backend]
    ) -> Resolved:
        """Returns a recipe with every default filled in; pure.

        `runners` are the backends of the recipe's engines. Raises RecipeError for what it cannot do with
        these models, and ModelError for a model that trtspec does not convert.
        """

    @abstractmethod
    def steps(self, resolved: Resolved, facts: PlanFacts, only: Role | None) -> list[Step]:
        """Returns the steps of a build in order, all but the one that writes the manifest; pure.

        With `only` these are the steps of one engine.
        """
