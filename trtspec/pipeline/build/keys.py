"""The keys by which a store knows what a plan makes, and whether they are those that were asked for."""

from __future__ import annotations

from trtspec.base.errors import UnavailableError
from trtspec.base.roles import Role
from trtspec.pipeline.build.plan import BuildPlan
from trtspec.pipeline.build.stored import engine_platform, pair_key
from trtspec.pipeline.steps.pull import engine_key
from trtspec.pipeline.store.platform import Platform


def key_of(made: BuildPlan, only: Role | None) -> str | None:
    """Returns the key of one engine or else of the pair; None where the models' files have not been read."""
    return engine_key(made.own_steps, only) if only else pair_key(made.own_steps, made.resolved)


def platform_for(made: BuildPlan, only: Role | None) -> Platform:
    """Returns the platform of one engine or else of the pair, as the release's image builds it."""
    return engine_platform(made.resolved, only or Role.TARGET, None)


def check_key(made: BuildPlan, only: Role | None, asked: str) -> None:
    """Raises UnavailableError if the plan makes something else than what has been asked for by its key."""
    if key_of(made, only) != asked:
        what, recipe = only or "pair", made.resolved.loaded.path
        problem = f"makes another {what} than the one that was asked for, {asked[:12]}"
        repair = "the recipe, a model or trtspec is not as it was when the job was planned: plan it again"
        raise UnavailableError(recipe, problem, repair)
