"""Defines what the servers have in common that load the models themselves."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from trtspec.backends.backend import Backend
from trtspec.backends.launch import ServerLaunch
from trtspec.backends.served.inputs import LaunchInputs, ServerRelease
from trtspec.backends.served.resolve import MAX_NUM_TOKENS, MAX_NUM_TOKENS_CPU, resolve_server
from trtspec.backends.served.rules import MtpSupport, contradictions, lacking_on_clusters, passed_on
from trtspec.backends.served.steps import steps_before_the_manifest
from trtspec.base.findings import Finding
from trtspec.base.roles import Role
from trtspec.methods.method import TRANSLATES
from trtspec.models.source import Source
from trtspec.pipeline.plan.facts import PlanFacts
from trtspec.pipeline.plan.resolved import Chooser, Resolved
from trtspec.pipeline.run.step import Step
from trtspec.recipe import gpus
from trtspec.recipe.loader import LoadedRecipe
from trtspec.recipe.migration.command import Option, Syntax, options
from trtspec.recipe.migration.reading import FlagTable, is_whole, object_of
from trtspec.recipe.migration.tool import LongerTexts
from trtspec.recipe.schema import Recipe

ONE_SOURCE = "drafts come from one source for the whole server, which the configuration names"
"""The reason why a server does not run a method that has two."""


class ServerBackend(Backend):
    """Another engine's server: it loads the models, and no engine is built for it."""

    builds_engines = False
    fp8 = (
        "weights are quantized as they are loaded, and activations with scales of each step;"
        " an FP8 model keeps its own scales"
    )
    longest_text = "the model's own, where memory allows"
    releases: ClassVar[tuple[ServerRelease, ...]]
    """The releases that serve a recipe, the default first."""
    module: ClassVar[str]
    """The module that Python runs."""
    module_words: ClassVar[tuple[str, ...]] = ()
    """The words between the module and the arguments."""
    program: ClassVar[tuple[str, ...]]
    """The words that stand for `python -m module` in the image."""
    lacking: ClassVar[Mapping[str, str]] = {}
    """The keys of a recipe that it lacks and others have, with what it does instead."""
    override: ClassVar[str | None] = None
    """The flag that overrides keys of `config.json`; None if it has none."""
    longer_than_head: ClassVar[LongerTexts | None] = None
    """The variable that it needs to start with longer sequences than a head was made for; None if it needs
    none.
    """
    mtp: ClassVar[MtpSupport]
    """The targets whose own layers it drafts with."""
    layouts: ClassVar[tuple[str, ...]] = ()
    """The values of `serving.layout` that it has beside a server of its own."""

    data_parallel: ClassVar[tuple[str, ...]] = ("", "")
    """The flag with the number of data parallel ranks, and the one with which they are tensor ranks."""

    flags: ClassVar[FlagTable] = FlagTable(Syntax(), {}, {})
    """The flags of its command that are not passed on as they are."""

    @property
    def versions(self) -> tuple[str, ...]:
        return tuple(release.version for release in self.releases)

    @property
    def translates(self) -> bool:
        return TRANSLATES not in self.lacking

    def release_of(self, version: str | None) -> ServerRelease:
        """Returns the release of a recipe's `engine.release`; None stands for the default."""
        return next(release for release in self.releases if version in (None, release.version))

    def served_name(self, loaded: LoadedRecipe) -> str:
        """Returns the recipe's name for clients, or else the name that the server's own command would use."""
        serving, has_none = loaded.recipe.serving, loaded.recipe.written("serving.model_name") is None
        return loaded.recipe.target.model if has_none and serving.layout is None else serving.model_name

    def num_tokens(self, gpu: str) -> str:
        return f"{MAX_NUM_TOKENS_CPU if gpu == gpus.NONE else MAX_NUM_TOKENS:,}"

    def image(self, recipe: Recipe) -> str:
        return self.release_of(recipe.engine.release).image

    def release_flaw(self, version: str) -> tuple[str, str] | None:
        if version in self.versions:
            return None
        known = f"known are {', '.join(self.versions)}"
        return f"found {version!r:.80}: no release of {self.name} that was tried", known

    def contradictions(self, recipe: Recipe) -> Iterator[Finding]:
        yield from contradictions(recipe, self.lacking, self.layouts)
        yield from passed_on(recipe, self.flags)
        copies, count = self.data_ranks(recipe.engine.extra_args), recipe.hardware.count
        needed = copies * recipe.target.parallel.ranks
        if copies > 1 and needed > count and recipe.hardware.gpu != gpus.NONE:
            problem = f"{self.data_parallel[0]} {copies} makes {needed} ranks, one GPU each, not {count}"
            yield Finding("hardware.count", problem, f"write count: {needed}")
        if recipe.speculation.schedule and (flaw := self.schedule_flaw(recipe)):
            yield Finding("speculation.schedule", flaw, "remove this line, or what stands against it")

    def schedule_flaw(self, recipe: Recipe) -> str | None:
        """Returns why the server would not change K by the recipe's schedule; None if it would."""
        return None

    def data_ranks(self, arguments: Sequence[str]) -> int:
        items, (flag, shares) = options(arguments, self.flags.syntax), self.data_parallel
        found = {item.name: item.value or "" for item in items if isinstance(item, Option)}
        return int(size) if is_whole(size := found.get(flag, "")) and shares not in found else 1

    def misfits(self, recipe: Recipe, target: Source) -> Iterator[Finding]:
        speculation = recipe.speculation
        if speculation.method.in_target:
            written = speculation.num_draft_tokens or speculation.max_draft_len
            yield from self.mtp.check(target, written or speculation.largest)

    def overrides(self, recipe: Recipe) -> Mapping[str, Any]:
        """Returns the keys of the flag's JSON, and those that stand behind its dots, as vLLM reads them."""
        found: dict[str, Any] = {}
        for item in options(recipe.engine.extra_args, self.flags.syntax):
            if isinstance(item, Option) and item.name.partition(".")[0] == self.override:
                text = item.value or ""
                for part in reversed(item.name.split(".")[1:]):
                    text = f'{{"{part}": {text}}}'
                found = _merged(found, object_of(text) or {})
        return found

    def lacking_on_clusters(self, recipe: Recipe) -> Iterator[Finding]:
        return lacking_on_clusters(recipe)

    def resolve(self, choose: Chooser, facts: PlanFacts, output: Path) -> Resolved:
        return resolve_server(choose, facts, output, self)

    def steps(self, resolved: Resolved, facts: PlanFacts, only: Role | None) -> list[Step]:
        """Returns the steps; it has no engines, so there is none to build alone."""
        assert resolved.launch is not None
        return list(steps_before_the_manifest(resolved, resolved.launch, facts))

    def num_nodes(self, choose: Chooser, longest: int) -> int:
        """Returns the tokens that a round proposes; they are more than the `longest` draft in a tree.

        Raises RecipeError for a tree that the server could not make.
        """
        return longest

    def launch(self, wanted: LaunchInputs) -> ServerLaunch:
        """Returns how the server is started; pure."""
        return ServerLaunch(
            backend=self.name,
            release=wanted.release.version,
            module=self.module,
            module_words=self.module_words,
            program=self.program,
            arguments=self.arguments(wanted),
            image=wanted.image,
            served_model_name=wanted.names[0],
            files=self.files(wanted),
            models=wanted.folders,
            kv_bytes=wanted.kv_bytes or 0,
            metrics_path=wanted.release.metrics_path,
        )

    @abstractmethod
    def arguments(self, wanted: LaunchInputs) -> tuple[str, ...]:
        """Returns the server's arguments but host and port; pure."""

    def files(self, wanted: LaunchInputs) -> Mapping[str, str]:
        """Returns the texts of files by their names, which `arguments` have as `{build}/NAME`; pure."""
        return {}


def _merged(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the keys of both; `other` overrides."""
    found = dict(one)
    for key, value in other.items():
        own = found.get(key)
        found[key] = _merged(own, value) if isinstance(own, dict) and isinstance(value, dict) else value
    return found
