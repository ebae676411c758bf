"""Defines what the backends have in common whose engines trtspec builds."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path

from trtspec.backends.backend import Backend, Unsupported
from trtspec.backends.built.resolve import LONGEST, builder_named, resolve_engines
from trtspec.backends.built.rules import contradictions
from trtspec.base.findings import Finding
from trtspec.base.roles import Role
from trtspec.methods.table import METHODS
from trtspec.models.source import Source
from trtspec.pipeline.engine.engine_options import Default, EngineKind
from trtspec.pipeline.machine.devices import apart
from trtspec.pipeline.plan.facts import PlanFacts
from trtspec.pipeline.plan.iteration import MAX_NUM_TOKENS
from trtspec.pipeline.plan.resolved import Chooser, Resolved
from trtspec.pipeline.run.step import Step
from trtspec.pipeline.steps import (
    calibrate,
    check_pair,
    choose_layers,
    convert,
    copy_tokenizer,
    write_repository,
)
from trtspec.recipe import releases
from trtspec.recipe.build_options import Value
from trtspec.recipe.devices import CPU
from trtspec.recipe.schema import Recipe


class EngineBackend(Backend):
    """A backend with engines of our own, behind trtspec's coordinator."""

    builds_engines = True
    longest_text = f"the model's own, up to {LONGEST.tokens:,}"
    fp8 = "engines have fixed scales: of an FP8 model, or of a calibration with texts of yours"

    @property
    def versions(self) -> tuple[str, ...]:
        return tuple(releases.RELEASES)

    def refusal(self, method: str, release: str | None) -> Unsupported | None:
        """Returns why not; trtspec's own drafters that need no head run here too."""
        if method not in self.methods and not (METHODS[method].is_head or METHODS[method].of_servers):
            return None
        return super().refusal(method, release)

    def num_tokens(self, gpu: str) -> str:
        return f"{MAX_NUM_TOKENS:,}" + ", or more where memory allows" * self.compiles

    def image(self, recipe: Recipe) -> str:
        return releases.release_of(recipe.engine.release).image

    def release_flaw(self, version: str) -> tuple[str, str] | None:
        return releases.flaw(version)

    def resolve(self, choose: Chooser, facts: PlanFacts, output: Path) -> Resolved:
        return resolve_engines(choose, facts, output, self)

    def steps(self, resolved: Resolved, facts: PlanFacts, only: Role | None) -> list[Step]:
        engines = resolved.engines
        if only and not engines[only].is_dependent:
            engines = {only: engines[only]}
        steps = []
        if only is None:
            steps.append(check_pair.step(resolved, facts))
            steps.append(copy_tokenizer.step(facts.target))
            if resolved.translates:
                steps.append(copy_tokenizer.step(facts.models[Role.DRAFT], Role.DRAFT))
        steps += choose_layers.searches(engines, facts)
        copied = {role: engine for role, engine in engines.items() if not engine.is_dependent}
        for role, engine in copied.items():
            if engine.calibration:
                steps.append(calibrate.step(resolved, facts, role, engine.calibration))
        steps += [convert.step(resolved, role) for role in copied]
        steps += [convert.proof(resolved, role) for role in copied]
        ranks = [
            0 if engine.device == CPU else engine.checkpoint.mapping.world_size for engine in engines.values()
        ]
        own = apart(facts.host.gpus, ranks)
        steps += [
            builder_named(engines[role].backend).engine_step(resolved, facts, role, gpus)
            for role, gpus in zip(engines, own, strict=True)
        ]
        if only is None:
            steps.append(write_repository.step(resolved, facts))
        return steps

    @abstractmethod
    def engine_step(self, resolved: Resolved, facts: PlanFacts, role: Role, gpus: tuple[str, ...]) -> Step:
        """Returns the step that builds an engine; pure.

        `gpus` are the UUIDs of the GPUs that it has for itself, empty if it may use all.
        """

    def defaults(self, kind: EngineKind, written: Mapping[str, Value]) -> Iterator[Default]:
        """Yields options of an engine beside its sizes; `written` are those that the recipe sets."""
        return iter(())

    def longest(self, source: Source, role: Role) -> Iterator[tuple[int, str]]:
        """Yields the lengths, drafts included, beyond which it cannot reuse a KV cache, and why."""
        return iter(())

    def contradictions(self, recipe: Recipe) -> Iterator[Finding]:
        return contradictions(recipe)
