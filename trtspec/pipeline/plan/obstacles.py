"""The reasons why a step cannot be run on this machine, found before anything is done; pure."""

from __future__ import annotations

from collections.abc import Iterable

from trtspec.base.errors import TrtspecError, UnavailableError
from trtspec.base.extras import not_installed
from trtspec.base.units import lacking
from trtspec.checkpoint.calibrate import calibrate
from trtspec.checkpoint.calibration import FILE as CALIBRATION
from trtspec.checkpoint.layers import choose
from trtspec.pipeline.engine.directory import fits_sm
from trtspec.pipeline.machine.devices import settings_obstacle
from trtspec.pipeline.machine.host import COMMAND, Disk, Host
from trtspec.recipe import gpus
from trtspec.recipe.releases import Release, release_of
from trtspec.recipe.schema import Recipe


def calibrate_obstacle(host: Host) -> TrtspecError | None:
    """Returns what keeps a model from being calibrated here, None if nothing does."""
    return _missing(host, calibrate.PACKAGES, "calibration", "fp8")


def search_obstacle(host: Host) -> TrtspecError | None:
    """Returns what keeps layers from being chosen here, None if nothing does."""
    return _missing(host, choose.PACKAGES, "the choice of layers", "train")


def _missing(host: Host, packages: Iterable[str], what: str, extra: str) -> TrtspecError | None:
    missing = next((package for package in packages if package not in host.versions), None)
    return not_installed(missing, what, extra) if missing else None


def build_obstacle(host: Host, release: Release, gpu: str, ranks: int) -> TrtspecError | None:
    """Returns what keeps `trtllm-build` from making an engine of so many ranks for this GPU here, or None."""
    if host.container_engine:
        return host.container_engine.obstacle_to(gpus=True) or _gpu_obstacle(host, gpus.GPUS[gpu], ranks)
    inside = f"run inside {release.image}, with trtspec installed there"
    if host.trtllm_build is None:
        repair = f"build in a container: --container; or {inside}; or build for this machine: --backend torch"
        return UnavailableError(COMMAND, "is not on PATH", repair)
    found = host.versions.get("tensorrt_llm")
    if found and found != release.version:
        problem = f"is of TensorRT-LLM {found}, but the recipe's release is {release.version}"
        repair = f"build in a container: --container; or {inside}; or write release: {found}"
        return UnavailableError(host.trtllm_build, problem, repair)
    return _gpu_obstacle(host, gpus.GPUS[gpu], ranks)


def disk_obstacle(
    disk: Disk, needed: int, elsewhere: str = "choose another --output"
) -> UnavailableError | None:
    """Returns what keeps a build, which writes so many bytes, from this disk; None if it has the room.

    `elsewhere` says how to use another one.
    """
    if disk.is_read_only:
        return UnavailableError(disk.folder, "is on a disk that can only be read", elsewhere)
    if needed <= disk.free:
        return None
    problem = f"a build needs about {lacking(needed, disk.free)} in {disk.folder}"
    return UnavailableError("disk", problem, f"free some space, or {elsewhere}")


def recipe_obstacle(host: Host, recipe: Recipe, ranks: int) -> TrtspecError | None:
    """Returns what keeps this machine from building TensorRT-LLM engines, as far as the recipe tells.

    `ranks` is the number of GPUs that the larger engine needs.
    """
    models, release = recipe.models.values(), release_of(recipe.engine.release)
    datasets = [own.dataset for model in models if (own := model.quantization.calibration)]
    if not all(dataset.endswith(CALIBRATION) for dataset in datasets) and (found := calibrate_obstacle(host)):
        return found
    return build_obstacle(host, release, recipe.hardware.gpu, ranks)


def _gpu_obstacle(host: Host, wanted: gpus.GpuProduct, ranks: int) -> TrtspecError | None:
    if not host.gpus:
        repair = "start the container with --gpus all, and check CUDA_VISIBLE_DEVICES"
        return UnavailableError("GPU", f"no GPU is visible here; the recipe is for {wanted.label}", repair)
    for gpu in host.gpus[:ranks]:
        if not fits_sm(wanted.sm, gpu.sm):
            problem = f"has SM {gpu.sm}, but the recipe's {wanted.name} has SM {wanted.sm}"
            problem += "; an engine runs only on the kind of GPU that built it"
            return UnavailableError(gpu.name, problem, "build on the recipe's GPU, or change hardware.gpu")
    return settings_obstacle(host.gpus[:ranks])
