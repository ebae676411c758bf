"""What the steps do. Each makes its output, whole, at the path that it is given."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from trtspec.checkpoint.calibrate.calibrate import CalibrateOptions, calibrate
from trtspec.checkpoint.calibration import read_calibration, write_calibration
from trtspec.checkpoint.convert import convert
from trtspec.checkpoint.options import ConvertOptions
from trtspec.checkpoint.source import Source
from trtspec.checkpoint.tensors import read_json
from trtspec.checkpoint.verify import verify
from trtspec.docker.image import image_digest
from trtspec.engine import directory, manifest, torch_builder, trtllm
from trtspec.engine.options import BuildOptions
from trtspec.engine.place import Place
from trtspec.engine.timing_cache import TimingCache
from trtspec.errors import ModelError
from trtspec.plan.facts import TOKENIZER_FILES
from trtspec.plan.installed import all_packages
from trtspec.plan.outline import check_weights
from trtspec.plan.records import read_records
from trtspec.repository.spec import RepositorySpec
from trtspec.watch import Advance

LOGS = ".trtspec/logs"


def check_pair(
    recipe: Path, target: Source, draft: Source, max_seq_len: int, _: Path, advance: Advance
) -> None:
    from trtspec.checkpoint.pair import compare, refuse
    from trtspec.checkpoint.side import read_side

    refuse(str(recipe), compare(read_side(target.folder), read_side(draft.folder), max_seq_len))


def copy_tokenizer(source: Source, output: Path, advance: Advance) -> None:
    """Copies the tokenizer; `generation_config.json` gets the end tokens, whichever config had them."""
    output.mkdir()
    for name in TOKENIZER_FILES:
        if (source.folder / name).is_file():
            shutil.copyfile(source.folder / name, output / name)
    generation = source.folder / "generation_config.json"
    content = dict(read_json(generation)) if generation.is_file() else {}
    if source.end_ids:
        content["eos_token_id"] = list(source.end_ids)
    (output / generation.name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def calibrate_model(
    source: Source,
    dataset: Path,
    options: CalibrateOptions,
    origin: Mapping[str, Any],
    output: Path,
    advance: Advance,
) -> None:
    check_weights(source)
    write_calibration(output, calibrate(source, dataset, options, origin, advance))


def reuse_calibration(
    file: Path, weights: str | None, kv_cache: bool, output: Path, advance: Advance
) -> None:
    """Copies what an earlier calibration of the same weights found; raises ModelError for any other."""
    found = read_calibration(file)
    if found.provenance.get("weights") != weights:
        model = found.provenance.get("model")
        problem = f"was made of {model}, whose weights are not those of this model"
        raise ModelError(file, problem, "name texts in calibration.dataset, to calibrate this model")
    if kv_cache and not found.kv:
        problem = "has no numbers of the KV cache"
        raise ModelError(file, problem, "calibrate with kv_cache: fp8, or write kv_cache: none")
    write_calibration(output, found)


def convert_checkpoint(
    source: Source, options: ConvertOptions, calibration: Path | None, output: Path, advance: Advance
) -> None:
    check_weights(source)
    convert(source, _calibrated(options, calibration), output, advance)


def verify_checkpoint(
    source: Source,
    options: ConvertOptions,
    calibration: Path | None,
    checkpoint: Path,
    _: Path,
    advance: Advance,
) -> None:
    check_weights(source)
    verify(source, _calibrated(options, calibration), checkpoint, advance)


def _calibrated(options: ConvertOptions, file: Path | None) -> ConvertOptions:
    return replace(options, calibration=read_calibration(file)) if file else options


def build_torch(checkpoint: Path, options: BuildOptions, output: Path, advance: Advance) -> None:
    torch_builder.build(checkpoint, options, output)
    directory.check_engine(output, options.max_draft_len)


def build_tensorrt_llm(
    checkpoint: Path,
    options: BuildOptions,
    place: Place,
    cache: TimingCache,
    log: Path,
    output: Path,
    advance: Advance,
) -> None:
    # The command runs in the folder of its log, so its paths must be whole.
    argv = trtllm.build_argv(str(checkpoint.absolute()), str(output.absolute()), options)
    trtllm.build(argv, place, cache, log.absolute(), advance)
    directory.check_engine(output, options.max_draft_len, cache.release)


def write_repository(spec: RepositorySpec, output: Path, advance: Advance) -> None:
    from trtspec.repository.writer import write_repository as write

    write(output, spec)


def write_manifest(
    content: manifest.Manifest,
    build: Path,
    steps: Sequence[str],
    calibrations: Mapping[str, Path],
    image: str | None,
    output: Path,
    advance: Advance,
) -> None:
    """Completes the manifest with what the records have of these steps, how the FP8 scales were found and
    what they cost, what is installed, and the digest of the image that built the engines."""
    found = read_records(build)
    records = {name: found[name] for name in steps if name in found}
    outputs = {path: digest for record in records.values() for path, digest in record.files.items()}
    times = {name: record.seconds for name, record in records.items()}
    scales = {role: read_calibration(file) for role, file in calibrations.items()}
    complete = replace(
        content,
        calibration={**content.calibration, **{role: scale.provenance for role, scale in scales.items()}},
        quality={
            **content.quality,
            **{role: scale.quality and asdict(scale.quality) for role, scale in scales.items()},
        },
        packages=all_packages(),
        image=(image_digest(image) or image) if image else None,
        outputs=dict(sorted(outputs.items())),
        times=times,
    )
    output.write_text(manifest.to_json(complete), encoding="utf-8")
