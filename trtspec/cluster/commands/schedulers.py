"""The cluster that a command line names, as a scheduler of builds."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from trtspec.cli.terminal.output import out

if TYPE_CHECKING:
    from trtspec.cluster.jobs.scheduler import JobScheduler


@dataclass(frozen=True, slots=True)
class Place:
    """A context of the kubeconfig and a namespace; None for the kubeconfig's own."""

    context: str | None
    namespace: str | None


def scheduler_of(cluster: str, recipes: Sequence[Path], url: str, place: Place) -> JobScheduler:
    """Returns `slurm` or `kubernetes`, for the builds of recipes for the store at `url`.

    Raises RecipeError for what pods would not find.
    """
    return _kubernetes(recipes, url, place) if cluster == "kubernetes" else _slurm()


def _slurm() -> JobScheduler:
    from huggingface_hub.constants import HF_HUB_CACHE

    from trtspec.base.cache import cache_folder
    from trtspec.cluster.slurm.scheduler import SlurmScheduler

    return SlurmScheduler(
        sys.executable, {"HF_HUB_CACHE": Path(HF_HUB_CACHE), "TRTSPEC_CACHE": cache_folder()}
    )


def _kubernetes(recipes: Sequence[Path], url: str, place: Place) -> JobScheduler:
    from importlib.metadata import version

    from trtspec.cluster.kubernetes.connection import connect
    from trtspec.cluster.kubernetes.deriving import default_image
    from trtspec.cluster.kubernetes.jobs import KubernetesJobs
    from trtspec.cluster.kubernetes.visible import check_visible
    from trtspec.recipe.kubernetes import OwnClaim
    from trtspec.recipe.loader import load

    loaded, ours = [load(recipe) for recipe in recipes], version("trtspec")
    for each in loaded:
        check_visible(each, url)
        if each.recipe.kubernetes.image is None:
            image = default_image(each.recipe, ours)
            out.warning(f"{each.path}: kubernetes.image is not written: every node must have {image} already")
    namespaces = {each.recipe.kubernetes.namespace for each in loaded}
    if len(namespaces) > 1 and place.namespace is None:
        problem = "the recipes name several namespaces, and jobs go to one"
        raise typer.BadParameter(problem, param_hint="--namespace")
    namespace = place.namespace or namespaces.pop()
    shares_files = all(isinstance(each.recipe.kubernetes.build.volume, OwnClaim) for each in loaded)
    return KubernetesJobs(lambda: connect(place.context, namespace), ours, shares_files=shares_files)
