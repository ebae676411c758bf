"""`trtspec rollout canary` runs a new build beside the one that a cluster serves, step by step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trtspec.backends.recipes import load
from trtspec.base.errors import ClusterError
from trtspec.cli.rollout import print_checks
from trtspec.cli.terminal.options import ContextOption, JsonOption, NamespaceOption, RecipeArgument
from trtspec.cli.terminal.output import INTERRUPTED, out
from trtspec.cluster.commands.kubernetes import find_values
from trtspec.cluster.kubernetes.canary.metrics import OfPods, OfPrometheus
from trtspec.cluster.kubernetes.canary.pair import CanaryPair
from trtspec.cluster.kubernetes.canary.rollout import Canary
from trtspec.cluster.kubernetes.canary.standing import name_of
from trtspec.cluster.kubernetes.connection import connect
from trtspec.cluster.kubernetes.deploying import PodTalk
from trtspec.deployment.rollout.bounds import BoundState

if TYPE_CHECKING:
    from trtspec.cluster.kubernetes.canary.rollout import Canary, CanaryView

StoreUrlOption = Annotated[
    str | None, typer.Option("--store", metavar="URL", help="The store, if not the recipe's.")
]
PrometheusOption = Annotated[
    str | None,
    typer.Option("--prometheus", metavar="URL", help="Ask this Prometheus for the metrics, not the pods."),
]


def canary_status(
    recipe: RecipeArgument,
    context: ContextOption = None,
    namespace: NamespaceOption = None,
    store: StoreUrlOption = None,
    prometheus: PrometheusOption = None,
    json: JsonOption = False,
) -> None:
    """Show how a new build does beside the old one on a cluster.

    The exit status is 1 if a bound is broken.
    """
    with _canary(recipe, context, namespace, store, prometheus) as canary:
        view = canary.view()
    if json:
        out.json(view.as_json())
    else:
        _show(view, recipe)
    if view.verdict is BoundState.BROKEN:
        raise typer.Exit(1)


def canary_next(
    recipe: RecipeArgument,
    context: ContextOption = None,
    namespace: NamespaceOption = None,
    store: StoreUrlOption = None,
    prometheus: PrometheusOption = None,
    force: Annotated[
        bool, typer.Option("--force", help="Take the next step even if a bound does not hold.")
    ] = False,
) -> None:
    """Give the recipe's build more of a cluster's requests.

    The first step starts it beside the build that serves, the last makes it the only one.
    """
    with _canary(recipe, context, namespace, store, prometheus) as canary:
        _tell(canary.go_on(force=force), "the new build has all requests already")


def canary_back(
    recipe: RecipeArgument,
    context: ContextOption = None,
    namespace: NamespaceOption = None,
    store: StoreUrlOption = None,
) -> None:
    """Give the new build fewer requests, or the old one all of them again."""
    with _canary(recipe, context, namespace, store, None) as canary:
        _tell(canary.go_back(), "the old build has all requests already")


def canary_off(
    recipe: RecipeArgument,
    context: ContextOption = None,
    namespace: NamespaceOption = None,
    store: StoreUrlOption = None,
) -> None:
    """Take the new build away at once, or back after its last step."""
    with _canary(recipe, context, namespace, store, None) as canary:
        _tell(canary.go_off(), "the old build has all requests already")


COMMANDS = (canary_status, canary_next, canary_back, canary_off)


@contextmanager
def _canary(
    recipe: Path, context: str | None, namespace: str | None, store: str | None, prometheus: str | None
) -> Iterator[Canary]:
    """Yields the canary of a recipe's deployment; Ctrl-C leaves it where it is."""
    values = find_values(load(recipe), store, namespace)
    cluster = connect(context, values.namespace)
    model = values.model_name
    metrics = OfPrometheus(prometheus, cluster.namespace, model) if prometheus else OfPods(cluster, model)
    told: list[str] = []

    def tell(before: str, then: str) -> None:
        told.append(f"{before} -> {then}")
        out.status(f"{values.name}: {told[-1]} ...")

    # One move waits many times, so each wait prints lines.
    pair = CanaryPair(cluster, values, PodTalk())
    try:
        yield Canary(pair, metrics, tell)
    except ClusterError:
        if told:
            out.warning(f"{told[-1]} is not reached; trtspec rollout canary back {recipe} goes back")
        raise
    except KeyboardInterrupt:
        if told:
            out.status(
                f"interrupted: {told[-1]} is not reached; trtspec rollout canary next continues, off ends it"
            )
        raise typer.Exit(INTERRUPTED) from None


def _tell(moved: tuple[float, float] | None, nothing: str) -> None:
    if moved is None:
        out.status(nothing)
    else:
        out.status(f"{name_of(moved[0])} -> {name_of(moved[1])}, for requests that begin from now on")


def _show(view: CanaryView, recipe: Path) -> None:
    standing, here = view.standing, name_of(view.share)
    since = f" since {standing.since}" if standing and standing.since else ""
    out.result(f"{view.name} is at step {here}{since}")
    out.result("  ".join(f"[{name}]" if name == here else name for name in map(name_of, view.steps)))
    if standing:
        new, old = f"of build {standing.new[:12]}", f"{view.counts.stable} of {standing.old[:12]}"
        alone = f"pods: {view.counts.stable} {new}"
        out.result(f"pods: {view.counts.canary} {new}, {old}" if view.share < 1 else alone)
        if not standing.is_reached:
            out.warning("it is not reached yet; next continues it")
    print_checks(view.checks)
    if view.verdict is BoundState.BROKEN:
        out.hint(f"trtspec rollout canary off {recipe}")
    elif view.verdict is BoundState.OPEN:
        if needed := max(check.needed for check in view.checks):
            out.status(f"about {needed} more requests will decide")
    elif view.share < 1:
        out.hint(f"trtspec rollout canary next {recipe}")
