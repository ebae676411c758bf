"""Shared parts of the sites that are containers."""

from __future__ import annotations

from trtspec.backends.containers.container import name_for
from trtspec.backends.containers.engine import find_engine
from trtspec.backends.containers.images import ensure_image
from trtspec.backends.containers.oddities import logout
from trtspec.base.progress import Progress
from trtspec.deploy.deployment import Deployment
from trtspec.deploy.vendor.deployment import VendorDeployment
from trtspec.pipeline.machine.devices import container_gpus, find_gpus
from trtspec.recipe.schema import Hardware


class ContainerSite:
    """A container of docker or podman, with a recipe's GPUs; with `detach` it is left running."""

    def __init__(
        self, deployment: Deployment | VendorDeployment, hardware: Hardware, image: str, *, detach: bool
    ) -> None:
        self._engine, self._image, self._detach = find_engine(), image, detach
        known = self._engine.devices
        self._gpus = container_gpus(find_gpus(), hardware.count, known) if hardware.gpu != "none" else ()
        self.left = name_for(deployment.container_name, deployment.build) if detach else None
        left = logout(self._engine) if detach and self._engine.ends_at_logout else None
        self.warning = f"{left.problem}; {left.repair} has them stay" if left else None

    def _fetch(self, watch: Progress) -> None:
        """Pulls the image if it is not here; raises `UnavailableError` where it could not run."""
        if problem := self._engine.obstacle_to(gpus=bool(self._gpus)):
            raise problem
        ensure_image(self._engine.program, self._image, watch)
