"""Compares what a machine has with what a recipe needs, and says what to do about the difference; pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from trtspec.backends.backend import MachineNeed
from trtspec.backends.table import runner_of
from trtspec.base.errors import UnavailableError
from trtspec.base.extras import how_to_install
from trtspec.base.findings import Finding, Severity, note, ok
from trtspec.base.roles import Role
from trtspec.base.units import GIB, gib, three_digits
from trtspec.pipeline.containers.engine import KIND, ContainerEngine
from trtspec.pipeline.containers.oddities import describe, oddities
from trtspec.pipeline.engine.directory import fits_sm
from trtspec.pipeline.machine.devices import settings
from trtspec.pipeline.machine.survey import Machine, ModelState
from trtspec.pipeline.plan.obstacles import disk_obstacle
from trtspec.recipe import gpus, releases
from trtspec.recipe.schema import Recipe


def examine(machine: Machine, recipe: Recipe | None) -> list[Finding]:
    """Everything that matters for a build, in the order in which a build needs it.

    An error is what the recipe needs and the machine lacks; without a recipe there is none.
    """
    findings = [ok("Python", f"{machine.python}, trtspec {machine.versions.get('trtspec', '?')}")]
    if recipe:
        findings += (_model(role, state) for role, state in machine.models.items())
    else:
        findings.append(_hub(machine))
    findings.append(_disk(machine, recipe))
    for need in runner_of(recipe).machine_needs(recipe) if recipe else _USUAL:
        findings += _CHECKS[need](machine, recipe)
    return findings


def _model(role: str, state: ModelState) -> Finding:
    if isinstance(state.problem, UnavailableError):
        return note(role, f"{state.name}: {state.problem}", state.problem.repair)
    if state.problem:
        return Finding(role, f"{state.name}: {state.problem.problem}", state.problem.repair)
    return ok(role, f"{state.name}, {'on this machine' if state.here else 'to be downloaded'}")


def _hub(machine: Machine) -> Finding:
    if machine.hub:
        return note("Hub", f"{machine.hub.subject}: {machine.hub.problem}", machine.hub.repair)
    return ok("Hub", "answers")


def _disk(machine: Machine, recipe: Recipe | None) -> Finding:
    needed = runner_of(recipe).copies * sum(_weights(machine, recipe).values()) if recipe else 0
    if error := disk_obstacle(machine.disk, needed):
        return Finding("disk", error.problem, error.repair)
    return ok("disk", f"{three_digits(machine.disk.free)} free in {machine.disk.folder}")


def _weights(machine: Machine, recipe: Recipe) -> dict[Role, int]:
    """Bytes of the weights by role, without the models whose size is not known here."""
    return {
        role: state.parameters * (1 if recipe.models[role].quantization.weights == "fp8" else 2)
        for role, state in machine.models.items()
        if state.parameters
    }


def _release(recipe: Recipe | None) -> releases.Release | None:
    return runner_of(recipe).engine_release(recipe) if recipe else None


def _gpus(machine: Machine, recipe: Recipe | None) -> Iterator[Finding]:
    found, release = machine.gpus, _release(recipe)
    if not found:
        repair = "start the container with --gpus all, and check CUDA_VISIBLE_DEVICES and nvidia-smi"
        yield Finding("GPU", "none is visible", repair, severity=_needed(recipe))
        return
    names = ", ".join(dict.fromkeys(f"{gpu.name} (SM {gpu.sm}, {gib(gpu.memory)})" for gpu in found))
    yield _kind(f"{len(found)} x {names}", machine, recipe)
    yield from _settings(machine, recipe)
    yield _memory(machine, recipe)
    driver = found[0].driver
    if release and driver.partition(".")[0].isdecimal() and int(driver.partition(".")[0]) < release.driver:
        problem = (
            f"{driver}; CUDA {release.cuda} of TensorRT-LLM {release.version} needs {release.driver} or newer"
        )
        repair = (
            "install a newer driver; for data-centre GPUs the image's compatibility package may be enough"
        )
        yield note("driver", problem, repair)
    else:
        yield ok("driver", driver)


def _kind(found: str, machine: Machine, recipe: Recipe | None) -> Finding:
    wanted = gpus.GPUS.get(recipe.hardware.gpu) if recipe else None
    if recipe is None or wanted is None:
        return ok("GPU", found)
    count = recipe.hardware.count
    if not all(fits_sm(wanted.sm, gpu.sm) for gpu in machine.gpus[:count]):
        problem = f"{found}; the recipe is for {wanted.label} (SM {wanted.sm})"
        return Finding("GPU", problem, "use the recipe's GPU, or change hardware.gpu")
    if len(machine.gpus) < count:
        repair = "check CUDA_VISIBLE_DEVICES, or change hardware.count and parallel"
        return Finding("GPU", f"{found}; the recipe needs {count}", repair)
    if machine.gpus[0].memory < 0.95 * wanted.memory_gib * GIB:
        problem = f"{found}; the recipe expects {wanted.label} ({wanted.memory_gib} GiB)"
        return note("GPU", problem, "name this GPU in hardware.gpu")
    return ok("GPU", found)


def _settings(machine: Machine, recipe: Recipe | None) -> Iterator[Finding]:
    for gpu in machine.gpus[: recipe.hardware.count if recipe else None]:
        for found in settings(gpu):
            yield replace(found, problem=f"GPU {gpu.index} {found.problem}", severity=_needed(recipe))


def _memory(machine: Machine, recipe: Recipe | None) -> Finding:
    """The free memory of the GPU that has least left beside the weights that it is to hold."""
    found = machine.gpus[: recipe.hardware.count if recipe else None]
    loads = _loads(machine, recipe) if recipe else {}
    number = min(range(len(found)), key=lambda number: found[number].free - loads.get(number, 0))
    gpu, needed = found[number], loads.get(number, 0)
    free = f"{gib(gpu.free)} free"
    if needed > gpu.free:
        free += f" on GPU {gpu.index}, but the weights need {gib(needed)}"
        repair = "end other programs on the GPU (nvidia-smi), or set quantization fp8 or more ranks"
        return Finding("GPU memory", free, repair)
    if gpu.free < 0.9 * gpu.memory:
        return note("GPU memory", free, "another program uses it: nvidia-smi shows which")
    return ok("GPU memory", free)


def _loads(machine: Machine, recipe: Recipe) -> dict[int, float]:
    """Bytes of weights on each GPU, by its number in CUDA."""
    backend = runner_of(recipe)
    ranks = backend.ranks(recipe)
    placement = backend.place(ranks, recipe.hardware.count, recipe.draft_gpus)
    loads: dict[int, float] = {}
    for role, size in _weights(machine, recipe).items():
        for gpu in placement.of(role):
            loads[gpu] = loads.get(gpu, 0) + size / ranks[role]
    return loads


def _server(machine: Machine, recipe: Recipe | None) -> Iterator[Finding]:
    """Finds the recipe's server in this Python; it may as well be in an environment of its own."""
    assert recipe is not None, "only a recipe names a server"
    backend = runner_of(recipe)
    image, names = backend.image(recipe), backend.packages
    version = recipe.engine.release or backend.versions[0]
    found = next((machine.versions[name] for name in names if name in machine.versions), None)
    if found == version:
        yield ok(names[0], found)
        return
    elsewhere = f"{names[0]} {version} in an environment of its own, or the image {image}"
    yield note(names[0], f"{found or 'none'} beside trtspec; a build does not need it", elsewhere)


def _builder(machine: Machine, recipe: Recipe | None) -> Iterator[Finding]:
    release = _release(recipe)
    llm, tensorrt = machine.versions.get("tensorrt_llm"), machine.versions.get("tensorrt")
    found = f"{llm or 'of an unknown version'}, {machine.trtllm_build}" if machine.trtllm_build else "none"
    if release is None and llm is not None and llm not in releases.RELEASES:
        yield note("TensorRT-LLM", found, f"trtspec builds with {', '.join(releases.RELEASES)}")
    elif release is None and machine.trtllm_build is None:
        yield note("TensorRT-LLM", found)
    elif release and (machine.trtllm_build is None or (llm is not None and llm != release.version)):
        has_containers = machine.container_engine.obstacle_to(gpus=True) is None
        repair = _IN_CONTAINERS if has_containers else _inside(release, machine.container_engine)
        if llm in releases.RELEASES:
            repair += f", or write release: {llm}"
        found += f"; the recipe builds with {release.version}"
        severity = Severity.NOTE if has_containers else Severity.ERROR
        yield Finding("TensorRT-LLM", found, repair, severity=severity)
    else:
        yield ok("TensorRT-LLM", found)
    if tensorrt is None:
        return
    if release and llm == release.version and not tensorrt.startswith(release.tensorrt):
        problem = f"{tensorrt}; the image of {release.version} has {release.tensorrt}"
        yield note("TensorRT", problem, "engines load only in this version of TensorRT: build and serve here")
    else:
        yield ok("TensorRT", tensorrt)


_IN_CONTAINERS = "trtspec build --container and trtspec deploy --container run NVIDIA's image"


def _inside(release: releases.Release, engine: ContainerEngine) -> str:
    name, by_cdi = engine.program.name, engine.program.dialect.takes_cdi
    gpus = f"--device {KIND}=all --security-opt label=disable" if by_cdi else "--gpus all"
    locked = "" if engine.rootless else " --ulimit memlock=-1"
    # With the cache mounted, downloaded models and TensorRT's timings outlive the container.
    mounts = "-v $HOME/.cache:/root/.cache -v $PWD:$PWD -w $PWD"
    run = f"{name} run --rm -it {gpus} --ipc=host{locked} --ulimit stack=67108864 {mounts}"
    return f"{run} {release.image}, and trtspec in there"


def _containers(machine: Machine, recipe: Recipe | None) -> Iterator[Finding]:
    engine = machine.container_engine
    name = engine.program.name
    if not engine.is_installed:
        yield note(name, "none; docker or podman is needed only to run NVIDIA's image from here")
        return
    if problem := engine.obstacle_to(gpus=True):
        found = f"{engine.version}, and {problem.problem}" if engine.version else problem.problem
        yield note(name, found, problem.repair or f"{name} info says why")
    else:
        yield ok(name, describe(engine))
    if engine.version:
        yield from oddities(engine)


def _torch(machine: Machine, recipe: Recipe | None) -> Iterator[Finding]:
    missing = Finding("PyTorch", "none", how_to_install("torch"), severity=_needed(recipe))
    return _torch_or(missing, machine)


def _torch_draft(machine: Machine, recipe: Recipe | None) -> Iterator[Finding]:
    repair = "NVIDIA's image has it; a build does not need it"
    return _torch_or(note("PyTorch", "none; the draft runs on it", repair), machine)


def _torch_or(missing: Finding, machine: Machine) -> Iterator[Finding]:
    version = machine.versions.get("torch")
    yield ok("PyTorch", version) if version else missing
    if version and "numba" not in machine.versions:
        yield note("numba", "none; without it engines on a CPU run at half the speed", "pip install numba")


def _triton_image(machine: Machine, recipe: Recipe | None) -> Iterator[Finding]:
    repair = "serve inside NVIDIA's image of the release; a build does not need it"
    yield _triton(machine) or note("Triton", "not NVIDIA's image", repair)


def _triton_wheel(machine: Machine, recipe: Recipe | None) -> Iterator[Finding]:
    if installed := _triton(machine):
        yield installed
    if machine.wheel:
        problem = f"{machine.wheel.subject}: {machine.wheel.problem}"
        yield Finding("Triton (wheel)", problem, machine.wheel.repair, severity=_needed(recipe))
    else:
        yield ok("Triton (wheel)", "nvidia-pytriton's tritonserver, for the torch backend")


def _triton(machine: Machine) -> Finding | None:
    triton = machine.triton
    if triton is None:
        return None
    image = f" of image {triton.tag}" if triton.tag else ""
    lacking = "" if triton.tensorrt_llm_backend else ", without the backend of TensorRT-LLM"
    return ok("Triton", f"{triton.version}{image}{lacking}")


def _needed(recipe: Recipe | None) -> Severity:
    """The severity of something that is missing: an error for a recipe, a note without one."""
    return Severity.ERROR if recipe else Severity.NOTE


_CHECKS: Mapping[MachineNeed, Callable[[Machine, Recipe | None], Iterator[Finding]]] = {
    "gpus": _gpus,
    "server": _server,
    "builder": _builder,
    "containers": _containers,
    "torch": _torch,
    "torch_draft": _torch_draft,
    "triton_image": _triton_image,
    "triton_wheel": _triton_wheel,
}
_USUAL: tuple[MachineNeed, ...] = ("gpus", "builder", "containers", "torch", "triton_wheel")
"""What is looked for without a recipe."""
