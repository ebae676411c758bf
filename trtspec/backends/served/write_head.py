"""The step that writes Medusa's heads with all that vLLM reads of them: their weights, and `config.json`."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path

from trtspec.base.progress import Advance
from trtspec.models.heads.head import HeadDescription
from trtspec.models.hf_config import read_hf_config
from trtspec.models.tensors import INDEX
from trtspec.pipeline.plan.facts import HeadFacts
from trtspec.pipeline.plan.resolved import Resolved
from trtspec.pipeline.run.step import Step
from trtspec.pipeline.steps.reads import digest_of_files, is_weight
from trtspec.pipeline.steps.write_layers import OUTPUT

KIND = "write head"
_CONFIG = "config.json"


def step(resolved: Resolved, found: HeadFacts) -> Step:
    return Step(
        kind=KIND,
        summary=f"the head, with the keys that {resolved.backend} reads: {', '.join(found.head.unsaid)}",
        inputs=(found.name,),
        output=OUTPUT,
        command=(),
        digest=digest_of_files(is_weight, found, unsaid=dict(found.head.unsaid)),
        action=partial(run, found.head),
    )


def run(head: HeadDescription, output: Path, advance: Advance) -> None:
    """Writes a folder that trtspec and TensorRT-LLM read as before."""
    output.mkdir(parents=True)
    config = {**read_hf_config(head.folder / _CONFIG).content, **head.unsaid}
    (output / _CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    files = {tensor.file for tensor in head.tensors.values()}
    if (index := head.folder / INDEX).is_file():
        files.add(index)
    for file in sorted(files):
        shutil.copyfile(file, output / file.name)
