"""The step that builds an engine: with TensorRT-LLM's `trtllm-build`, or for the torch backend."""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from trtspec.backends.containers.container import name_for
from trtspec.backends.containers.images import ensure_image
from trtspec.backends.engine import directory, torch_builder, trtllm
from trtspec.backends.engine.container_launcher import ContainerLauncher
from trtspec.backends.engine.dependent_builder import build_head, build_layers
from trtspec.backends.engine.engine_options import BuildOptions
from trtspec.backends.engine.launcher import Launcher, LocalLauncher
from trtspec.backends.engine.timing_cache import TimingCache
from trtspec.backends.table import backend_named
from trtspec.base.digest import digest_of
from trtspec.base.progress import Advance
from trtspec.base.roles import Role
from trtspec.checkpoint.layers.chosen import with_layers
from trtspec.models.heads.head import HeadDescription
from trtspec.models.heads.reading import head_tensors
from trtspec.models.source import Source
from trtspec.pipeline.machine.devices import container_gpus
from trtspec.pipeline.machine.host import Host
from trtspec.pipeline.plan.facts import PlanFacts
from trtspec.pipeline.plan.obstacles import build_obstacle
from trtspec.pipeline.plan.resolved import EnginePlan, Resolved
from trtspec.pipeline.run.records import FOLDER
from trtspec.pipeline.run.step import Step, name_of
from trtspec.pipeline.steps import choose_layers, convert
from trtspec.pipeline.steps.reads import digest_of_files, is_weight
from trtspec.recipe.releases import Release

KIND = "build"
LOGS = f"{FOLDER}/logs"


def step(resolved: Resolved, facts: PlanFacts, role: Role, gpus: tuple[str, ...]) -> Step:
    """Returns the step; `gpus` are the UUIDs of the GPUs that it has for itself, empty if it may use all."""
    plan, options = resolved.engines[role], resolved.engines[role].options
    checkpoint = resolved.output / convert.checkpoint(role)
    common = Step(
        kind=KIND,
        role=role,
        summary=f"the engine that {_purpose(plan)}",
        inputs=(convert.checkpoint(role),),
        output=engine(role),
        command=(),
        digest=digest_of([torch_builder.FORMAT, facts.host.versions.get("trtspec"), asdict(options)]),
        action=lambda output, _: torch_builder.build(checkpoint, options, output),
        after=(name_of(convert.KIND, role),),
        gpus=gpus,
    )
    if plan.is_dependent:
        return _dependent(common, resolved, role)
    if resolved.release is None or not backend_named(plan.backend).compiles:
        return common
    return _with_tensorrt_llm(common, resolved, facts, role, resolved.release)


def _purpose(plan: EnginePlan) -> str:
    drafts = plan.options.max_draft_len
    if plan.inside:
        return f"drafts with {plan.inside.draft.count} heads and verifies {drafts} tokens of theirs"
    return f"verifies up to {drafts} draft tokens" if drafts else "proposes tokens"


def _dependent(step: Step, resolved: Resolved, role: Role) -> Step:
    """Returns the step for a draft that lives in the target's engine: a head, or layers of it."""
    plan, target = resolved.engines[role], resolved.output / engine(Role.TARGET)
    file, after = choose_layers.chosen(resolved, role)
    head = plan.head
    return replace(
        step,
        summary="the head on the target's engine" if head else "the layers of the target's engine",
        inputs=(engine(Role.TARGET), *([plan.model.name] if head else [])),
        digest=digest_of_files(
            is_weight,
            plan.model,
            resolved.target.model,
            step=step.digest,
            target=asdict(resolved.target.checkpoint),
            **choose_layers.written(resolved, role),
        ),
        action=partial(run_head, head, target)
        if head
        else partial(run_layers, plan.model.source, file, target),
        after=(*after, name_of(KIND, Role.TARGET)),
    )


def engine(role: Role) -> str:
    """Returns the folder of an engine, relative to the build directory."""
    return f"{role}/engine"


def portable_argv(role: Role, plan: EnginePlan) -> tuple[str, ...]:
    """Returns the command line as if it were run in the build directory, with LoRA adapters there too.

    It is the same on every machine.
    """
    extra = dict(plan.options.extra)
    for adapter in _adapters(plan.options):
        extra["lora_dir"] = adapter.name
    options = replace(plan.options, extra=extra)
    return trtllm.build_argv(convert.checkpoint(role), engine(role), options, plan.mode)


def _with_tensorrt_llm(
    step: Step, resolved: Resolved, facts: PlanFacts, role: Role, release: Release
) -> Step:
    plan, host, gpu = resolved.engines[role], facts.host, resolved.loaded.recipe.hardware.gpu
    # A container does not know the folder that trtspec runs in, so its paths must be absolute.
    build = resolved.output.absolute() if host.container_engine else resolved.output
    log, cache = build / LOGS / f"build-{role}.log", TimingCache(release.version, gpu, _shape(plan))
    folders = (resolved.output.absolute(), cache.file.parent, *_adapters(plan.options))
    launcher = _launcher(release, host, role, folders, step.gpus, resolved.loaded.recipe.hardware.count)
    checkpoint = build / convert.checkpoint(role)
    argv = trtllm.build_argv(str(checkpoint), str(build / engine(role)), plan.options, plan.mode)
    return replace(
        step,
        command=launcher.command(argv, log.parent),
        digest=digest_of([release.version, gpu, portable_argv(role, plan)]),
        action=partial(run_tensorrt_llm, checkpoint, plan.options, plan.mode, launcher, cache, log),
        obstacle=build_obstacle(host, release, gpu, plan.checkpoint.mapping.world_size),
        prepare=partial(ensure_image, host.container_engine.program, release.image)
        if host.container_engine
        else None,
    )


def _launcher(
    release: Release, host: Host, role: Role, folders: tuple[Path, ...], gpus: tuple[str, ...], count: int
) -> Launcher:
    """Returns what starts the builder; `folders` are all that it uses, the build directory first.

    It sees those of the host's GPUs that are named, or all; where the host has none, `count` stand in for the
    recipe's.
    """
    if not host.container_engine:
        return LocalLauncher(host.trtllm_build or trtllm.COMMAND, gpus)
    own = [gpu for gpu in host.gpus if not gpus or gpu.uuid in gpus]
    return ContainerLauncher(
        image=release.image,
        name=name_for(f"build-{role}", folders[0]),
        folders=folders,
        gpus=container_gpus(own, len(own) or count, host.container_engine.devices),
        engine=host.container_engine,
    )


def _adapters(options: BuildOptions) -> list[Path]:
    """Returns the folders of LoRA adapters, which trtllm-build reads beside the checkpoint."""
    return [Path(str(options.extra["lora_dir"]))] if "lora_dir" in options.extra else []


def _shape(plan: EnginePlan) -> str:
    """Returns a name for what the kernels of an engine depend on, beside its sizes."""
    source, options = plan.model.source, plan.checkpoint
    precision = "fp8" if options.fp8 else options.dtype
    return f"{source.hidden_size}x{source.intermediate_size}-{precision}-tp{options.mapping.tp_size}"


def run_head(head: HeadDescription, target: Path, output: Path, advance: Advance) -> None:
    build_head(head, head_tensors(head), target, output)


def run_layers(source: Source, chosen: Path | None, target: Path, output: Path, advance: Advance) -> None:
    build_layers(with_layers(source, chosen).layers or (), target, output)


def run_tensorrt_llm(
    checkpoint: Path,
    options: BuildOptions,
    mode: str,
    launcher: Launcher,
    cache: TimingCache,
    log: Path,
    output: Path,
    advance: Advance,
) -> None:
    # The command runs in the folder of its log, so its paths must be absolute.
    argv = trtllm.build_argv(str(checkpoint.absolute()), str(output.absolute()), options, mode)
    trtllm.build(argv, launcher, cache, log.absolute(), advance)
    directory.check_engine(output, options.max_draft_len, cache.release, mode)
