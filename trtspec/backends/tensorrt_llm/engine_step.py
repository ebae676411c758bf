"""The step that builds an engine with TensorRT-LLM's trtllm-build, here or in NVIDIA's image."""

from __future__ import annotations

import os
import re
import signal
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from trtspec.base.cache import cache_folder
from trtspec.base.causes import DRIVER, EXCLUSIVE, MPI, Cause, find_cause, gpu_memory, signal_name
from trtspec.base.errors import StepError
from trtspec.base.progress import Advance
from trtspec.base.roles import Role
from trtspec.base.tail import Tail, last_bytes
from trtspec.pipeline.containers.container import name_for
from trtspec.pipeline.containers.state import ensure_image, pull_commands
from trtspec.pipeline.engine import directory
from trtspec.pipeline.engine.directory import EXTERNAL
from trtspec.pipeline.engine.engine_options import BuildOptions
from trtspec.pipeline.machine.devices import container_gpus
from trtspec.pipeline.machine.host import COMMAND, Host
from trtspec.pipeline.plan.facts import PlanFacts
from trtspec.pipeline.plan.obstacles import build_obstacle
from trtspec.pipeline.plan.resolved import EnginePlan, Resolved
from trtspec.pipeline.run.launcher import ContainerLauncher, Launcher, LocalLauncher
from trtspec.pipeline.run.records import FOLDER
from trtspec.pipeline.run.step import Step
from trtspec.pipeline.steps import build, convert
from trtspec.recipe.build_options import Value, to_argv
from trtspec.recipe.releases import Release


def build_argv(checkpoint: str, output: str, options: BuildOptions, mode: str = EXTERNAL) -> tuple[str, ...]:
    """Returns the exact command line; parallelism comes from the checkpoint's `mapping`, never from a flag.

    `mode` is what an engine with a `max_draft_len` does with drafts, as `trtllm-build` calls it.
    """
    values: dict[str, Value] = {
        "checkpoint_dir": checkpoint,
        "output_dir": output,
        "max_batch_size": options.max_batch_size,
        "max_input_len": options.max_input_len,
        "max_seq_len": options.max_seq_len,
        "max_num_tokens": options.max_num_tokens,
    }
    if options.max_draft_len:
        values |= {"speculative_decoding_mode": mode, "max_draft_len": options.max_draft_len}
    values.update(options.extra)
    return (COMMAND, *(word for item in values.items() for word in to_argv(*item)))


def run_builder(
    argv: tuple[str, ...], launcher: Launcher, cache: TimingCache, log: Path, advance: Advance
) -> None:
    """Runs the command with its output in `log`; raises StepError with the diagnosis if it fails.

    `advance` is called with no bytes and the builder's last line. If it raises, or on Ctrl-C, the builder and
    its worker processes are ended.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as stream, cache.options(log.parent) as timing:
        process = launcher.start((*argv, *timing), stream, log.parent)
        tail, note = Tail(log), ""
        try:
            while (status := process.wait(_POLL_S)) is None:
                if lines := tail.lines():
                    # Without its prefix: `[11/21/2026-07:30:00] [TRT-LLM] [I]`.
                    note = lines[-1].rpartition("] ")[2].strip()[:_WIDTH] or note
                advance(0, note)
        finally:
            process.kill()
        if status:
            raise diagnose(argv[0], status, log, launcher.causes)


@dataclass(frozen=True, slots=True)
class TimingCache:
    """TensorRT's measured times of kernels, for engines of one shape, by one release for one kind of GPU.

    With them a build need not measure what an earlier one has measured. TensorRT refuses a cache of another
    version or of another GPU, an H100's on an H200 included.
    """

    release: str
    gpu: str
    shape: str

    @property
    def file(self) -> Path:
        return cache_folder() / "timing" / f"{self.release}-{self.gpu}" / f"{self.shape}.cache"

    @contextmanager
    def options(self, folder: Path) -> Iterator[tuple[str, ...]]:
        """The options of trtllm-build that read the cache and write a new one, kept if nothing is raised.

        If the user's cache folder cannot be written, as in a container without a home, the new one is written
        to `folder` and not used again.
        """
        made = self.file.with_name(f".{self.file.name}.{uuid.uuid4().hex}")
        try:
            made.parent.mkdir(parents=True, exist_ok=True)
            made.touch()
        except OSError:
            yield ("--output_timing_cache", str(folder / "model.cache"))
            return
        try:
            known = ("--input_timing_cache", str(self.file)) if self.file.exists() else ()
            yield (*known, "--output_timing_cache", str(made))
            if made.stat().st_size:
                os.replace(made, self.file)
        finally:
            made.unlink(missing_ok=True)


def engine_step(resolved: Resolved, facts: PlanFacts, role: Role, gpus: tuple[str, ...]) -> Step:
    plan, host, gpu = resolved.engines[role], facts.host, resolved.loaded.recipe.hardware.gpu
    release = resolved.release
    assert release is not None, "a recipe with engines of TensorRT-LLM has a release"
    # A container does not know the folder that trtspec runs in, so its paths must be absolute.
    containers = host.container_engine
    folder = resolved.output.absolute() if containers else resolved.output
    log = folder / FOLDER / "logs" / f"build-{role}.log"
    cache = TimingCache(release.version, gpu, _shape(plan))
    folders = (resolved.output.absolute(), cache.file.parent, *_adapters(plan.options))
    launcher = _launcher(release, host, role, folders, gpus, resolved.loaded.recipe.hardware.count)
    checkpoint = folder / convert.checkpoint(role)
    argv = build_argv(str(checkpoint), str(folder / build.engine(role)), plan.options, plan.mode)
    portable, options, mode = _portable_argv(role, plan), plan.options, plan.mode
    made_of = [release.version, gpu, portable, *sorted(plan.model.adapter.items())]

    def run(output: Path, advance: Advance) -> None:
        # The command runs in the folder of its log, so its paths must be absolute.
        argv = build_argv(str(checkpoint.absolute()), str(output.absolute()), options, mode)
        run_builder(argv, launcher, cache, log.absolute(), advance)
        directory.check_engine(output, options.max_draft_len, cache.release, mode)

    return replace(
        build.step(resolved, role, gpus, made_of, run),
        command=launcher.command(argv, log.parent),
        portable=portable,
        obstacle=build_obstacle(host, release, gpu, plan.checkpoint.mapping.world_size),
        prepare=partial(ensure_image, containers.program, release.image) if containers else None,
        fetches=tuple((containers.program.name, *words) for words in pull_commands(release.image))
        if containers
        else (),
    )


def _portable_argv(role: Role, plan: EnginePlan) -> tuple[str, ...]:
    """Returns the command line as if it were run in the build directory, with LoRA adapters there too.

    It is the same on every machine.
    """
    extra = dict(plan.options.extra)
    for adapter in _adapters(plan.options):
        extra["lora_dir"] = adapter.name
    options = replace(plan.options, extra=extra)
    return build_argv(convert.checkpoint(role), build.engine(role), options, plan.mode)


def _launcher(
    release: Release, host: Host, role: Role, folders: tuple[Path, ...], gpus: tuple[str, ...], count: int
) -> Launcher:
    """Returns what starts the builder; `folders` are all that it uses, the build directory first.

    It sees those of the host's GPUs that are named, or all; where the host has none, `count` stand in for the
    recipe's.
    """
    if not host.container_engine:
        return LocalLauncher(host.trtllm_build or COMMAND, gpus)
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


_SHOWN = 8
_READ_BYTES = 1 << 20
_OTHER_RELEASE = "run the image of the recipe's release: trtspec doctor shows what is here"
_INSIDE = "build inside NVIDIA's image of the recipe's release: trtspec doctor names it"
_LESS = "end what else uses the GPU (nvidia-smi), or lower engine.max_num_tokens or engine.max_batch_size"
_MEMORY = "give the machine more memory, or build fewer ranks at once: build: {workers: 1}"

# From issue threads of TensorRT-LLM and its Triton backend, and from the sources of releases 1.0 to 1.2.
CAUSES = (
    Cause(r"unrecognized arguments: (.+)", "it does not know {0}: it is of another release", _OTHER_RELEASE),
    Cause(
        r"argument (--\S+): invalid choice: (.+?) \(", "its {0} does not take {1}", "correct it in the recipe"
    ),
    Cause(r"No space left on device", "the disk is full", "free some space and run the same command again"),
    gpu_memory(_LESS),
    Cause(
        r"BrokenProcessPool|process pool was terminated abruptly|MemoryError|Cannot allocate memory",
        "the machine has too little memory",
        _MEMORY,
    ),
    EXCLUSIVE,
    DRIVER,
    MPI,
    Cause(
        r"No CUDA GPUs are available|no CUDA-capable device|Found no NVIDIA driver",
        "it sees no GPU",
        "start the container with --gpus all, and check CUDA_VISIBLE_DEVICES",
    ),
    Cause(
        r"exec: \"?trtllm-build\"?: (?:executable file )?not found|exec trtllm-build failed",
        "it is not in this image",
        _INSIDE,
    ),
    Cause(
        r"error while loading shared libraries: (\S+)|(lib\S+\.so\S*): cannot open shared object",
        "a library of TensorRT-LLM is missing",
        _INSIDE,
    ),
    Cause(r"ModuleNotFoundError: (.+)", "its installation is incomplete: {0}", _INSIDE),
    Cause(
        r"=(\S+) is not supported on SM (\d+)", "{0} has no kernels for SM {1}", "remove it from the recipe"
    ),
    Cause(
        r"Unsupported model architecture: (\S+)",
        "this release has no {0}",
        "write a newer engine.release, or take another model",
    ),
    Cause(
        r"Required but not provided tensors|Provided but not (?:required|expected) tensors.*Error"
        r"|unexpected keyword argument",
        "this release reads the checkpoint in another way",
        "report it with the log; a newer engine.release may read it",
    ),
    Cause(
        r"FP8 FMHA cannot be enabled|FP8 context FMHA is (?:not|only)",
        "this GPU has no FP8 attention for this model",
        "write quantization: {weights: fp8, kv_cache: none}",
    ),
    Cause(
        r"volume exceeds|exceeds? .*2\^31|tensor volume",
        "a tensor would be too large for TensorRT",
        "lower engine.max_num_tokens",
    ),
    Cause(
        r"assert cache is not None|[Tt]iming cache .*(?:mismatch|invalid|fail)",
        "the timing cache is of another GPU or broken",
        "remove the folder timing in trtspec's cache (~/.cache/trtspec) and run the same command again",
    ),
)


def diagnose(command: str, status: int, log: Path, causes: tuple[Cause, ...] = ()) -> StepError:
    """The error of a command that failed; a negative `status` is the signal that ended it.

    `causes` are those of what the command ran in.
    """
    text = last_bytes(log, _READ_BYTES)
    lines = tuple(line for line in text.splitlines() if line.strip())[-_SHOWN:]
    how = f"was killed by {signal_name(-status)}" if status < 0 else f"failed with status {status}"
    repair = None
    if known := find_cause((*CAUSES, *causes), text):
        problem, repair = known
    else:
        problem = _complaint(text)
        if status == -signal.SIGKILL:
            problem, repair = "the system kills processes when its memory is full", _MEMORY
    return StepError(command, f"{how}: {problem}", repair, log, lines)


def _complaint(text: str) -> str:
    """The last exception of a log; without one TensorRT's last error, any other error, or the last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for pattern in (r"^[\w.]*(?:Error|Exception)\b.*", r"\[E\] .+", r"error: .+"):
        for line in reversed(lines):
            if found := re.search(pattern, line):
                return found[0]
    return lines[-1] if lines else "it said nothing"


_POLL_S, _WIDTH = 0.2, 60
