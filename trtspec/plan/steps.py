"""The steps of a build, in order."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from trtspec.checkpoint import convert, verify
from trtspec.checkpoint.calibrate import calibrate
from trtspec.checkpoint.calibration import FILE as CALIBRATION
from trtspec.checkpoint.options import ConvertOptions
from trtspec.docker.image import ensure_image
from trtspec.engine import manifest, torch_builder, trtllm
from trtspec.engine.options import BuildOptions
from trtspec.engine.timing_cache import TimingCache
from trtspec.plan import actions
from trtspec.plan.choices import Choice
from trtspec.plan.devices import apart
from trtspec.plan.digests import digest_of
from trtspec.plan.facts import TOKENIZER_FILES, Facts, ModelFacts
from trtspec.plan.layout import repository_spec
from trtspec.plan.obstacles import build_obstacle, calibrate_obstacle
from trtspec.plan.places import build_place
from trtspec.plan.resolved import CalibrationPlan, EnginePlan, Resolved
from trtspec.plan.step import Step
from trtspec.plan.stored import Stored, provenance, recorded, with_stored

_NOTHING: Mapping[str, Stored] = {}


def weights_read(names: Collection[str]) -> list[str]:
    """The roles whose weights the steps of these names read."""
    verbs = ("calibrate", "convert", "verify")
    return [role for role in ("target", "draft") if any(f"{verb} {role}" in names for verb in verbs)]


def make_steps(resolved: Resolved, facts: Facts, found: Mapping[str, Stored] = _NOTHING) -> list[Step]:
    """Every step, with what is `found` in a store pulled from there; pure."""
    engines = {"target": resolved.target, "draft": resolved.draft}
    steps = [_check(resolved, facts), _tokenizer(resolved.target.model)]
    for role, engine in engines.items():
        if engine.calibration:
            steps.append(_calibrate(facts, role, engine.model, engine.calibration))
    steps += [_convert(resolved, role, engine) for role, engine in engines.items()]
    steps += [_verify(resolved, role, engine) for role, engine in engines.items()]
    own = apart(facts.host.gpus, [engine.checkpoint.mapping.world_size for engine in engines.values()])
    for (role, engine), gpus in zip(engines.items(), own, strict=True):
        steps.append(_build(resolved, facts, role, engine, gpus))
    steps = with_stored(steps, found)
    steps.append(_repository(resolved, facts))
    steps.append(_manifest(resolved, facts, steps, found))
    return steps


def _check(resolved: Resolved, facts: Facts) -> Step:
    target, draft, longest = facts.target, facts.draft, resolved.target.options.max_seq_len
    version = facts.host.versions.get("trtspec")
    return Step(
        name="check pair",
        summary="target and draft fit together",
        inputs=(target.name, draft.name),
        output=None,
        command=("trtspec", "check", str(resolved.loaded.path)),
        digest=_digest(_is_config, target, draft, version=version, max_seq_len=longest),
        action=partial(actions.check_pair, resolved.loaded.path, target.source, draft.source, longest),
    )


def _tokenizer(model: ModelFacts) -> Step:
    return Step(
        name="copy tokenizer",
        summary="the target's tokenizer, and the tokens that end a text",
        inputs=(model.name,),
        output="tokenizer",
        command=(),
        digest=_digest(_is_tokenizer, model, end_ids=model.source.end_ids),
        action=partial(actions.copy_tokenizer, model.source),
    )


def _calibrate(facts: Facts, role: str, model: ModelFacts, plan: CalibrationPlan) -> Step:
    """Depends neither on how a checkpoint is cut into ranks nor on what the engine is built for."""
    dataset, options, weights = plan.dataset.dataset, plan.options, _digest(_is_safetensors, model)
    if dataset.is_ready:
        summary = f"the FP8 scales of the {role}, from {dataset.file.name}"
        digest = weights and digest_of([weights, plan.dataset.digest, options.kv_cache])
        action = partial(actions.reuse_calibration, dataset.file, weights, options.kv_cache)
    else:
        summary = f"the FP8 scales of the {role}, from up to {options.samples} texts"
        values = {"format": calibrate.FORMAT, "options": asdict(options), "dataset": plan.dataset.digest}
        digest = _digest(_is_weight_or_tokenizer, model, **values)
        origin = {
            "model": _portable_name(model.name),
            "revision": model.revision,
            "weights": weights,
            "dataset": _portable_name(dataset.name),
            "dataset_revision": dataset.revision,
            "dataset_digest": plan.dataset.digest,
        }
        action = partial(actions.calibrate_model, model.source, dataset.file, options, origin)
    return Step(
        name=f"calibrate {role}",
        summary=summary,
        inputs=(model.name, dataset.name),
        output=f"{role}/{CALIBRATION}",
        command=(),
        digest=digest,
        action=action,
        obstacle=None if dataset.is_ready else calibrate_obstacle(facts.host),
    )


def _scales(resolved: Resolved, role: str, engine: EnginePlan) -> tuple[Path | None, tuple[str, ...]]:
    """The file with what a calibration found, and the step that makes it, if there is one."""
    if engine.calibration is None:
        return None, ()
    return resolved.output / role / CALIBRATION, (f"calibrate {role}",)


def _convert(resolved: Resolved, role: str, engine: EnginePlan) -> Step:
    recipe, output = str(resolved.loaded.path), str(resolved.output)
    calibration, after = _scales(resolved, role, engine)
    source, options = engine.model.source, engine.checkpoint
    return Step(
        name=f"convert {role}",
        summary=f"the {role} as a TensorRT-LLM checkpoint in {_precision(options)}",
        inputs=(engine.model.name, *([f"{role}/{CALIBRATION}"] if calibration else [])),
        output=f"{role}/checkpoint",
        command=("trtspec", "convert", recipe, "--only", role, "--output", output),
        digest=_digest(_is_weight, engine.model, format=convert.FORMAT, options=asdict(options)),
        action=partial(actions.convert_checkpoint, source, options, calibration),
        after=after,
        size=convert.checkpoint_size(source, options),
    )


def _verify(resolved: Resolved, role: str, engine: EnginePlan) -> Step:
    recipe, output, checkpoint = str(resolved.loaded.path), str(resolved.output), f"{role}/checkpoint"
    source, options = engine.model.source, engine.checkpoint
    calibration, after = _scales(resolved, role, engine)
    return Step(
        name=f"verify {role}",
        summary="all ranks together are the original weights",
        inputs=(engine.model.name, checkpoint),
        output=None,
        command=("trtspec", "convert", recipe, "--only", role, "--verify", "--output", output),
        digest=_digest(_is_weight, engine.model, format=verify.FORMAT, options=asdict(options)),
        action=partial(actions.verify_checkpoint, source, options, calibration, resolved.output / checkpoint),
        after=(*after, f"convert {role}"),
        size=convert.checkpoint_size(source, options),
    )


def _precision(options: ConvertOptions) -> str:
    """Of the weights, and how many ranks there are if several."""
    ranks = options.mapping.world_size
    precision = f"FP8 and {options.dtype}" if options.fp8 else options.dtype
    return f"{precision}, {ranks} ranks" if ranks > 1 else precision


def _build(resolved: Resolved, facts: Facts, role: str, engine: EnginePlan, gpus: tuple[str, ...]) -> Step:
    checkpoint, output, options = f"{role}/checkpoint", f"{role}/engine", engine.options
    # In a container nothing is relative to where trtspec runs.
    build = resolved.output.absolute() if facts.host.container else resolved.output
    folder = build / checkpoint
    command: tuple[str, ...] = ()
    prepare = obstacle = None
    if resolved.release is None:
        version = facts.host.versions.get("trtspec")
        digest = digest_of([torch_builder.FORMAT, version, asdict(options)])
        action = partial(actions.build_torch, folder, options)
    else:
        release, gpu = resolved.release, resolved.loaded.recipe.hardware.gpu
        digest = digest_of([release.version, gpu, _build_argv(role, engine)])
        log = build / actions.LOGS / f"build-{role}.log"
        cache = TimingCache(release.version, gpu, _shape(engine))
        folders = (resolved.output.absolute(), cache.file.parent, *_adapters(options))
        place = build_place(release, facts.host, role, folders, gpus)
        argv = trtllm.build_argv(str(folder), str(build / output), options)
        command = place.command(argv, log.parent)
        action = partial(actions.build_tensorrt_llm, folder, options, place, cache, log)
        obstacle = build_obstacle(facts.host, release, gpu, engine.checkpoint.mapping.world_size)
        if facts.host.container:
            prepare = partial(ensure_image, release.image)
    kind = (
        f"verifies up to {options.max_draft_len} draft tokens" if options.max_draft_len else "proposes tokens"
    )
    return Step(
        name=f"build {role}",
        summary=f"the engine that {kind}",
        inputs=(checkpoint,),
        output=output,
        command=command,
        digest=digest,
        action=action,
        after=(f"convert {role}",),
        gpus=gpus,
        obstacle=obstacle,
        prepare=prepare,
    )


def _build_argv(role: str, engine: EnginePlan) -> tuple[str, ...]:
    """As run in the build directory, with adapters there too: the same on every machine."""
    extra = dict(engine.options.extra)
    for adapter in _adapters(engine.options):
        extra["lora_dir"] = adapter.name
    return trtllm.build_argv(f"{role}/checkpoint", f"{role}/engine", replace(engine.options, extra=extra))


def _adapters(options: BuildOptions) -> list[Path]:
    """Folders that trtllm-build reads beside the checkpoint."""
    return [Path(str(options.extra["lora_dir"]))] if "lora_dir" in options.extra else []


def _shape(engine: EnginePlan) -> str:
    """What the kernels of an engine depend on, beside its sizes."""
    source, options = engine.model.source, engine.checkpoint
    precision = "fp8" if options.fp8 else options.dtype
    return f"{source.hidden_size}x{source.intermediate_size}-{precision}-tp{options.mapping.tp_size}"


def _repository(resolved: Resolved, facts: Facts) -> Step:
    spec = repository_spec(resolved)
    names = [resolved.model_name, *(engine.name for engine in spec.engines)]
    return Step(
        name="write repository",
        summary=f"the Triton model{'s' * (len(names) > 1)} {', '.join(names)}",
        inputs=("tokenizer", "target/engine", "draft/engine"),
        output="model_repository",
        command=(),
        digest=digest_of([asdict(spec), facts.serving_code]),
        action=partial(actions.write_repository, spec),
    )


def _manifest(resolved: Resolved, facts: Facts, steps: list[Step], found: Mapping[str, Stored]) -> Step:
    engines, host = {"target": resolved.target, "draft": resolved.draft}, facts.host
    calibrations = {
        role: file
        for role, engine in engines.items()
        if role not in found and (file := _scales(resolved, role, engine)[0])
    }
    content = manifest.Manifest(
        name=resolved.loaded.recipe.name,
        recipe=digest_of(resolved.loaded.recipe.model_dump(mode="json")),
        backend=resolved.backend,
        values={choice.key: _portable_value(choice) for choice in resolved.choices if choice.key != "output"},
        models={
            role: {
                "model": _portable_name(model.name),
                "revision": model.revision,
                "files": dict(model.digests or {}),
            }
            for role, model in (("target", facts.target), ("draft", facts.draft))
        },
        tools=dict(host.versions),
        gpu={key: getattr(host.gpus[0], key) for key in ("name", "sm", "driver")} if host.gpus else None,
        commands=_commands(resolved, steps),
        calibration=recorded(found, "calibration"),
        quality=recorded(found, "quality"),
        pulled=provenance(found),
    )
    names = tuple(step.name for step in steps)
    image = resolved.release.image if resolved.release and host.container else None
    return Step(
        name="write manifest",
        summary="what everything was made of, and with what",
        inputs=tuple(step.output for step in steps if step.output),
        output="manifest.json",
        command=(),
        digest=digest_of([asdict(content), [step.digest for step in steps]]),
        action=partial(actions.write_manifest, content, resolved.output, names, calibrations, image),
        after=names,
    )


def _commands(resolved: Resolved, steps: list[Step]) -> dict[str, list[str]]:
    """As run in the build directory, the same on every machine and in every container."""
    commands = {step.name: _portable(step.command, resolved) for step in steps if step.command}
    if resolved.release:
        for role, engine in (("target", resolved.target), ("draft", resolved.draft)):
            if f"build {role}" in commands:
                commands[f"build {role}"] = list(_build_argv(role, engine))
    return commands


def _portable(command: tuple[str, ...], resolved: Resolved) -> list[str]:
    """The command as seen from the build directory, with no path of this machine in it."""
    places = {str(resolved.loaded.path): resolved.loaded.path.name, str(resolved.output): "."}
    return [places.get(word, word.removeprefix(f"{resolved.output}/")) for word in command]


def _portable_value(choice: Choice) -> bool | int | float | str:
    value = choice.value
    return _portable_name(value) if choice.key.endswith(".dataset") and isinstance(value, str) else value


def _portable_name(model: str) -> str:
    return Path(model).name if Path(model).is_absolute() or model.startswith("~") else model


def _digest(files: Callable[[str], bool], *models: ModelFacts, **values: Any) -> str | None:
    """The digest of values and of the models' files with such names; None without the files' digests."""
    if any(model.digests is None for model in models):
        return None
    chosen = [{name: sha for name, sha in (model.digests or {}).items() if files(name)} for model in models]
    return digest_of([chosen, values])


def _is_tokenizer(name: str) -> bool:
    return name in TOKENIZER_FILES or name == "generation_config.json"


def _is_safetensors(name: str) -> bool:
    return name.endswith(".safetensors")


def _is_weight_or_tokenizer(name: str) -> bool:
    return _is_weight(name) or name in TOKENIZER_FILES


def _is_weight(name: str) -> bool:
    return name == "config.json" or name.endswith(".safetensors")


def _is_config(name: str) -> bool:
    return not name.endswith(".safetensors")
