"""Somebody else's server for the time of a measurement, on a port that is reserved for it."""

from __future__ import annotations

from pathlib import Path

from trtspec.backends.servers.launch import ServerLaunch
from trtspec.backends.servers.plain import without_drafts
from trtspec.deploy.build import DeployedBuild
from trtspec.deploy.logs import logs_of_measurement
from trtspec.deploy.patience import with_models
from trtspec.deploy.vendor.deployment import VendorDeployment
from trtspec.deploy.vendor.models import models_of
from trtspec.deploy.vendor.site import VendorHere


def meanwhile(
    build: DeployedBuild, launch: ServerLaunch, python: Path | None, port: int, *, plain: bool = False
) -> tuple[VendorDeployment, VendorHere]:
    """Returns the server of a build, with `plain` the one without drafts, and where it runs: here.

    Raises `UnavailableError` where this machine has no such server.
    """
    folder, name = build.folder.resolve(), launch.served_model_name
    deployment = VendorDeployment(
        build.recipe.name,
        folder,
        launch.backend,
        name,
        port=port,
        start_s=with_models(launch).seconds,
        is_plain=plain,
        logs=logs_of_measurement(folder),
    )
    models = models_of(without_drafts(launch) if plain else launch, build.recipe)
    return deployment, VendorHere(deployment, models, python)
