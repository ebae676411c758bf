"""What a machine has, what a recipe needs of it, and what to do about the difference. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from trtspec.errors import UnavailableError
from trtspec.plan.machine import Machine, ModelState
from trtspec.recipe import gpus, releases
from trtspec.recipe.schema import Recipe
from trtspec.repository.placement import place
from trtspec.roles import Role

State = Literal["ok", "note", "missing"]
GIB = 1 << 30
# A build keeps a checkpoint and an engine of each model.
_COPIES = 2


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing: `missing` where the recipe needs what is not there, `note` where it may do without."""

    subject: str
    found: str
    state: State = "ok"
    repair: str | None = None


def examine(machine: Machine, recipe: Recipe | None) -> list[Finding]:
    """Everything, in the order in which a build meets it; without a recipe nothing is missing."""
    on_gpu = recipe is None or recipe.backend == "tensorrt_llm"
    release = releases.RELEASES[recipe.engine.release or releases.DEFAULT] if recipe and on_gpu else None
    findings = [Finding("Python", f"{machine.python}, trtspec {machine.versions.get('trtspec', '?')}")]
    if recipe:
        findings += (_model(role, state) for role, state in machine.models.items())
    else:
        findings.append(_hub(machine))
    findings.append(_disk(machine, recipe))
    if on_gpu:
        findings += _gpus(machine, recipe, release)
        findings += _engines(machine, release)
        findings.append(_docker(machine))
    findings += _torch(machine, recipe)
    findings += _triton(machine, recipe)
    return findings


def _model(role: str, state: ModelState) -> Finding:
    if isinstance(state.problem, UnavailableError):
        return Finding(role, f"{state.name}: {state.problem}", "note", state.problem.repair)
    if state.problem:
        return Finding(role, f"{state.name}: {state.problem.problem}", "missing", state.problem.repair)
    return Finding(role, f"{state.name}, {'on this machine' if state.here else 'to be downloaded'}")


def _hub(machine: Machine) -> Finding:
    if machine.hub:
        return Finding("Hub", f"{machine.hub.subject}: {machine.hub.problem}", "note", machine.hub.repair)
    return Finding("Hub", "answers")


def _disk(machine: Machine, recipe: Recipe | None) -> Finding:
    found = f"{machine.free / 1e9:.1f} GB free in {machine.folder}"
    needed = _COPIES * sum(_weights(machine, recipe).values()) if recipe else 0
    if needed > machine.free:
        found += f", and a build needs about {needed / 1e9:.1f} GB"
        return Finding("disk", found, "missing", "free some space, or choose another --output")
    return Finding("disk", found)


def _weights(machine: Machine, recipe: Recipe) -> dict[Role, int]:
    """Bytes of the weights, by role; without the models whose size is not known here."""
    return {
        role: state.parameters * (1 if recipe.models[role].quantization.weights == "fp8" else 2)
        for role, state in machine.models.items()
        if state.parameters
    }


def _gpus(machine: Machine, recipe: Recipe | None, release: releases.Release | None) -> Iterator[Finding]:
    found = machine.gpus
    if not found:
        repair = "start the container with --gpus all, and look at CUDA_VISIBLE_DEVICES and nvidia-smi"
        yield Finding("GPU", "none is visible", "missing" if recipe else "note", repair)
        return
    names = ", ".join(dict.fromkeys(f"{gpu.name} (SM {gpu.sm}, {gpu.memory / GIB:.1f} GiB)" for gpu in found))
    yield _kind(f"{len(found)} x {names}", machine, recipe)
    yield from _settings(machine, recipe)
    yield _memory(machine, recipe)
    driver = found[0].driver
    if release and driver.partition(".")[0].isdecimal() and int(driver.partition(".")[0]) < release.driver:
        problem = (
            f"{driver}; CUDA {release.cuda} of TensorRT-LLM {release.version} wants {release.driver} or newer"
        )
        repair = "install a newer one; data-centre GPUs may do with the image's compatibility package"
        yield Finding("driver", problem, "note", repair)
    else:
        yield Finding("driver", driver)


def _kind(found: str, machine: Machine, recipe: Recipe | None) -> Finding:
    wanted = gpus.GPUS.get(recipe.hardware.gpu) if recipe else None
    if recipe is None or wanted is None:
        return Finding("GPU", found)
    count = recipe.hardware.count
    if any(gpu.sm != wanted.sm for gpu in machine.gpus[:count]):
        problem = f"{found}; the recipe is for {wanted.label} (SM {wanted.sm})"
        return Finding("GPU", problem, "missing", "use the recipe's GPU, or change hardware.gpu")
    if len(machine.gpus) < count:
        repair = "look at CUDA_VISIBLE_DEVICES, or change hardware.count and parallel"
        return Finding("GPU", f"{found}; the recipe needs {count}", "missing", repair)
    if machine.gpus[0].memory < 0.95 * wanted.memory_gib * GIB:
        problem = f"{found}; the recipe counts on {wanted.label} ({wanted.memory_gib} GiB)"
        return Finding("GPU", problem, "note", "name this GPU in hardware.gpu")
    return Finding("GPU", found)


def _settings(machine: Machine, recipe: Recipe | None) -> Iterator[Finding]:
    state: State = "missing" if recipe else "note"
    for gpu in machine.gpus[: recipe.hardware.count if recipe else None]:
        if gpu.mig:
            repair = f"nvidia-smi -i {gpu.index} -mig 0"
            yield Finding("MIG", f"GPU {gpu.index} is divided; an engine wants a whole one", state, repair)
        if not gpu.shared:
            problem = f"GPU {gpu.index} has {gpu.compute_mode}; TensorRT-LLM starts several processes on it"
            yield Finding("compute mode", problem, state, f"nvidia-smi -i {gpu.index} -c DEFAULT")


def _memory(machine: Machine, recipe: Recipe | None) -> Finding:
    """Of the GPU that has least left beside the weights that it is to hold."""
    found = machine.gpus[: recipe.hardware.count if recipe else None]
    loads = _loads(machine, recipe) if recipe else {}
    number = min(range(len(found)), key=lambda number: found[number].free - loads.get(number, 0))
    gpu, needed = found[number], loads.get(number, 0)
    free = f"{gpu.free / GIB:.1f} GiB free"
    if needed > gpu.free:
        free += f" on GPU {gpu.index}, and the weights take {needed / GIB:.1f} GiB of it"
        repair = "end what else uses the GPU (nvidia-smi), or write quantization fp8 or more ranks"
        return Finding("GPU memory", free, "missing", repair)
    if gpu.free < 0.9 * gpu.memory:
        return Finding("GPU memory", free, "note", "something else uses it: nvidia-smi shows what")
    return Finding("GPU memory", free)


def _loads(machine: Machine, recipe: Recipe) -> dict[int, float]:
    """Bytes of weights on each GPU, by CUDA's numbers."""
    placement, loads = place(recipe.ranks, recipe.hardware.count), dict[int, float]()
    for role, size in _weights(machine, recipe).items():
        for gpu in placement.of(role):
            loads[gpu] = loads.get(gpu, 0) + size / recipe.ranks[role]
    return loads


def _engines(machine: Machine, release: releases.Release | None) -> Iterator[Finding]:
    llm, tensorrt = machine.versions.get("tensorrt_llm"), machine.versions.get("tensorrt")
    found = f"{llm or 'of an unknown version'}, {machine.trtllm_build}" if machine.trtllm_build else "none"
    if release is None:
        known = llm is None or llm in releases.RELEASES
        repair = None if known else f"trtspec builds with {', '.join(releases.RELEASES)}"
        yield Finding("TensorRT-LLM", found, "ok" if known and machine.trtllm_build else "note", repair)
    elif machine.trtllm_build is None or (llm is not None and llm != release.version):
        has_containers = machine.docker is not None and machine.docker.gpus
        repair = _IN_CONTAINERS if has_containers else _inside(release)
        if llm in releases.RELEASES:
            repair += f", or write release: {llm}"
        found += f"; the recipe builds with {release.version}"
        yield Finding("TensorRT-LLM", found, "note" if has_containers else "missing", repair)
    else:
        yield Finding("TensorRT-LLM", found)
    if tensorrt is None:
        return
    if release and llm == release.version and not tensorrt.startswith(release.tensorrt):
        problem = f"{tensorrt}; the image of {release.version} has {release.tensorrt}"
        yield Finding("TensorRT", problem, "note", "engines load in this TensorRT only: build and serve here")
    else:
        yield Finding("TensorRT", tensorrt)


_IN_CONTAINERS = "trtspec build --container and trtspec deploy --docker run NVIDIA's image"


def _inside(release: releases.Release) -> str:
    run = "docker run --rm -it --gpus all --ipc=host --ulimit memlock=-1 --ulimit stack=67108864"
    # Models that were downloaded, and what was measured for TensorRT, outlive the container.
    mounts = "-v $HOME/.cache:/root/.cache -v $PWD:$PWD -w $PWD"
    return f"{run} {mounts} {release.image}, and trtspec in there"


def _docker(machine: Machine) -> Finding:
    docker = machine.docker
    if docker is None:
        return Finding("docker", "none; it is needed only to run NVIDIA's image from here", "note")
    if docker.version is None:
        return Finding("docker", "its daemon does not answer", "note", "docker info says why")
    if not docker.gpus:
        repair = "install nvidia-container-toolkit, then: nvidia-ctk runtime configure --runtime=docker"
        return Finding("docker", f"{docker.version}, without GPUs for containers", "note", repair)
    return Finding("docker", f"{docker.version}, with GPUs for containers")


def _torch(machine: Machine, recipe: Recipe | None) -> Iterator[Finding]:
    version = machine.versions.get("torch")
    if recipe is None or recipe.backend == "torch":
        needed: State = "missing" if recipe else "note"
        install = "pip install 'trtspec[torch]'"
        yield Finding("PyTorch", version) if version else Finding("PyTorch", "none", needed, install)


def _triton(machine: Machine, recipe: Recipe | None) -> Iterator[Finding]:
    triton = machine.triton
    if triton:
        image = f" of image {triton.tag}" if triton.tag else ""
        backend = "" if triton.tensorrt_llm_backend else ", without the backend of TensorRT-LLM"
        yield Finding("Triton", f"{triton.version}{image}{backend}")
    elif recipe and recipe.backend == "tensorrt_llm":
        repair = "serve inside NVIDIA's image of the release; a build does not need it"
        yield Finding("Triton", "not NVIDIA's image", "note", repair)
    if recipe is None or recipe.backend == "torch":
        if machine.wheel:
            problem = f"{machine.wheel.subject}: {machine.wheel.problem}"
            yield Finding("Triton (wheel)", problem, "missing" if recipe else "note", machine.wheel.repair)
        else:
            yield Finding("Triton (wheel)", "nvidia-pytriton's tritonserver, for the torch backend")
