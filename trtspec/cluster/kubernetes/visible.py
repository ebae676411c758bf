"""Finds files of this machine and secrets in a recipe, which a build on a cluster cannot use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from trtspec.base.errors import RecipeError
from trtspec.base.findings import Finding
from trtspec.cluster.kubernetes.job_object import WORK
from trtspec.pipeline.store.address import StoreAddress
from trtspec.recipe.kubernetes import EmptyDir
from trtspec.recipe.loader import LoadedRecipe


def check_visible(loaded: LoadedRecipe, store: str) -> None:
    """Raises RecipeError for models, texts and a store that pods would not see, or a store with a secret.

    Pods see the Hub, the store by its URL, and files below WORK on a volume that outlives them.
    """
    findings = [*_unseen(loaded), *_store(loaded, store)]
    if findings:
        raise RecipeError(loaded.path, findings)


def _unseen(loaded: LoadedRecipe) -> Iterator[Finding]:
    for role, location in loaded.locations.items():
        model = loaded.recipe.models[role]
        if isinstance(location, Path) and not _is_mounted(loaded, model.model):
            yield _finding(loaded, f"{role}.model", location, "a model of the Hub")
        calibration = loaded.recipe.calibration(model)
        text = calibration.dataset if calibration else ""
        if text and (loaded.path.parent / text).exists() and not _is_mounted(loaded, text):
            key = f"{role}.quantization.calibration.dataset"
            yield _finding(loaded, key, Path(text), "a dataset of the Hub")
        lora = model.build.get("lora_dir")
        if lora and not _is_mounted(loaded, str(lora)):
            yield _finding(loaded, f"{role}.build.lora_dir", Path(str(lora)), "none")


def _store(loaded: LoadedRecipe, store: str) -> Iterator[Finding]:
    url = loaded.recipe.kubernetes.store
    if url is None and "://" not in store:
        problem = f"is missing: {store} is a folder of this machine, which pods do not see"
        yield loaded.problem(
            "kubernetes.store", problem, "write the URL by which pods reach the store, or use S3"
        )
    if url is not None and StoreAddress(url).has_secret:
        problem = f"{StoreAddress(url)} contains a secret, which everybody who reads a Job would see"
        repair = "put it into a Secret, and name that in kubernetes.build.secret or kubernetes.secrets.store"
        yield loaded.problem("kubernetes.store", problem, repair)


def _is_mounted(loaded: LoadedRecipe, name: str) -> bool:
    lasts = not isinstance(loaded.recipe.kubernetes.build.volume, EmptyDir)
    return lasts and PurePosixPath(WORK) in PurePosixPath(name).parents


def _finding(loaded: LoadedRecipe, key: str, path: Path, other: str) -> Finding:
    problem = f"{path} is on this machine, and pods do not see it"
    repair = f"name {other}, or a path below {WORK} on a host_path or claim of kubernetes.build.volume"
    return loaded.problem(key, problem, repair)
