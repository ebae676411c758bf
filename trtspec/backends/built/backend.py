"""Holds what the backends whose engines trtspec builds have in common."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from trtspec.backends.backend import Backend, Unsupported
from trtspec.backends.built.resolve import resolve_engines
from trtspec.backends.built.rules import contradictions
from trtspec.backends.built.steps import engine_steps
from trtspec.base.findings import Finding
from trtspec.base.roles import Role
from trtspec.methods.table import METHODS
from trtspec.pipeline.plan.choices import Chooser
from trtspec.pipeline.plan.facts import PlanFacts
from trtspec.pipeline.plan.resolved import Resolved
from trtspec.pipeline.run.step import Step
from trtspec.pipeline.steps.pull import StoredEngine
from trtspec.recipe import releases
from trtspec.recipe.schema import Recipe


class EngineBackend(Backend):
    """A backend with engines of our own, behind trtspec's coordinator."""

    builds_engines = True

    @property
    def versions(self) -> tuple[str, ...]:
        return tuple(releases.RELEASES)

    def refusal(self, method: str, release: str | None) -> Unsupported | None:
        """Returns why not; the drafters of methods that need no head are trtspec's own, and run here too."""
        if method not in self.methods and not METHODS[method].is_head:
            return None
        return super().refusal(method, release)

    def image(self, recipe: Recipe) -> str:
        return releases.release_of(recipe.engine.release).image

    def release_flaw(self, version: str) -> tuple[str, str] | None:
        return releases.flaw(version)

    def resolve(self, choose: Chooser, facts: PlanFacts, output: Path) -> Resolved:
        return resolve_engines(choose, facts, output, self)

    def steps(
        self, resolved: Resolved, facts: PlanFacts, found: Mapping[Role, StoredEngine], only: Role | None
    ) -> list[Step]:
        return engine_steps(resolved, facts, found, only)

    def contradictions(self, recipe: Recipe) -> Iterator[Finding]:
        return contradictions(recipe)
